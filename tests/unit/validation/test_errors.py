"""Errors: medians, percentiles, intervals and coverage, by hand."""

from __future__ import annotations

import pytest

from syncopate.errors import InvalidValueError
from syncopate.validation.errors import Interval, covered, errors_by, errors_of, interval_of
from tests.unit.validation.made import point


def test_errors_are_of_predictions_over_measurements():
    points = [point(1 / (1 + error)) for error in (0.01, -0.02, 0.03, -0.10)]
    found = errors_of(points)
    assert (found.points, found.median) == (4, pytest.approx(0.025))
    assert found.p90 == pytest.approx(0.03 + 0.7 * 0.07)  # at 2.7 of 0, 1, 2, 3
    assert found.worst is points[3]


def test_a_single_point_is_all_there_is():
    found = errors_of([point(1.25)])
    assert (found.median, found.p90) == (pytest.approx(0.2), pytest.approx(0.2))
    with pytest.raises(InvalidValueError, match="at least one"):
        errors_of([])


def test_errors_of_each_exchange_are_apart():
    points = [point(1.25, exchange="sharded"), point(1.0), point(1.0001, exchange="sharded")]
    found = errors_by(points, lambda p: p.exchange)
    assert list(found) == ["sharded", "allreduce"]
    assert (found["sharded"].points, found["allreduce"].median) == (2, 0.0)


def test_an_interval_leaves_a_twentieth_on_either_side():
    """Of 39 points the quantiles at 5% and 95% of 40 are the second and the last but one."""
    points = [point(1 + index / 100) for index in range(39)]
    interval = interval_of(points)
    assert interval == pytest.approx((1.01, 1.37))
    # All but the two at the ends; without any inner one these are the second ones of the others.
    assert covered(points) == (37, 35)


def test_few_points_make_no_interval():
    points = [point(1 + index / 100) for index in range(20)]
    assert interval_of(points[:19]) is None
    assert interval_of(points) is not None
    assert covered(points) is None


def test_an_interval_holds_its_ends():
    interval = Interval(0.5, 2.0)
    assert [interval.holds(point(r)) for r in (0.49, 0.5, 2.0, 2.01)] == [False, True, True, False]
