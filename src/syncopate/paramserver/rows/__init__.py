"""Rows: tables that servers keep by row; see [Note: tables] in :mod:`syncopate.protocol.table`.

===========  =======================================================================================
file         what it does
===========  =======================================================================================
``hashing``  which server keeps a row, and what a row is that nothing was pushed to
``index``    where in memory a row is, many at a time
``frames``   rows as the payloads of messages carry them
``updates``  SGD, Adagrad and Adam on some rows of a table
``before``   what rows were before the last update
``share``    what one server keeps of a table
``tables``   a worker's tables: what is pushed to them and pulled from them
===========  =======================================================================================

Numbers of rows are numpy's, values are torch's. Nothing here loops over rows.
"""
