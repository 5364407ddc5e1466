"""Clocks: which ranks' clocks run faster or slower than the others', and the times without that.

Ranks are done with an all-reduce at about the same time, however late one of them came. So by how
much a rank's ends differ from the median of all says where its clock is, up to a constant that a
slow link may have made as well. What grows with time is no link: a clock drifts where a straight
line through these differences rises by several times their spread about it, and does so in the
first half of the collectives and in the second. Then the line is taken off the rank's times. Where
ranks are in several groups, the lines of all are found in turns. A slow link makes messages of each
kind later by another time: a rank has a parallel line for each kind.

[Note: stages] The stages of a pipeline have no all-reduce in common. What one sends and the other
receives is over on both at about the same time. A slow link makes it end later where it is
received, in both directions; a clock makes it end later in one and earlier in the other. So the
clocks of two stages differ by half of what the two directions differ by. They are moved where that
is several times the spread of these ends, and several times what the link makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from syncopate.analysis.collectives import Collectives, collectives
from syncopate.analysis.evidence.noise import spread_s
from syncopate.analysis.evidence.pipeline import point_to_point
from syncopate.analysis.sweep import groups, runs
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.linked import linked
from syncopate.artifacts.timelines.spans import Mask, Numbers, Spans, Times, coded

_FEWEST = 8
"""Collectives that tell a drift."""

_RISES = 3.0
"""A line rises by this many times the spread about it, or tells nothing."""

_LEAST = 1e-4
"""By which part a clock drifts at least: better clocks than this change no answer."""

_LEAST_S = 2e-4
"""By how much clocks of stages differ at least to be moved."""

_CONTRADICT, _MANY = 0.02, 1 / 3
"""A clock is off where this part of a rank's messages contradict those of others, or where this
part of all clocks drift: then none is set by another."""

_TURNS, _STILL, _STILL_S = 64, 1e-7, 1e-6
"""Lines are found anew so often at most, or until slopes and offsets change by less than this."""

_FIELDS = ("start_s", "end_s", "launched_s", "ready_s")


def straightened(timeline: Timeline) -> tuple[Timeline, dict[int, float]]:
    """Return a timeline without the drift of its clocks, and by one clock for all stages.

    Returns:
        The timeline, and of each rank whose clock drifts by which part it runs faster than the
        median of all.
    """
    if timeline.source != "measured":
        return timeline, {}
    found = collectives(timeline)
    stages = _apart(found)
    lines = _lines(found, stages)
    timeline = _moved(timeline, lines)
    of_stages = _of_stages(collectives(timeline), stages) if len(stages) > 1 else {}
    drifts = {
        rank: drift
        for rank in sorted({*lines, *of_stages})
        if (drift := sum(found.get(rank, (0.0, 0.0))[0] for found in (lines, of_stages)))
    }
    return _moved(timeline, of_stages), drifts


def _moved(timeline: Timeline, lines: Mapping[int, tuple[float, float]]) -> Timeline:
    """Return a timeline without the lines of its clocks: of a rank its drift, and its offset."""
    if not lines:
        return timeline
    columns = timeline.columns
    drift, offset_s = np.zeros((2, timeline.world_size))
    for rank, line in lines.items():
        drift[rank], offset_s[rank] = line
    rate, off_s = 1 + drift[columns.rank], offset_s[columns.rank]
    changed = {field: (getattr(columns, field) - off_s) / rate for field in _FIELDS}
    return replace(timeline, spans=columns.changed(**changed))


def _apart(found: Collectives) -> list[Numbers]:
    """Return the ranks that are linked by such messages; those of each link by themselves."""
    ranks = np.unique(found.spans.rank).astype(np.int64)
    if (found.sizes[found.together] == len(ranks)).any():
        return [ranks]
    whole = found.together[found.of]
    place = np.searchsorted(ranks, found.spans.rank[found.rows])
    return [ranks[part] for part in linked(place[whole], found.of[whole], len(ranks))]


def _lines(found: Collectives, stages: Sequence[Numbers]) -> dict[int, tuple[float, float]]:
    """Return of each rank whose clock is off the slope of its line, and where that begins.

    Args:
        found: all messages.
        stages: the ranks that they link; lines are relative to the median of these.
    """
    whole = found.together[found.of]
    if not whole.any():
        return {}
    spans = found.spans.take(found.rows[whole])
    of, ranks, ends_s = found.of[whole], spans.rank.astype(np.int64), spans.end_s
    own = coded([ranks, found.kinds[of], found.most(found.spans.nbytes)[of], spans.lane])
    turns = 1 if (found.sizes[of] == len(np.unique(ranks))).all() else _TURNS
    slope, later_s = np.zeros(int(ranks.max()) + 1), np.zeros(len(ends_s))
    for _ in range(turns):
        at_s = _middle_s(of, (ends_s - later_s) / (1 + slope[ranks]))
        before = slope
        slope = _level(_slopes(at_s, ends_s - at_s, ranks, own), stages)
        later_s = _means(ends_s - at_s * (1 + slope[ranks]), own)
        if np.abs(slope - before).max() < _STILL:
            break
    apart_s = ends_s - at_s - later_s
    drifts = {
        rank: drift
        for rank, mine in groups(ranks)
        if (drift := _drift(at_s[mine], apart_s[mine], own[mine]))
    }
    return _with_offsets(spans, of, drifts, stages) if drifts else {}


def _with_offsets(
    spans: Spans, of: Numbers, drifts: Mapping[int, float], stages: Sequence[Numbers]
) -> dict[int, tuple[float, float]]:
    """Return the lines of clocks that drift, and of those that are off beside them.

    No slow link lets a rank begin a message that is over on others, or be done with one that others
    have not begun. Where many clocks drift, none is set by another: what is constant is a clock's.

    Args:
        spans: the messages of all ranks.
        of: which message each is of.
        drifts: of the clocks that drift.
        stages: the ranks that messages link.
    """
    ranks = spans.rank.astype(np.int64)
    rate, ahead_s = np.ones(int(ranks.max()) + 1), np.zeros(int(ranks.max()) + 1)
    rate[list(drifts)] = [1 + drift for drift in drifts.values()]
    start_s, end_s = spans.start_s / rate[ranks], spans.end_s / rate[ranks]
    count = np.maximum(np.bincount(ranks), 1)
    for _ in range(_TURNS):
        at_s = _middle_s(of, end_s - ahead_s[ranks])
        before_s, ahead_s = ahead_s, _level(np.bincount(ranks, end_s - at_s) / count, stages)
        if np.abs(ahead_s - before_s).max() < _STILL_S:
            break
    drifting = rate != 1
    start_s -= np.where(drifting, ahead_s, 0.0)[ranks]
    over_s = end_s - np.where(drifting, ahead_s, 0.0)[ranks]
    first = runs(of)
    sizes = np.diff(first, append=len(of))
    came_s = np.repeat(np.maximum.reduceat(start_s, first), sizes)
    done_s = np.repeat(np.minimum.reduceat(over_s, first), sizes)
    wrong = (came_s > done_s + _LEAST_S) & ((start_s == came_s) | (over_s == done_s))
    alone = len(drifts) >= _MANY * len(np.unique(ranks))
    lines = {rank: (drift, float(ahead_s[rank] * rate[rank])) for rank, drift in drifts.items()}
    for rank, mine in groups(ranks):
        apart_s = (end_s - at_s)[mine]
        by_s = float(np.median(apart_s))
        off = abs(by_s) > max(_LEAST_S, _RISES * spread_s(apart_s))
        if rank not in drifts and off and (alone or wrong[mine].mean() > _CONTRADICT):
            lines[rank] = 0.0, by_s
    return lines


def _middle_s(of: Numbers, ends_s: Times) -> Times:
    """Return the median of the ends of each message, for each of its ends."""
    order = np.lexsort((ends_s, of))
    first = runs(of)
    sizes = np.diff(first, append=len(of))
    sorted_s = ends_s[order]
    return np.repeat((sorted_s[first + (sizes - 1) // 2] + sorted_s[first + sizes // 2]) / 2, sizes)


def _slopes(at_s: Times, apart_s: Times, ranks: Numbers, own: Numbers) -> Times:
    """Return the slope of each rank's lines, by least squares.

    A slow link makes messages of each kind later by a time of their own: lines of one rank are
    parallel.

    Args:
        at_s: when messages were over.
        apart_s: how much later each rank was done.
        ranks: which.
        own: which rank and kind of messages.
    """
    off_s = at_s - _means(at_s, own)
    square = np.bincount(ranks, off_s**2)
    found: Times = np.bincount(ranks, off_s * apart_s) / np.where(square > 0, square, 1.0)
    return found


def _means(values: Times, of: Numbers) -> Times:
    """Return the mean of values of the same number, for each."""
    found: Times = (np.bincount(of, values) / np.maximum(np.bincount(of), 1))[of]
    return found


def _level(by_rank: Times, stages: Sequence[Numbers]) -> Times:
    """Return values relative to the median of those ranks that messages link."""
    found = by_rank.copy()
    for ranks in stages:
        there = ranks[ranks < len(found)]
        if len(there):
            found[there] -= np.median(found[there])
    return found


def _of_stages(found: Collectives, stages: Sequence[Numbers]) -> dict[int, tuple[float, float]]:
    """Return the lines of the clocks of stages beside the first's: [Note: stages]."""
    stage = np.zeros(int(found.spans.rank.max()) + 1, np.int64)
    for number, ranks in enumerate(stages):
        stage[ranks] = number
    sent = point_to_point(found.spans)[1]
    first = found.first[found.between_two & (found.sizes == 2)]
    rows = found.rows[np.stack([first, first + 1])]
    rows = rows[:, sent[rows].sum(axis=0) == 1]
    source, target = np.where(sent[rows[0]], rows, rows[::-1])
    ends_s = found.spans.end_s
    at_s, later_s = ends_s[source], ends_s[target] - ends_s[source]
    way = np.stack([stage[found.spans.rank[source]], stage[found.spans.rank[target]]])
    links: dict[tuple[int, int], tuple[float, float]] = {}
    for one, other in np.unique(way, axis=1).T.tolist():
        there, back = ((way[0] == a) & (way[1] == b) for a, b in ((one, other), (other, one)))
        if one < other and min(there.sum(), back.sum()) >= _FEWEST:
            both = np.concatenate([np.flatnonzero(there), np.flatnonzero(back)])
            ahead_s = np.where(there, later_s, -later_s)
            links[one, other] = _between(at_s[both], ahead_s[both], back[both])
    lines = {0: (0.0, 0.0)}
    for _ in stages:
        for (one, other), (drift, by_s) in links.items():
            if one in lines and other not in lines:
                lines[other] = lines[one][0] + drift, lines[one][1] + by_s
            elif other in lines and one not in lines:
                lines[one] = lines[other][0] - drift, lines[other][1] - by_s
    return {int(rank): line for at, line in lines.items() if any(line) for rank in stages[at]}


