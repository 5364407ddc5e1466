"""Errors: how far predictions were off, and the intervals that follow.

The error of a point is its prediction over its measurement, minus one. Of several points count the
median and the 90th percentile of the errors' sizes, and the worst.

An interval is about the other ratio, of measurement over prediction: 5% of the points lie below its
lower end and 5% above its upper one (the quantiles at (n + 1) p, which n points estimate without
bias). A point that is in the sample from which the interval was made is no test of it. So coverage
is counted leaving one out: each point is held to the interval of all the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from syncopate.analysis.evidence.noise import quantile
from syncopate.errors import InvalidValueError
from syncopate.validation.point import Point

LEAST_POINTS = 20
"""So many points are needed before 5% of them means anything."""


class Errors(NamedTuple):
    """How far some predictions were off.

    Attributes:
        points: how many.
        median: of the errors' sizes.
        p90: their 90th percentile.
        worst: the point that was furthest off.
    """

    points: int
    median: float
    p90: float
    worst: Point


class Interval(NamedTuple):
    """The interval of a measurement over its prediction.

    Attributes:
        low: 5% of the measurements were below this part of their prediction.
        high: 5% were above this one.
    """

    low: float
    high: float

    def holds(self, point: Point) -> bool:
        """Say whether a measurement lies in the interval of its prediction."""
        return self.low <= point.ratio <= self.high


def errors_of(points: Sequence[Point]) -> Errors:
    """Return how far predictions were off.

    Raises:
        InvalidValueError: no points.
    """
    if not points:
        raise InvalidValueError("points", (), "at least one")
    sizes = sorted(abs(point.error) for point in points)
    p90 = sizes[-1] if len(sizes) < 2 else quantile(sizes, 0.9)
    worst = max(points, key=lambda point: abs(point.error))
    return Errors(len(points), statistics.median(sizes), p90, worst)


def errors_by(points: Sequence[Point], key: Callable[[Point], str]) -> dict[str, Errors]:
    """Return the errors of the points of each key, in the order in which keys appear."""
    keys = dict.fromkeys(key(point) for point in points)
    return {name: errors_of([p for p in points if key(p) == name]) for name in keys}


def interval_of(points: Sequence[Point]) -> Interval | None:
    """Return the interval that 90% of measurements lie in; None for fewer than 20 points."""
    if len(points) < LEAST_POINTS:
        return None
    ratios = sorted(point.ratio for point in points)
    parts = statistics.quantiles(ratios, n=20, method="exclusive")
    return Interval(parts[0], parts[-1])


def covered(points: Sequence[Point]) -> tuple[int, int] | None:
    """Return how many points lie in the interval of all, and in that of all others.

    None for fewer points than another one than an interval takes.
    """
    if len(points) <= LEAST_POINTS:
        return None
    whole = interval_of(points)
    assert whole is not None
    others = [interval_of([*points[:i], *points[i + 1 :]]) for i in range(len(points))]
    apart = sum(
        other is not None and other.holds(point)
        for point, other in zip(points, others, strict=True)
    )
    return sum(whole.holds(point) for point in points), apart
