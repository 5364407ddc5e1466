"""Sets of time as sorted, disjoint intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals in any order as sorted, disjoint intervals."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersection(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """Return the intersection of two sorted, disjoint lists; touching ends do not intersect."""
    common: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            common.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return common


def without(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """Return one sorted, disjoint list without another."""
    left: list[Interval] = []
    j = 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        free, k = start, j
        while k < len(other) and other[k][0] < end:
            if other[k][0] > free:
                left.append((free, other[k][0]))
            free = max(free, other[k][1])
            k += 1
        if free < end:
            left.append((free, end))
    return left


def near(disjoint: list[Interval], start: float, end: float) -> list[Interval]:
    """Return those of sorted, disjoint intervals that may overlap a stretch."""
    first = bisect_left(disjoint, start, key=lambda interval: interval[1])
    return disjoint[first : bisect_right(disjoint, end, lo=first, key=lambda one: one[0])]


def common_s(disjoint: list[Interval], start: float, end: float) -> float:
    """Return how much of a stretch is in sorted, disjoint intervals, in seconds."""
    return (
        length_s(intersection(near(disjoint, start, end), [(start, end)])) if start < end else 0.0
    )


def length_s(disjoint: Iterable[Interval]) -> float:
    """Return the total length of disjoint intervals in seconds."""
    return sum(end - start for start, end in disjoint)
