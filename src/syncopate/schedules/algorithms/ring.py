"""Ring: every rank sends to its right neighbour and receives from its left, one chunk at a time.

The buffer is cut into p chunks. Chunk c sets out at rank c + 1, collects one contribution per hop
and is complete after p - 1 hops at rank c (reduce-scatter); then it goes once more round the ring
(all-gather). Four ranks, the chunk each one sends in rounds 0, 1, 2::

        reduce-scatter            all-gather
    rank 0: 3, 2, 1           rank 0: 0, 3, 2         0 -> 1
    rank 1: 0, 3, 2           rank 1: 1, 0, 3         ^    |
    rank 2: 1, 0, 3           rank 2: 2, 1, 0         |    v
    rank 3: 2, 1, 0           rank 3: 3, 2, 1         3 <- 2

Steps and bytes (p ranks, n bytes, each rank sends and receives as much):

* reduce-scatter, all-gather: p - 1 rounds, (p - 1)/p n bytes.
* all-reduce: 2(p - 1) rounds, 2(p - 1)/p n bytes, which no algorithm can undercut.

The same holds for every p, power of two or not. Every rank only ever talks to two others, so on a
cluster of several levels only the ranks at an edge cross the slow links.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69 (2009); MG-WFBP, Table II.
"""

from __future__ import annotations

import numpy as np

from syncopate.schedules.base import COPY, REDUCE, Schedule, Table, Transfers, rows, stacked


def all_reduce(world_size: int) -> Schedule:
    """Return the ring all-reduce: the reduce-scatter, then the all-gather."""
    half = world_size - 1
    table = stacked(
        [
            _turn(world_size, first_round=0, offset=-1, op=REDUCE),
            _turn(world_size, first_round=half, offset=0, op=COPY),
        ]
    )
    return Schedule("all_reduce", "ring", world_size, world_size, Transfers(table))


def reduce_scatter(world_size: int) -> Schedule:
    """Return the ring reduce-scatter; rank r ends with the sum of chunk r."""
    table = _turn(world_size, first_round=0, offset=-1, op=REDUCE)
    return Schedule("reduce_scatter", "ring", world_size, world_size, Transfers(table))


def all_gather(world_size: int) -> Schedule:
    """Return the ring all-gather; rank r starts with chunk r."""
    table = _turn(world_size, first_round=0, offset=0, op=COPY)
    return Schedule("all_gather", "ring", world_size, world_size, Transfers(table))


def _turn(world_size: int, *, first_round: int, offset: int, op: int) -> Table:
    """Return p - 1 rounds; in round k rank r sends chunk ``r + offset - k`` to its right."""
    ranks = np.arange(world_size, dtype=np.int32)
    step = np.arange(world_size - 1, dtype=np.int32)[:, None]
    chunk = (ranks + offset - step) % world_size
    return rows(first_round + step, ranks, (ranks + 1) % world_size, (chunk, chunk + 1), op)
