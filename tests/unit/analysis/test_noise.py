"""What can be told in spite of noise, and what not."""

from __future__ import annotations

import statistics

import pytest

from syncopate.analysis.evidence.noise import (
    error_s,
    exceeds,
    interval_s,
    outstanding,
    spread_s,
    surely_positive,
)

EVEN = [1.0, 1.1, 0.9, 1.05, 0.95]


def test_the_spread_heeds_no_outliers():
    assert spread_s([*EVEN, 50.0]) == pytest.approx(1.4826 * 0.075)
    assert spread_s([3.0]) == spread_s([]) == 0.0
    assert error_s(EVEN) == pytest.approx(1.2533 * 1.4826 * 0.05 / 5**0.5)


def test_a_rank_exceeds_the_others_by_more_than_the_error():
    more = [value + 0.1 for value in EVEN]
    much = [value + 0.2 for value in EVEN]
    assert not exceeds(more, [EVEN, EVEN, EVEN])
    assert exceeds(much, [EVEN, EVEN, EVEN])
    assert exceeds([2.0, 2.0], [[1.9, 1.9]])
    assert not exceeds(EVEN, [])
    assert not exceeds([], [EVEN])


def test_the_interval_of_a_mean_is_students():
    """Of five values it is 2.776 standard errors to each side; the expansion is 1% off."""
    low_s, high_s = interval_s(EVEN)
    error = statistics.stdev(EVEN) / 5**0.5
    assert (low_s + high_s) / 2 == pytest.approx(1.0)
    assert (high_s - low_s) / 2 == pytest.approx(2.776 * error, rel=0.02)
    assert interval_s([2.0]) == (2.0, 2.0)


def test_a_mean_is_surely_positive_by_three_errors():
    assert surely_positive(EVEN)
    assert not surely_positive([value - 0.95 for value in EVEN])
    assert not surely_positive([])


@pytest.mark.parametrize(
    ("lost_s", "when", "whose"),
    [
        ([0, 0, 9, 0], [[], [], [5], []], (2,)),
        ([2, 1, 9, 0], [[1], [2], [5], []], (2,)),
        ([4, 1, 9, 5], [[1], [2], [5], [6]], None),
        ([9, 0, 8, 0], [[1], [], [5], []], None),
        ([9, 0, 8, 0], [[1], [], [1], []], None),
        ([9, 8, 8, 9], [[1, 4], [1, 4], [1, 4], [1, 4]], (0, 1, 2, 3)),
        ([9, 8, 8, 9], [[1, 4], [2, 4], [1, 6], [5]], None),
        ([9, 0], [[1, 4], []], (0,)),
        ([9, 7], [[1, 4], [2]], None),
        ([9, 1, 8, 0], [[1, 3, 5], [2], [2, 4, 6], []], (0, 2)),
        ([9, 4, 8, 0], [[1, 3, 5], [2], [2, 4, 6], []], None),
        ([9], [[3]], (0,)),
        ([9, 8, 0, 0, 0, 0, 0, 0], [[1], [2], *[[]] * 6], (0, 1)),
        ([0, 0], [[], []], ()),
    ],
)
def test_pauses_are_somebodys_or_noise(lost_s, when, whose):
    assert outstanding(dict(enumerate(lost_s)), dict(enumerate(when))) == whose
