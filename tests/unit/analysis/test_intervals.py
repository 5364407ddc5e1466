"""Sets of time against sets of unit cells: the same union, intersection and length."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from syncopate.analysis.intervals import Interval, intersection, length_s, near, union, without

LISTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12).map(
    lambda found: [(start, start + length) for start, length in found]
)
"""Intervals in any order; some are empty, some touch, some hold others."""


def cells(intervals: list[Interval]) -> set[int]:
    return {cell for start, end in intervals for cell in range(int(start), int(end))}


@given(LISTS)
def test_a_union_covers_the_same_sorted_and_disjoint(intervals: list[Interval]) -> None:
    found = union(intervals)
    assert cells(found) == cells(intervals)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    assert length_s(found) == len(cells(intervals))


@given(LISTS, LISTS)
def test_an_intersection_is_what_both_cover(one: list[Interval], other: list[Interval]) -> None:
    found = intersection(union(one), union(other))
    assert cells(found) == cells(one) & cells(other)
    assert all(start < end for start, end in found)
    assert length_s(found) == len(cells(found))


@given(LISTS, LISTS)
def test_a_difference_is_what_the_first_covers_alone(
    one: list[Interval], other: list[Interval]
) -> None:
    found = without(union(one), union(other))
    assert cells(found) == cells(one) - cells(other)
    assert all(start < end for start, end in found)


@given(LISTS, st.integers(0, 30), st.integers(0, 6))
def test_what_is_near_a_stretch_holds_all_of_it(
    intervals: list[Interval], start: int, length: int
) -> None:
    disjoint, stretch = union(intervals), [(start, start + length)]
    assert intersection(near(disjoint, *stretch[0]), union(stretch)) == intersection(
        disjoint, union(stretch)
    )
