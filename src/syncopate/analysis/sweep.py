"""Sweeps: sets of time of many ranks and iterations at once, as arrays.

What one rank's sets of time come to, :mod:`syncopate.analysis.intervals` says more simply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis import intervals
from syncopate.analysis.intervals import Interval
from syncopate.artifacts.timelines.spans import Mask, Numbers, Spans, Times


class Pieces(NamedTuple):
    """Stretches within which nothing begins or ends, by group, then time; none is empty.

    Attributes:
        group: whose.
        start_s: when each begins.
        end_s: when each ends.
        counts: for each kind of intervals, how many are under way.
    """

    group: Numbers
    start_s: Times
    end_s: Times
    counts: tuple[Numbers, ...]


def pieces(
    group: NDArray[Any],
    start_s: Times,
    end_s: Times,
    kinds: Sequence[Mask | slice] = (slice(None),),
) -> Pieces:
    """Return the pieces into which the bounds of intervals cut the time of their groups.

    Args:
        group: of each interval.
        start_s: of each.
        end_s: of each.
        kinds: for each kind, which intervals are of it; one kind for all when left out.
    """
    time_s, of = np.concatenate([start_s, end_s]), np.concatenate([group, group])
    order = np.lexsort((time_s, of))
    time_s, of = time_s[order], of[order]
    true = np.flatnonzero((time_s[1:] > time_s[:-1]) & (of[1:] == of[:-1]))
    counts = []
    for kind in kinds:
        one = np.zeros(len(start_s), np.int64)
        one[kind] = 1
        counts.append(np.cumsum(np.concatenate([one, -one])[order])[true])
    return Pieces(of[true].astype(np.int64), time_s[true], time_s[true + 1], tuple(counts))


def lengths_s(found: Pieces, chosen: Mask, groups: int) -> Times:
    """Return for each of so many groups the length of some pieces together."""
    lasts_s = np.where(chosen, found.end_s - found.start_s, 0.0)
    return np.bincount(found.group, lasts_s, groups).astype(np.float64)


def runs(values: NDArray[Any]) -> Numbers:
    """Return where in a sorted array each distinct value stands first."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([np.zeros(min(len(values), 1), np.int64), changes])


def groups(values: NDArray[Any]) -> Iterator[tuple[int, Numbers]]:
    """Yield each distinct value of an array, ascending, and its places, ascending."""
    order = np.argsort(values, kind="stable")
    first = runs(values[order])
    yield from zip(values[order[first]].tolist(), np.split(order, first[1:]), strict=False)


def union(spans: Spans, chosen: Mask | Numbers) -> list[Interval]:
    """Return when at least one of some spans is under way, as sorted, disjoint intervals."""
    start_s, end_s = spans.start_s[chosen], spans.end_s[chosen]
    order = np.argsort(start_s, kind="stable")
    start_s, until_s = start_s[order], np.maximum.accumulate(end_s[order])
    apart = np.flatnonzero(start_s[1:] > until_s[:-1])
    first = [0, *(apart + 1).tolist()] if len(order) else []
    last = [*apart.tolist(), len(order) - 1] if len(order) else []
    return list(zip(start_s[first].tolist(), until_s[last].tolist(), strict=True))


def common_s(disjoint: list[Interval], start_s: Times, end_s: Times) -> Times:
    """Return how much of each of many stretches is in sorted, disjoint intervals, in seconds."""
    found = np.zeros(len(start_s))
    for place in np.flatnonzero(shared(disjoint, start_s, end_s)).tolist():
        found[place] = intervals.common_s(disjoint, float(start_s[place]), float(end_s[place]))
    return found


def shared(disjoint: Sequence[Interval], start_s: Times, end_s: Times) -> Mask:
    """Say which stretches have sorted, disjoint intervals in their midst, or a part of one."""
    begins_s, ends_s = np.array(disjoint, np.float64).reshape(-1, 2).T
    place = np.searchsorted(ends_s, start_s, "right")
    return np.asarray((np.append(begins_s, np.inf)[place] < end_s) & (start_s < end_s))
