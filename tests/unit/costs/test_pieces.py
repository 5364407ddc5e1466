"""Pieces and lower envelopes, held against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.costs.pieces import Pieces, lower_envelope
from syncopate.errors import InvalidValueError


@st.composite
def any_pieces(draw: st.DrawFn) -> Pieces:
    """Draw continuous or jumping pieces: slopes, lengths and jumps upwards."""
    count = draw(st.integers(1, 5))
    positive = st.floats(1.0, 1e6)
    uppers = np.cumsum([draw(positive) for _ in range(count)])
    level, low = draw(st.floats(0, 10)), 0.0
    intercepts, slopes = [], []
    for upper in uppers.tolist():
        slope = draw(st.floats(0, 1e-3))
        intercepts.append(level - slope * low)
        slopes.append(slope)
        level += slope * (upper - low) + draw(st.sampled_from([0.0, 1.0]))
        low = upper
    return Pieces.of(uppers, intercepts, slopes)


SIZES = np.concatenate(([0.0], np.geomspace(1, 1e8, 60), np.arange(1, 40) * 1e5))


@given(st.lists(any_pieces(), min_size=1, max_size=4))
def test_the_envelope_is_the_minimum_everywhere(costs: list[Pieces]) -> None:
    envelope = lower_envelope(costs)
    values = np.array([cost(SIZES) for cost in costs])
    assert envelope(SIZES) == pytest.approx(values.min(axis=0), rel=1e-9, abs=1e-9)
    owners = envelope.owner[envelope.index(SIZES[1:])]
    owned = values[owners, np.arange(1, len(SIZES))]
    assert owned == pytest.approx(values[:, 1:].min(axis=0), rel=1e-9, abs=1e-9)


@given(any_pieces())
def test_costs_never_decrease(pieces: Pieces) -> None:
    values = pieces(np.sort(SIZES))
    assert (np.diff(values) >= -1e-9 * values[1:]).all()
    assert values[0] == 0


def test_a_piece_holds_up_to_and_including_its_end() -> None:
    staircase = Pieces.of([10, 20], [1.0, 2.0], [0.0, 0.0])
    assert staircase([0, 1, 10, 11, 20, 1e9]).tolist() == [0, 1, 1, 2, 2, 2]


@given(any_pieces(), any_pieces())
def test_never_above_is_what_it_says(one: Pieces, other: Pieces) -> None:
    raised = Pieces.of(one.upper_bytes[1:], one.intercept_s[1:] + 0.5, one.slope_s_per_byte[1:])
    assert one.never_above(one)
    assert one.never_above(raised)
    assert not raised.never_above(one)
    ends = np.union1d(one.upper_bytes, other.upper_bytes)[:-1]
    sizes = np.concatenate((ends, np.nextafter(ends, np.inf), SIZES))
    if one.never_above(other):
        assert (one(sizes) <= other(sizes) + 1e-9).all()


def test_at_a_tie_the_first_wins() -> None:
    same = Pieces.of([np.inf], [1.0], [1.0])
    assert lower_envelope([same, same]).owner.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("uppers", "intercepts", "slopes", "message"),
    [
        ([20, 10, 30], [0, 0, 0], [0, 0, 0], "ascending"),
        ([10, 20], [0, 0], [0, -1], "slopes >= 0"),
        ([10, 20], [0, np.nan], [0, 0], "finite"),
        ([10, 20], [5, 1], [0, 0], "non-decreasing"),
        ([10], [-1], [0], "non-decreasing"),
    ],
)
def test_refuses_what_is_no_cost(
    uppers: list[float], intercepts: list[float], slopes: list[float], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Pieces.of(uppers, intercepts, slopes)


@pytest.mark.parametrize("nbytes", [-1.0, np.nan, np.inf])
def test_refuses_sizes_that_are_none(nbytes: float) -> None:
    with pytest.raises(InvalidValueError, match="nbytes"):
        Pieces.of([np.inf], [1.0], [1.0])([1.0, nbytes])


def test_an_envelope_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one"):
        lower_envelope([])
