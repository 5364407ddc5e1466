"""Jumps: where a rank's clock leapt, by what the ranks did together.

Nothing that ranks do together ends on one before it began on all others, so each iteration bounds
from both sides how far a rank's clock is from rank 0's. Bounds of one iteration that exclude those
of the iterations before say that a clock leapt between them: a host was suspended or moved, or its
time was set. What is before and what is behind are on two clocks; figures of both at once are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from syncopate.artifacts.timeline import Span
from syncopate.tracing.merge import Bounds, bounds_of_each

_SLACK_S = 0.01
"""By how much bounds may exclude each other: clocks drift."""


class Jump(NamedTuple):
    """A leap of a clock.

    Attributes:
        rank: whose; of two ranks either may have leapt.
        iteration: the first that is wholly or partly behind it.
        by_s: how far, about; forward where positive.
    """

    rank: int
    iteration: int
    by_s: float


def jumps(spans: Sequence[Sequence[Span]], together: Sequence[str]) -> list[Jump]:
    """Return where clocks leapt, by iteration.

    Args:
        spans: per rank, its spans on its own clock.
        together: lanes of which nothing ends on a rank before it began on all others.
    """
    each = bounds_of_each(spans, together)
    if not any(_exclude(float(b.low_s.max()), float(b.high_s.min())) for b in each if len(b[0])):
        return []
    by_iteration = [_by_iteration(one) for one in each]
    unbounded = [(-math.inf, math.inf)] * len(each)
    found: list[Jump] = []
    before = unbounded
    for number in sorted(set().union(*by_iteration)):
        now = [mine.get(number, (-math.inf, math.inf)) for mine in by_iteration]
        both = [
            (max(low_s, old_low_s), min(high_s, old_high_s))
            for (old_low_s, old_high_s), (low_s, high_s) in zip(before, now, strict=True)
        ]
        leapt = [
            Jump(rank, number, _by_s(before[rank], now[rank]))
            for rank, bounds in enumerate(both)
            if _exclude(*bounds)
        ]
        found += _blamed(leapt, len(each))
        before = unbounded if leapt else both
    return found


def _exclude(low_s: float, high_s: float) -> bool:
    return low_s > high_s + _SLACK_S


def _by_iteration(one: Bounds) -> dict[int, tuple[float, float]]:
    """Return the bounds of each iteration."""
    order = np.argsort(one.iteration, kind="stable")
    numbers, first = np.unique(one.iteration[order], return_index=True)
    if not len(numbers):
        return {}
    low_s = np.maximum.reduceat(one.low_s[order], first).tolist()
    high_s = np.minimum.reduceat(one.high_s[order], first).tolist()
    return dict(zip(numbers.tolist(), zip(low_s, high_s, strict=True), strict=True))


def _by_s(before: tuple[float, float], now: tuple[float, float]) -> float:
    """Return how far a clock leapt: in the midst of an iteration by what its bounds say alone."""
    if _exclude(*now) or not all(map(math.isfinite, before)):
        return now[0] - now[1]
    return (sum(now) - sum(before)) / 2


def _blamed(leapt: Sequence[Jump], world_size: int) -> Sequence[Jump]:
    """Return those whose clocks leapt: rank 0, where all others seem to have."""
    if world_size > 2 and len(leapt) == world_size - 1:
        return [Jump(0, leapt[0].iteration, -leapt[0].by_s)]
    return leapt


def longest_row(numbers: Iterable[int], found: Iterable[Jump]) -> tuple[int, int] | None:
    """Return the first and last of the most iterations that are on one clock; None: there are none.

    Of several such rows it is the last. An iteration in which a clock leapt is in none.

    Args:
        numbers: of the iterations.
        found: the jumps.
    """
    bad = {jump.iteration for jump in found}
    rows: list[list[int]] = [[]]
    for number in sorted(set(numbers)):
        if number in bad:
            rows.append([])
        else:
            rows[-1].append(number)
    best = max(reversed(rows), key=len)
    return (best[0], best[-1]) if best else None
