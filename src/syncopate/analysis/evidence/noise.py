"""Noise: how much iterations differ by themselves, and which differences are significant.

The spread of values is 1.4826 times the median of their distances from their median, which of
normally distributed values is their standard deviation, and heeds no outliers. The median of n such
values has a standard error of 1.2533 times the spread over the root of n.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from syncopate.artifacts.timelines.spans import Times

SURE, LIKELY = 3.0, 2.0
"""What differs by this many standard errors differs; where something else says so too, so many are
enough."""

_SPREAD, _OF_MEDIAN = 1.4826, 1.2533
_SIMILAR = 0.5
_SAME, _FEW = 0.75, 0.25
_OFTEN, _HALF, _LITTLE = 3, 0.5, 0.25


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the quantile at ``share``, interpolated linearly between the values."""
    at = share * (len(ascending) - 1)
    below = int(at)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (at - below) * (ascending[above] - ascending[below])


def spread_s(values_s: Sequence[float] | Times) -> float:
    """Return the spread of values; 0 of fewer than two."""
    if len(values_s) < 2:
        return 0.0
    every_s = np.asarray(values_s)
    return _SPREAD * float(np.median(np.abs(every_s - np.median(every_s))))


def error_s(values_s: Sequence[float]) -> float:
    """Return the standard error of the median of values."""
    return _OF_MEDIAN * spread_s(values_s) / math.sqrt(len(values_s)) if values_s else 0.0


def exceeds(own_s: Sequence[float], others_s: Iterable[Sequence[float]]) -> bool:
    """Say whether one rank's median is surely above the median of the other ranks' medians.

    Args:
        own_s: the rank's values, one for each iteration.
        others_s: those of each other rank.
    """
    theirs = [values for values in others_s if values]
    if not own_s or not theirs:
        return False
    middle_s = statistics.median(map(statistics.median, theirs))
    doubt_s = math.hypot(error_s(own_s), statistics.median(map(error_s, theirs)))
    return statistics.median(own_s) - middle_s > SURE * doubt_s


def surely_positive(
    values_s: Sequence[float],
    among: int = 1,
    spreads_s: Sequence[float] = (),
    *,
    sure: float = SURE,
) -> bool:
    """Say whether the mean of values, one for each iteration, is above 0 by more than its error.

    Args:
        values_s: the values.
        among: of how many ranks they may be: of many one is far off by chance.
        spreads_s: how other ranks' values vary: where they say more, few values are as sure.
        sure: by so many standard errors.
    """
    if not values_s:
        return False
    mean_s, free = statistics.fmean(values_s), len(values_s) - 1
    if free < 1:
        return mean_s > 0
    spread = statistics.stdev(values_s)
    if spreads_s:
        spread = max(spread, statistics.median(spreads_s))
        free += free * len(spreads_s) // 2
    errors = _student(math.sqrt(sure**2 + 2 * math.log(max(among, 1))), free)
    return mean_s > errors * spread / math.sqrt(len(values_s))


def _student(normal: float, free: int) -> float:
    """Return Student's quantile for that of a normal distribution, by its expansion."""
    first = (normal**3 + normal) / 4
    second = (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96
    return normal + first / free + second / free**2


def interval_s(values_s: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean of values, one for each iteration."""
    mean_s, free = statistics.fmean(values_s), len(values_s) - 1
    if free < 1:
        return mean_s, mean_s
    doubt_s = _student(1.96, free) * statistics.stdev(values_s) / math.sqrt(len(values_s))
    return mean_s - doubt_s, mean_s + doubt_s


def outstanding(
    lost_s: Mapping[int, float], when: Mapping[int, Iterable[int]]
) -> tuple[int, ...] | None:
    """Return the ranks whose pauses are their own, or None where pauses are anywhere: noise.

    They are their own where a quarter of the ranks, or a single one, have most of them; where half
    of the ranks have them often, and the others next to none; or where nearly all ranks have them,
    in the same iterations.

    Args:
        lost_s: rank -> what it lost to pauses, 0 of those that lost nothing.
        when: rank -> the iterations in which it paused.
    """
    most_s = max(lost_s.values(), default=0.0)
    if most_s <= 0:
        return ()
    often = tuple(r for r, s in sorted(lost_s.items()) if s > 0 and len(set(when[r])) >= _OFTEN)
    rest_s = sum(s for rank, s in lost_s.items() if rank not in often)
    if 0 < len(often) <= _HALF * len(lost_s) and rest_s <= _LITTLE * most_s:
        return often
    much = tuple(rank for rank, s in sorted(lost_s.items()) if s >= _SIMILAR * most_s)
    if sum(s for rank, s in lost_s.items() if rank not in much) >= most_s:
        return None
    iterations = [set(when[rank]) for rank in much]
    same = len(set.intersection(*iterations)) >= _SAME * len(set.union(*iterations))
    everybody = same and len(much) >= _SAME * len(lost_s)
    return much if everybody or len(much) <= max(_FEW * len(lost_s), 1) else None
