"""Timings: when collectives ran beside one another, and what each of them took.

[Note: back to back] A collective that waited behind another one takes from the end of that one to
its own end, in the mean over ranks: so the durations of a step add up to the time it spent. One
that a rank launched late, such as the first, takes as long as on the rank that joined last: the
minimum over ranks.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence

_LATE_S = 0.5e-3

Timing = tuple[int, int, float, float]
"""``(bucket, bytes on the wire, start, end)`` of one collective, by one rank's clock."""


def durations(ranks: Sequence[Sequence[Timing]]) -> list[float]:
    """Return what each collective of a held step took; see [Note: back to back].

    Args:
        ranks: the same step on every rank, all on one channel.
    """
    found: list[float] = []
    before = [-math.inf] * len(ranks)
    for same in zip(*ranks, strict=True):
        starts, ends = [timing[2] for timing in same], [timing[3] for timing in same]
        late = any(start > end + _LATE_S for start, end in zip(starts, before, strict=True))
        if late:
            found.append(min(end - start for start, end in zip(starts, ends, strict=True)))
        else:
            found.append(statistics.fmean(map(operator.sub, ends, before)))
        before = ends
    return [max(seconds, 0.0) for seconds in found]
