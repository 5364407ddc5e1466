"""Clocks: which ranks' clocks run faster or slower than the others', and the times without that.

Ranks are done with an all-reduce at about the same time, however late one of them came. So by how
much a rank's ends differ from the median of all says where its clock is, up to a constant that a
slow link may have made as well. What grows with time is no link: a clock drifts where a straight
line through these differences rises by several times their spread about it, and does so in the
first half of the collectives and in the second. Then the line is taken off the rank's times.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from syncopate.analysis.collectives import TOGETHER, Collectives, collectives
from syncopate.analysis.evidence.noise import spread_s
from syncopate.analysis.sweep import groups, runs
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.spans import Times

_FEWEST = 8
"""Collectives that tell a drift."""

_RISES = 3.0
"""A line rises by this many times the spread about it, or tells nothing."""

_LEAST = 1e-4
"""By which part a clock drifts at least: better clocks than this change no answer."""

_FIELDS = ("start_s", "end_s", "launched_s", "ready_s")


def straightened(timeline: Timeline) -> tuple[Timeline, dict[int, float]]:
    """Return a timeline without the drift of its clocks.

    Returns:
        The timeline, and of each rank whose clock drifts by which part it runs faster than the
        median of all.
    """
    if timeline.source != "measured":
        return timeline, {}
    lines = _lines(collectives(timeline))
    if not lines:
        return timeline, {}
    columns = timeline.columns
    changed = {field: getattr(columns, field).copy() for field in _FIELDS}
    for rank, (drift, offset_s) in lines.items():
        mine = columns.rank == rank
        for times_s in changed.values():
            times_s[mine] = (times_s[mine] - offset_s) / (1 + drift)
    moved = replace(timeline, spans=columns.changed(**changed))
    return moved, {rank: drift for rank, (drift, _) in lines.items()}


def _lines(found: Collectives) -> dict[int, tuple[float, float]]:
    """Return of each rank whose clock drifts the slope of its line, and where that begins."""
    known = [found.names.index(name) for name in TOGETHER if name in found.names]
    whole = (np.isin(found.kinds, known) & (found.sizes > 1))[found.of]
    if not whole.any():
        return {}
    spans = found.spans.take(found.rows[whole])
    order = np.lexsort((spans.end_s, found.of[whole]))
    of, ends_s, ranks = found.of[whole][order], spans.end_s[order], spans.rank[order]
    first = runs(of)
    sizes = np.diff(first, append=len(ends_s))
    middle_s = (ends_s[first + (sizes - 1) // 2] + ends_s[first + sizes // 2]) / 2
    at_s = np.repeat(middle_s, sizes)
    lines = {}
    for rank, mine in groups(ranks):
        line = _line(at_s[mine], (ends_s - at_s)[mine])
        if line is not None:
            lines[rank] = line
    return lines


def _line(at_s: Times, apart_s: Times) -> tuple[float, float] | None:
    """Return slope and beginning of the line through some differences; None: there is none."""
    if len(at_s) < _FEWEST:
        return None
    drift, offset_s = np.polyfit(at_s, apart_s, 1).tolist()
    rises_s = abs(drift) * float(np.ptp(at_s))
    about_s = spread_s(apart_s - drift * at_s - offset_s)
    if abs(drift) < _LEAST or rises_s < _RISES * about_s:
        return None
    half = at_s <= np.median(at_s)
    slopes = [float(np.polyfit(at_s[part], apart_s[part], 1)[0]) for part in (half, ~half)]
    steady = all(0.5 <= slope / drift <= 2.0 for slope in slopes)
    return (drift, offset_s) if steady else None
