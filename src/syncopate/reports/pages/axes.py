"""Axes: where values stand in a plot, in percent, so that a page draws it at any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_MOST = 6
"""Marks of an axis."""


class Axis(NamedTuple):
    """From values to percent of a plot.

    Attributes:
        low: at 0%.
        high: at 100%.
        is_log: whether it is logarithmic; then both are positive.
    """

    low: float
    high: float
    is_log: bool = False

    @property
    def decades(self) -> float:
        """How often ten the ends are apart."""
        return math.log10(self.high / self.low)

    def at(self, value: float) -> float:
        """Return where a value stands, in percent; beyond an end it stands there."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        if high <= low:
            return 50.0
        return round(100 * min(max((value - low) / (high - low), 0.0), 1.0), 3)

    def holds(self, value: float) -> bool:
        """Return whether a value is on the axis."""
        return self.low <= value <= self.high

    def marks(self, candidates: Sequence[float]) -> Sequence[float]:
        """Return some of the candidates on the axis, evenly thinned."""
        return thinned([value for value in candidates if self.holds(value)])


def thinned(marks: Sequence[T]) -> Sequence[T]:
    """Return as many of the marks as an axis has room for, evenly from all."""
    return marks[:: max(math.ceil(len(marks) / _MOST), 1)]


def log_axis(values: Sequence[float], room: float) -> Axis:
    """Return a logarithmic axis over positive values, its ends ``room`` times as far apart."""
    return Axis(min(values) / math.sqrt(room), max(values) * math.sqrt(room), True)
