"""Recursive doubling: in round k every rank adds the whole buffer of the rank 2^k away.

Four ranks; both partners of an exchange send their whole buffer at once::

    round 0     0 <-> 1     2 <-> 3
    round 1     0 <-> 2     1 <-> 3

After round k the 2^(k+1) ranks that met hold the same sum, built by the same additions up to the
order of the two operands, and IEEE addition commutes: so all ranks end bit-identical.

Steps and bytes: log2 p rounds, n log2 p bytes sent by each rank. Nothing has fewer rounds, so it
wins for small messages.

Other p: let q be the largest power of two below p and e = p - q. The ranks 1, 3, .., 2e - 1 first
add their buffer to their left neighbour's and stand aside, q ranks run the algorithm, and the e
ranks get the result back. That is floor(log2 p) + 2 = ceil(log2 p) + 1 rounds of n bytes, all but
the last with a reduction. The folded pairs are neighbours, so the two extra rounds stay on the
innermost level.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005); MG-WFBP, Table II.
"""

from __future__ import annotations

import numpy as np

from syncopate.schedules.base import REDUCE, Schedule, Transfers, mirrored, rounds_of, rows, stacked


def all_reduce(world_size: int) -> Schedule:
    """Return the recursive-doubling all-reduce; the buffer stays in one chunk."""
    doublings = world_size.bit_length() - 1
    survivors = 1 << doublings
    extra = world_size - survivors
    left = 2 * np.arange(extra)
    fold = rows(0, left + 1, left, (0, 1), REDUCE)
    place = np.arange(survivors)
    rank = np.where(place < extra, 2 * place, place + extra)
    first = rounds_of(fold)
    exchanges = [
        rows(first + k, rank, rank[place ^ (1 << k)], (0, 1), REDUCE) for k in range(doublings)
    ]
    table = stacked([fold, *exchanges, mirrored(fold, first + doublings)])
    return Schedule("all_reduce", "recursive_doubling", world_size, 1, Transfers(table))
