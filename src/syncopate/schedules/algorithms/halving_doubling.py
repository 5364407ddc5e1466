"""Halving and doubling: exchange half of what is left, then of that, and gather it all back.

Recursive halving makes a reduce-scatter: in every round a rank gives away half of the section it
is still reducing and receives the other half. Its mirror, recursive doubling of the section,
makes the all-gather; one after the other they make the all-reduce. Four ranks, all-reduce, with
the share of the buffer that each message carries::

    round 0     0 <-> 1   2 <-> 3     1/2    reduce
    round 1     0 <-> 2   1 <-> 3     1/4    reduce
    round 2     0 <-> 2   1 <-> 3     1/4    copy
    round 3     0 <-> 1   2 <-> 3     1/2    copy

Any p: write p = 2^k m with m odd. The k factors of two are halved as above. The m ranks that then
share one section of m chunks use Träff's circulant scheme: with skips s = ceil(m/2), ceil(s/2),
.., 1, rank j sends the partial sums of the chunks j + s, j + s + 1, .. to rank j + s (both modulo
m), which is the first owner among them; no rank stands aside and no message is sent twice. A
range that wraps around travels as two transfers of one message. m = 1 gives Rabenseifner's
algorithm, k = 0 the circulant one.

Steps and bytes, for every p, each rank sending and receiving as much:

* reduce-scatter, all-gather: ceil(log2 p) rounds, (p - 1)/p n bytes, both the least possible.
* all-reduce: 2 ceil(log2 p) rounds, 2(p - 1)/p n bytes; folding p down to a power of two, the
  usual way out, takes as many rounds but puts nearly 2n bytes more on the longest path.

The all-reduce may leave a sum with any owner in between, so it halves with the nearest ranks
first, where the messages are largest; a power of two of ranks per host keeps them in the host.
Reduce-scatter and all-gather must end and start with chunk r at rank r, and keep every message
contiguous by exchanging with the farthest ranks first.

Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al.
(2005); Träff, "Optimal, non-pipelined reduce-scatter and allreduce
algorithms", arXiv:2410.14234 (2024); Bruck et al., IEEE Trans. Parallel Distrib. Syst. 8 (1997),
for the all-gather; MG-WFBP, Table II.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from syncopate.schedules.base import (
    REDUCE,
    Schedule,
    Table,
    Transfers,
    mirrored,
    rounds_of,
    rows,
    stacked,
)

_Ranks = npt.NDArray[np.int64]


def all_reduce(world_size: int) -> Schedule:
    """Return the halving-doubling all-reduce, nearest ranks first."""
    halving = _halving(world_size, nearest_first=True)
    table = stacked([halving, mirrored(halving, rounds_of(halving))])
    return Schedule("all_reduce", "halving_doubling", world_size, world_size, Transfers(table))


def reduce_scatter(world_size: int) -> Schedule:
    """Return the recursive-halving reduce-scatter; rank r ends with the sum of chunk r."""
    table = _halving(world_size, nearest_first=False)
    return Schedule("reduce_scatter", "recursive", world_size, world_size, Transfers(table))


def all_gather(world_size: int) -> Schedule:
    """Return the recursive-doubling all-gather; rank r starts with chunk r."""
    table = mirrored(_halving(world_size, nearest_first=False))
    return Schedule("all_gather", "recursive", world_size, world_size, Transfers(table))


def _halving(world_size: int, *, nearest_first: bool) -> Table:
    """Return a reduce-scatter of p chunks, each of which one rank ends up owning.

    Args:
        world_size: number of ranks p.
        nearest_first: exchange with the nearest ranks first, and let any rank own any chunk;
            otherwise with the farthest first, and rank r owns chunk r.
    """
    power = world_size & -world_size
    odd = world_size // power
    halvings = power.bit_length() - 1
    near = [1 << k for k in range(halvings)]
    distances = near if nearest_first else [odd * distance for distance in reversed(near)]
    ranks = np.arange(world_size)
    first = np.zeros(world_size, np.int64)
    section = world_size
    tables = []
    for step, distance in enumerate(distances):
        section //= 2
        upper = ranks // distance % 2
        given = first + (1 - upper) * section
        partner = ranks + (1 - 2 * upper) * distance
        tables.append(rows(step, ranks, partner, (given, given + section), REDUCE))
        first = first + upper * section
    stride = power if nearest_first else 1
    return stacked([*tables, *_circulant(odd, stride, first, halvings)])


def _circulant(size: int, stride: int, first: _Ranks, first_round: int) -> list[Table]:
    """Return the rounds in which groups of ``size`` ranks scatter a section of as many chunks.

    Args:
        size: ranks per group, m.
        stride: distance between neighbours of a group.
        first: first chunk of the section of each rank; equal within a group.
        first_round: the round to begin with.
    """
    ranks = np.arange(len(first))
    place = ranks // stride % size
    skips = [size]
    while skips[-1] > 1:
        skips.append((skips[-1] + 1) // 2)
    tables = []
    for step, (before, skip) in enumerate(pairwise(skips), first_round):
        start = (place + skip) % size
        stop = start + before - skip
        dst = ranks + (start - place) * stride
        for low, high in ((start, np.minimum(stop, size)), (np.zeros_like(start), stop - size)):
            tables.append(rows(step, ranks, dst, (first + low, first + high), REDUCE))
    return tables
