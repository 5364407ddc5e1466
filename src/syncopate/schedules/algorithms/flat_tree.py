"""Flat tree: everyone is a child of the root, which exchanges with one after the other.

Four ranks, all-reduce::

    round 0     1 -> 0     reduce
    round 1     2 -> 0     reduce
    round 2     3 -> 0     reduce
    round 3     0 -> 1     copy
    round 4     0 -> 2     copy
    round 5     0 -> 3     copy

Steps and bytes: p - 1 rounds of n bytes for a broadcast or a reduce, twice that for an all-reduce,
all of them through the root's port. In a model that counts rounds it never wins. What it has is the
fewest messages, like any tree, and of all trees the shortest way: two messages on end, however many
ranks there are. So it is the fastest for a few bytes among a few ranks, where a message costs the
waking of a process rather than a round.

Source: Open MPI's ``basic_linear``; Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH" (2005).
"""

from __future__ import annotations

import numpy as np

from syncopate.schedules.base import COPY, REDUCE, Schedule, Table, Transfers, rows
from syncopate.schedules.compose import in_turn

_NAME = "flat_tree"
_WHOLE = (0, 1)


def broadcast(world_size: int, root: int) -> Schedule:
    """Return the root's sends to everyone; one chunk."""
    return Schedule("broadcast", _NAME, world_size, 1, Transfers(_down(world_size, root)), root)


def reduce(world_size: int, root: int) -> Schedule:
    """Return everyone's sends to the root; one chunk."""
    return Schedule("reduce", _NAME, world_size, 1, Transfers(_up(world_size, root)), root)


def all_reduce(world_size: int) -> Schedule:
    """Return the reduce to rank 0 and the broadcast from it; one chunk."""
    table = in_turn([_up(world_size, 0), _down(world_size, 0)])
    return Schedule("all_reduce", _NAME, world_size, 1, Transfers(table))


def _down(world_size: int, root: int) -> Table:
    leaves = np.delete(np.arange(world_size), root)
    return rows(np.arange(world_size - 1), root, leaves, _WHOLE, COPY)


def _up(world_size: int, root: int) -> Table:
    leaves = np.delete(np.arange(world_size), root)
    return rows(np.arange(world_size - 1), leaves, root, _WHOLE, REDUCE)
