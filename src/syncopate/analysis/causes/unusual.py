"""Unusual: what takes a rank longer in some iterations than it usually does, alone or with all.

What is usual is the median of iterations. Where these are of two sorts, far apart, the shorter sort
is what is usual as soon as a third of the iterations are of it: a script that does something in
every other iteration does it then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.work import SEVERAL
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times

UNUSUAL = 0.1
"""What is unusual exceeds the usual by this part of computation."""

_FAR = 4.0
"""And by this many times the spread of a rank's iterations."""

_TWO_SORTS, _LEAST = 0.3, 1 / 3
"""Iterations are of two sorts where the next takes longer by this part; of the shorter sort are so
many at least."""

_ALL, _CHANCE = 0.75, 3.0
"""What so many ranks do in one iteration, all do, where chance gives fewer such by this factor."""


def usual(parts_s: Times, counted: Numbers) -> Times:
    """Return each rank's usual value of each part; of few iterations the mean.

    Args:
        parts_s: by rank, iteration and part.
        counted: the places of iterations that count.
    """
    of = parts_s[:, counted]
    if len(counted) < SEVERAL:
        return np.asarray(of.mean(axis=1))
    return np.asarray(np.median(_usual_sort(of), axis=1))


def _usual_sort(of: Times) -> Times:
    """Return values by rank, iteration and part; of two sorts the shorter in place of the longer.

    That is where at most half of the iterations are of the shorter: else the median is of it.
    """
    count = of.shape[1]
    least = max(int(np.ceil(_LEAST * count)), SEVERAL)
    rows = np.sort(of, axis=1)
    apart_s = np.diff(rows, axis=1)[:, least - 1 : (count + 1) // 2]
    if not apart_s.shape[1]:
        return of
    found = of.copy()
    best = apart_s.argmax(axis=1)
    for rank, part in np.argwhere(apart_s.max(axis=1) > 0).tolist():
        shorter = rows[rank, : least + int(best[rank, part]), part]
        gap_s = float(apart_s[rank, best[rank, part], part])
        middle_s = float(np.median(shorter))
        spread_s = float(shorter[-1] - shorter[0])
        if gap_s > max(_TWO_SORTS * middle_s, _FAR * spread_s):
            own = found[rank, :, part]
            found[rank, own > shorter[-1], part] = middle_s
    return found


def unusual(level: Times, counted: Numbers, computing: slice) -> NDArray[np.bool_]:
    """Return which parts of which ranks and iterations took unusually long.

    Args:
        level: seconds by rank, iteration and part.
        counted: the places of iterations that count.
        computing: the parts that are computation.
    """
    if len(counted) < SEVERAL:
        return np.zeros(level.shape, bool)
    usual_s = usual(level, counted)[:, None]
    off_s = np.abs(_usual_sort(level[:, counted]) - usual_s)
    spread_s = 1.4826 * np.median(off_s, axis=1, keepdims=True)
    least_s = UNUSUAL * usual_s[..., computing].sum(axis=2, keepdims=True)
    found = level > usual_s + np.maximum(least_s, _FAR * spread_s)
    found[:, np.setdiff1d(np.arange(level.shape[1]), counted)] = False
    return np.asarray(found)


def in_common(found: Mask, counted: Numbers) -> Mask:
    """Return in which iterations which parts took unusually long on all ranks at once.

    Args:
        found: what is unusual, by rank, iteration and part.
        counted: the places of iterations that count.
    """
    common = found.mean(axis=0) >= _ALL
    if len(found) < 2:
        return np.zeros_like(common)
    often = np.sort(found[:, counted].mean(axis=1), axis=0)[::-1]  # by rank and part
    by_chance = len(counted) * often[: int(np.ceil(_ALL * len(found)))].prod(axis=0)
    return np.asarray(common & (common.sum(axis=0) > _CHANCE * by_chance))
