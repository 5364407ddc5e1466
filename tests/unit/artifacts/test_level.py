"""Level: which unit holds what, where units are equal and where not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.level import Level, sizes_text, unit_counts
from syncopate.errors import InvalidValueError
from tests.unit.strategies import fan_outs


def level(size: Any) -> Level:
    return Level(name="host", size=size, latency_s=1e-5, bandwidth_bytes_per_s=1e9)


def test_units_are_counted_from_the_outermost_level_down():
    assert unit_counts(()) == (1,)
    assert unit_counts((level(4), level(3))) == (12, 3, 1)
    levels = (level((2, 1, 1)), level((1, 2)), level(2))
    assert unit_counts(levels) == (4, 3, 2, 1)
    assert sizes_text(levels) == "2+1+1 x 1+2 x 2"


def test_a_unit_holds_what_is_placed_in_it():
    racks = level((3, 5))
    assert [racks.place(host) for host in (0, 2, 3, 7)] == [(0, 0), (0, 2), (1, 0), (1, 4)]
    assert (racks.held(0), racks.held(1)) == (range(3), range(3, 8))
    assert (racks.largest, racks.joins, racks.equal_size) == (5, True, None)
    equal = level(4)
    assert (equal.place(6), equal.held(1), equal.equal_size) == ((1, 2), range(4, 8), 4)
    assert not level(1).joins


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).flatmap(fan_outs))
def test_every_unit_is_in_one_of_the_next_level(sizes):
    levels = [level(size) for size in sizes]
    counts = unit_counts(levels)
    for one, joined, units in zip(levels, counts, counts[1:], strict=False):
        held = [number for unit in range(units) for number in one.held(unit)]
        assert held == list(range(joined))
        for number in range(joined):
            unit, which = one.place(number)
            assert one.held(unit)[which] == number


@pytest.mark.parametrize("size", [0, -1, (), (3,), (4, 4), (2, 0)])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(InvalidValueError, match=r"size is .* where units are unequal"):
        level(size)


def test_sizes_of_another_number_of_units_are_refused():
    with pytest.raises(InvalidValueError, match=r"'2\+3'; it must be one size for each unit of it"):
        unit_counts((level((2, 3)), level(4)))
