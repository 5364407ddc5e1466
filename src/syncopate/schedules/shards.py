"""Shards: which rank owns what of every bucket, where not every tensor may be cut.

The ranks' shards of one flat buffer lie one behind the other, in the order of the ranks. Tensors
that must stay whole are given away first, over all buckets together: longest first, each to the
rank with the fewest bytes so far (Graham 1969, LPT). Then what may be cut levels the ranks out: it
is poured on those with the fewest bytes until all stand equally high, and every buffer of it is cut
in the same proportions, so that no collective is more uneven than the others.

So no rank has more than a p-th of all bytes and one largest whole tensor, and without whole tensors
all shards are equal. Everything is counted in integers: every rank comes to the same result.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import accumulate

from syncopate.schedules.base import chunk_offsets


def whole_owners(nbytes: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Return the rank that owns each of some tensors that stay whole.

    Args:
        nbytes: of every such tensor of a plan.
        world_size: number of ranks.

    Example:
        >>> whole_owners([4, 9, 5, 1], 2)
        (1, 0, 1, 0)
    """
    ranks = [(0, rank) for rank in range(world_size)]
    found = [0] * len(nbytes)
    for index in sorted(range(len(nbytes)), key=lambda index: -nbytes[index]):
        load, rank = ranks[0]
        heapq.heapreplace(ranks, (load + nbytes[index], rank))
        found[index] = rank
    return tuple(found)


def levelling(loads: Sequence[int], nbytes: int) -> tuple[int, ...]:
    """Return in which proportions bytes that may be cut level out what the ranks have already.

    Args:
        loads: bytes that each rank owns of tensors that stay whole.
        nbytes: all that may be cut.

    Example:
        >>> levelling([6, 0, 3], 12)
        (3, 21, 12)
    """
    ascending = sorted(loads)
    for count, load in reversed(list(enumerate(ascending, 1))):
        # These stand equally high when they have shared it out, unless one stood higher before.
        level = nbytes + sum(ascending[:count])
        if level >= count * load:
            return tuple(max(0, level - count * own) for own in loads)
    raise AssertionError("one rank alone can take everything")


def cut_by(numel: int, proportions: Sequence[int]) -> tuple[int, ...]:
    """Return the bounds of shards of a buffer that may be cut anywhere.

    Equal proportions give the balanced cut of collectives.

    Example:
        >>> cut_by(12, [3, 21, 12])
        (0, 1, 8, 12)
    """
    if len(set(proportions)) == 1:
        return chunk_offsets(numel, len(proportions))
    total = sum(proportions)
    return (0, *(numel * upto // total for upto in accumulate(proportions)))


def cut_between(numels: Sequence[int], owners: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Return the bounds of shards of a buffer of whole tensors, which lie in order of their owners.

    Args:
        numels: elements of each tensor.
        owners: the rank that owns each of them, never decreasing.
        world_size: number of ranks.

    Example:
        >>> cut_between([2, 3, 4], [0, 2, 2], 4)
        (0, 2, 2, 9, 9)
    """
    assert list(owners) == sorted(owners)
    found = [0] * world_size
    for numel, owner in zip(numels, owners, strict=True):
        found[owner] += numel
    return (0, *accumulate(found))


def adjoined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending ranges without empty ones, and with those made one that follow each other.

    Example:
        >>> adjoined([(0, 2), (2, 5), (6, 6), (7, 9)])
        [(0, 5), (7, 9)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif stop > start:
            found.append((start, stop))
    return found