def _between(at_s: Times, ahead_s: Times, back: Mask) -> tuple[float, float]:
    """Return the line of one stage's clock beside another's, where it is sure; else zeros.

    Args:
        at_s: when messages were over where they were sent.
        ahead_s: by how much later the one stage notes the end than the other.
        back: which messages it sent.
    """
    way = back.astype(np.int64)
    slope = _slopes(at_s, ahead_s, np.zeros_like(way), way)
    for drift in (float(slope[0]), 0.0):
        left_s = ahead_s - drift * at_s
        there_s, back_s = left_s[~back], left_s[back]
        one_s, other_s = float(np.median(there_s)), float(np.median(back_s))
        by_s, link_s = (one_s + other_s) / 2, abs(one_s - other_s) / 2
        about_s = max(spread_s(there_s), spread_s(back_s))
        drifts = abs(drift) >= _LEAST and abs(drift) * float(np.ptp(at_s)) > _RISES * about_s
        off_s = abs(by_s + drift * float(at_s.mean()))
        if drifts or (not drift and off_s > max(_LEAST_S, _RISES * max(link_s, about_s))):
            return drift, by_s
    return 0.0, 0.0


def _drift(at_s: Times, apart_s: Times, kinds: Numbers) -> float:
    """Return the slope of the line through some differences, where a clock drifts; else 0.

    Both halves say so, and so do messages of each kind.
    """
    if len(at_s) < _FEWEST or not np.ptp(at_s):
        return 0.0
    drift, offset_s = np.polyfit(at_s, apart_s, 1).tolist()
    rises_s = abs(drift) * float(np.ptp(at_s))
    about_s = spread_s(apart_s - drift * at_s - offset_s)
    if abs(drift) < _LEAST or rises_s < _RISES * about_s:
        return 0.0
    half = at_s <= np.median(at_s)
    each = [kinds == kind for kind in np.unique(kinds)]
    parts = [half, ~half, *(mine for mine in each if mine.sum() >= _FEWEST)]
    if not all(np.ptp(at_s[part]) for part in parts):  # one moment tells no slope
        return 0.0
    slopes = [float(np.polyfit(at_s[part], apart_s[part], 1)[0]) for part in parts]
    steady = all(0.5 <= slope / drift <= 2.0 for slope in slopes)
    return drift if steady else 0.0
