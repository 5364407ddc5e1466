"""Ends: by how much clocks differ, as the ends of collectives of two lengths tell.

Ranks are done with a collective at about the same time. A rank whose ends are all later than those
of the others by the same time has a clock that is ahead, or a slow link. A slow link takes the
longer the longer a message is. So a clock is off where messages of two kinds, of which one usually
takes 1.5 times as long as the other, end later by as much. Each rank shares messages with some
others, so when a message ended and by how much clocks are off is found in turns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from syncopate.artifacts.timelines.linked import linked
from syncopate.artifacts.timelines.spans import Numbers, Times
from syncopate.tracing.foreign.ranktrace import RankTrace
from syncopate.tracing.merge import ClockOffset

_TOGETHER = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
_TURNS, _FEWEST = 64, 8
"""How often offsets are found anew; collectives of a kind that tell one."""

_LEAST_S, _SPREADS = 2e-4, 3.0
"""A clock is off by this at least, and by so many times the spread of its ends."""

_CONTRADICT = 0.1
"""Clocks are off for sure where this part of collectives is over before all ranks have come."""

_OTHER, _SAME = 1.5, 0.2
"""A kind takes so many times as long as another; offsets by kind differ by less than this part."""


def told(traces: Sequence[RankTrace]) -> list[ClockOffset] | None:
    """Return each rank's clock minus the first rank's; None where ends do not tell those of all."""
    ends = _ends(traces)
    if ends is None:
        return None
    of, rank, kind, start_s, end_s = ends
    _, first, sizes = np.unique(of, return_index=True, return_counts=True)
    count = np.bincount(rank, minlength=len(traces))
    ahead_s, apart_s = np.zeros(len(traces)), end_s
    parts = linked(rank, of, len(traces))
    for _ in range(_TURNS):
        over_s = np.repeat(np.add.reduceat(end_s - ahead_s[rank], first) / sizes, sizes)
        apart_s = end_s - over_s
        ahead_s = np.bincount(rank, apart_s, len(traces)) / count
        for ranks in parts:
            ahead_s[ranks] -= np.median(ahead_s[ranks])
    took_s = np.repeat(np.minimum.reduceat(end_s - start_s, first), sizes)
    usual_s = {one: float(np.median(took_s[kind == one])) for one in np.unique(kind).tolist()}
    before_s = np.maximum.reduceat(start_s, first) - np.minimum.reduceat(end_s, first)
    sure = bool((before_s > _LEAST_S).mean() > _CONTRADICT)
    found = [
        _offset(apart_s[rank == at], kind[rank == at], usual_s, sure) for at in range(len(traces))
    ]
    offsets = [one for one in found if one is not None]
    if len(offsets) < len(found) or not any(seconds for seconds, _ in offsets):
        return None
    first_s = offsets[0][0]
    return [
        ClockOffset(seconds - first_s, max(off_s, 1e-9) if which in parts[0] else math.inf)
        for which, (seconds, off_s) in enumerate(offsets)
    ]


def _ends(traces: Sequence[RankTrace]) -> tuple[Numbers, Numbers, Numbers, Times, Times] | None:
    """Return the collective, rank and kind of each end, and when it began and ended; by collective.

    None where a rank shares none with any other.
    """
    rows: dict[Hashable, list[tuple[int, int, int, int]]] = defaultdict(list)
    kinds: dict[tuple[str, int], int] = {}
    for which, trace in enumerate(traces):
        for one in trace.launches:
            if one.key is not None and one.end_ns is not None and one.collective in _TOGETHER:
                kind = kinds.setdefault((one.collective, one.nbytes), len(kinds))
                rows[one.key].append((which, kind, one.start_ns, one.end_ns))
    shared = [own for own in rows.values() if len(own) > 1]
    if len({row[0] for own in shared for row in own}) < len(traces):
        return None
    origin_ns = min(row[2] for own in shared for row in own)
    of: Numbers = np.repeat(np.arange(len(shared), dtype=np.int64), [len(own) for own in shared])
    every: Numbers = np.array([row for own in shared for row in own], np.int64)
    times_s: Times = (every[:, 2:] - origin_ns).astype(np.float64) * 1e-9
    return of, every[:, 0], every[:, 1], times_s[:, 0], times_s[:, 1]


def _offset(
    apart_s: Times, kind: Numbers, usual_s: dict[int, float], sure: bool
) -> tuple[float, float] | None:
    """Return by how much the clock of a rank is ahead, and may be off then; None: not known.

    Args:
        apart_s: how much later than on average it ended each message.
        kind: of each message.
        usual_s: how long messages of a kind take.
        sure: whether clocks are off for sure.
    """
    by_s = float(np.median(apart_s))
    off_s = float(np.median(np.abs(apart_s - by_s)))
    if abs(by_s) < _LEAST_S:
        return 0.0, off_s + abs(by_s)
    if sure and abs(by_s) >= _SPREADS * off_s:
        return by_s, off_s
    told = [one for one in usual_s if (kind == one).sum() >= _FEWEST]
    takes_s = [usual_s[one] for one in told]
    if len(told) < 2 or max(takes_s) < _OTHER * max(min(takes_s), 0.0):
        return None
    each_s = [float(np.median(apart_s[kind == one])) for one in told]
    same = max(abs(s - by_s) for s in each_s) <= _SAME * abs(by_s)
    return (by_s, off_s) if same and abs(by_s) >= _SPREADS * off_s else None
