"""Placement: as what tensors travel, and which server keeps which part.

=============  =====================================================================================
file           what it decides
=============  =====================================================================================
``piece``      a slice: what is pushed, updated and pulled as one
``bundle``     small slices that travel as one, as long as they can
``layout``     how tensors are cut into slices, and which server keeps each
``declaring``  what a server shall keep, said in parts
=============  =====================================================================================
"""
