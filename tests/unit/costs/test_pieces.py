"""Pieces and lower envelopes, held against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncopate.costs.model.pieces import Pieces, highest, lower_envelope
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


# Below the smallest normal number, rounding is to a fixed step: pieces may go down by one.
SUBNORMAL = [
    Pieces.of([np.inf], [5e-324], [1e-3]),
    Pieces.of([3.0, np.inf], [0.0, 1.5e-323], [5e-324, 0.0]),
    Pieces.of([np.inf], [1e-323], [0.0]),
]


@given(st.lists(any_pieces(), min_size=1, max_size=4))
@example(SUBNORMAL)
def test_the_envelope_is_the_minimum_everywhere(costs: list[Pieces]) -> None:
    envelope = lower_envelope(costs)
    values = np.array([cost(SIZES) for cost in costs])
    assert envelope(SIZES) == pytest.approx(values.min(axis=0), rel=1e-9, abs=1e-9)
    owners = envelope.owner[envelope.index(SIZES[1:])]
    owned = values[owners, np.arange(1, len(SIZES))]
    assert owned == pytest.approx(values[:, 1:].min(axis=0), rel=1e-9, abs=1e-9)


@given(st.lists(any_pieces(), min_size=1, max_size=4))
@example(SUBNORMAL)
def test_the_highest_is_the_maximum_everywhere(costs: list[Pieces]) -> None:
    values = np.array([cost(SIZES) for cost in costs])
    assert highest(costs)(SIZES) == pytest.approx(values.max(axis=0), rel=1e-9, abs=1e-9)


def test_lines_that_cross_beyond_all_sizes_do_not_change_hands() -> None:
    """Their difference there is less than rounding, and would decide who owns the whole piece."""
    line = Pieces.of([np.inf], [0.0], [7.5e-10])
    above = Pieces.of([2.0**30, np.inf], [2e-5, 2e-5], [7.5e-10, np.nextafter(7.5e-10, 0)])
    assert highest([line, above])(2.0**31) == above(2.0**31)
    assert lower_envelope([above, line])(2.0**31) == line(2.0**31)


@given(any_pieces(), st.floats(0, 1e-2))
def test_at_least_so_much_per_byte(pieces: Pieces, s_per_byte: float) -> None:
    held = pieces.at_least(s_per_byte)
    expected = np.maximum(pieces(SIZES), s_per_byte * SIZES)
    assert held(SIZES) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert pieces.at_least(0.0) is pieces


def test_at_least_keeps_owners() -> None:
    cheapest = lower_envelope(
        [Pieces.of([np.inf], [1.0], [1.0]), Pieces.of([np.inf], [6.0], [0.1])]
    )
    held = cheapest.at_least(1.5)
    sizes = np.array([1.0, 5.0, 8.0, 100.0])
    assert held(sizes).tolist() == [2.0, 7.5, 12.0, 150.0]
    assert held.owner[held.index(sizes)].tolist() == [0, 0, 1, 1]


@given(any_pieces(), any_pieces(), st.sampled_from([0.0, 1.0, 3e5, 1e9]))
# One byte of the steeper is no dearer to the last bit; a hundred million of them are.
@example(Pieces.of([np.inf], [2.0], [0.0]), Pieces.of([np.inf], [2.0], [2.0**-52]), 0.0)
def test_one_cost_up_to_a_size_and_another_beyond(
    inside: Pieces, beyond: Pieces, limit: float
) -> None:
    joined = inside.up_to(limit, highest([inside, beyond]))
    expected = np.where(limit >= SIZES, inside(SIZES), np.maximum(inside(SIZES), beyond(SIZES)))
    assert joined(SIZES) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(any_pieces())
def test_costs_never_decrease(pieces: Pieces) -> None:
    values = pieces(np.sort(SIZES))
    assert (np.diff(values) >= 0).all()
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


@pytest.mark.parametrize("uppers", [[], [0.0], [np.inf], [1.0, np.inf], [0.0, 9.0]])
def test_refuses_pieces_that_do_not_cover_every_size(uppers: list[float]) -> None:
    nothing = np.zeros(len(uppers))
    with pytest.raises(InvalidValueError, match="strictly ascending from 0 to infinity"):
        Pieces(np.array(uppers), nothing, nothing, nothing.astype(np.int64))


@pytest.mark.parametrize("nbytes", [-1.0, np.nan, np.inf])
def test_refuses_sizes_that_are_none(nbytes: float) -> None:
    with pytest.raises(InvalidValueError, match="nbytes"):
        Pieces.of([np.inf], [1.0], [1.0])([1.0, nbytes])


def test_an_envelope_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one"):
        lower_envelope([])


@given(any_pieces(), st.one_of(st.sampled_from(SIZES.tolist()), st.floats(0, 1e9)))
@settings(max_examples=50)
def test_one_message_costs_the_same_to_the_last_bit(pieces: Pieces, nbytes: float) -> None:
    for size in (nbytes, *pieces.upper_bytes[:-1].tolist()):
        assert pieces.at(size) == pieces(size)
        assert pieces.index_at(size) == pieces.index(size)


@pytest.mark.parametrize("nbytes", [-1.0, float("nan"), float("inf")])
def test_a_message_has_a_size(nbytes: float) -> None:
    with pytest.raises(InvalidValueError, match="finite and >= 0"):
        Pieces.of([np.inf], [1.0], [1.0]).at(nbytes)


def test_the_first_fall_is_named() -> None:
    with pytest.raises(
        InvalidValueError, match=r"just above 200 bytes is 2\.0; .*up to there it is 3 s"
    ):
        Pieces.of([100, 200, 300, np.inf], [1.0, 3.0, 2.0, 1.0], [0.0] * 4)
