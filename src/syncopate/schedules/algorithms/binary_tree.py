"""Binary tree: a binomial tree reduces to rank 0 and the same tree broadcasts back.

In round k of the reduction every rank that still takes part and has bit k set sends its whole
buffer to the rank without that bit and is done. Four ranks::

    round 0     1 -> 0     3 -> 2     reduce
    round 1     2 -> 0                reduce
    round 2     0 -> 2                copy
    round 3     0 -> 1     2 -> 3     copy

Steps and bytes: 2 ceil(log2 p) rounds of n bytes for every p, power of two or not; each rank but
the root sends n bytes up once, and the root sends n ceil(log2 p) bytes down. Every rank gets a
copy of the root's sum, so all end bit-identical.

Source: MG-WFBP, Table II ("binary tree"); Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH" (2005).
"""

from __future__ import annotations

import numpy as np

from syncopate.schedules.base import REDUCE, Schedule, Transfers, mirrored, rounds_of, rows, stacked


def all_reduce(world_size: int) -> Schedule:
    """Return the binomial reduce to rank 0 and the broadcast back; one chunk."""
    reduction = stacked(
        rows(k, child, child - (1 << k), (0, 1), REDUCE)
        for k in range((world_size - 1).bit_length())
        for child in [np.arange(1 << k, world_size, 2 << k)]
    )
    table = stacked([reduction, mirrored(reduction, rounds_of(reduction))])
    return Schedule("all_reduce", "binary_tree", world_size, 1, Transfers(table))
