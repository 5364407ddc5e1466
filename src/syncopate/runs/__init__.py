"""Runs: what was recorded of trainings, read from any file, and what is to be said of them.

The calls behind ``syncopate explain``, ``analyze``, ``report`` and ``compare``. Each returns a
result that prints itself, shows itself in a notebook, and has its values as rows and as JSON.
"""
