"""BE: bidirectional exchange, long messages in pieces.

All of it is made of three parts, each of ceil(log2 p) rounds and (p - 1)/p n bytes for every p: the
recursive reduce-scatter and all-gather (``halving_doubling.py``), in which both partners of an
exchange send at once, and the scatter or gather along a minimum spanning tree (``mst.py``)::

    broadcast   = MST scatter from the root, then all-gather
    reduce      = reduce-scatter, then MST gather to the root
    all-reduce  = reduce-scatter, then all-gather

Steps and bytes, for every p and root: 2 ceil(log2 p) rounds, 2(p - 1)/p n bytes.

The all-reduce differs from ``halving_doubling`` in the order alone: rank r owns chunk r in between,
and the farthest ranks exchange first. Where all links are equal the two cost the same.

Source: LP (Wang et al. 2017), Section 3.2 and Table 1 ("BE"); Chan et al. (2007). The paper's
broadcast counts the p - 1 start-ups of a ring all-gather; the all-gather here needs ceil(log2 p).
"""

from __future__ import annotations

from syncopate.schedules.algorithms import halving_doubling
from syncopate.schedules.algorithms.mst import distribute
from syncopate.schedules.base import Schedule, Transfers, mirrored
from syncopate.schedules.compose import in_turn


def broadcast(world_size: int, root: int) -> Schedule:
    """Return the MST scatter from ``root`` and the recursive all-gather; p chunks."""
    scatter = distribute(world_size, root, scatter=True)
    gather = halving_doubling.all_gather(world_size).table.table
    table = in_turn([scatter, gather])
    return Schedule("broadcast", "be", world_size, world_size, Transfers(table), root)


def reduce(world_size: int, root: int) -> Schedule:
    """Return the recursive reduce-scatter and the MST gather to ``root``; p chunks."""
    scatter = halving_doubling.reduce_scatter(world_size).table.table
    gather = mirrored(distribute(world_size, root, scatter=True))
    table = in_turn([scatter, gather])
    return Schedule("reduce", "be", world_size, world_size, Transfers(table), root)


def all_reduce(world_size: int) -> Schedule:
    """Return the recursive reduce-scatter and the recursive all-gather; p chunks."""
    scatter = halving_doubling.reduce_scatter(world_size).table.table
    gather = halving_doubling.all_gather(world_size).table.table
    table = in_turn([scatter, gather])
    return Schedule("all_reduce", "be", world_size, world_size, Transfers(table))
