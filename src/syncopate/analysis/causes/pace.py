"""Pace: how long the batch of a rank is in an iteration, relative to what is usual for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncopate.artifacts.timelines.spans import Mask, Times

_SLOWED, _AS_SLOW = 1.25, 0.5
"""A rank is slow in an iteration that takes so many times as long, where its update exceeds what is
usual by this part of that at least."""

_PASSES, _UPDATE = slice(0, 2), 2


def paces(parts_s: Times, usual_s: Times, pipelines: Sequence[Sequence[int]]) -> tuple[Times, Mask]:
    """Return how long batches are, by rank and iteration; 1 is usual. And where a rank is slow.

    Forward and backward both take as much longer, or as much shorter, on all stages of a pipeline:
    the one that is nearer to what is usual says how much. What one of them alone does is no batch,
    nor what one stage does; where the update takes longer too, the rank is slow.

    Args:
        parts_s: seconds of forward, backward, update and more, by rank and iteration.
        usual_s: what is usual of each, by rank.
        pipelines: the places of the ranks of each.
    """
    usual_s = usual_s[:, None]
    there = (usual_s > 0) & (parts_s > 0)
    longer = parts_s / np.where(there, usual_s, 1.0)
    passes, known = longer[..., _PASSES], there[..., _PASSES]
    least = np.where(known, passes, np.inf).min(axis=2)
    most = np.where(known, passes, 0.0).max(axis=2)
    found = np.where(known.any(axis=2), np.clip(1.0, least, most), 1.0)
    slow = there[..., _UPDATE] & (found >= _SLOWED)
    slow &= longer[..., _UPDATE] - 1 >= _AS_SLOW * (found - 1)
    found[slow] = 1.0
    for mine in pipelines:
        found[mine] = np.sort(found[mine], axis=0)[(len(mine) - 1) // 2]
    return found, np.asarray(slow)
