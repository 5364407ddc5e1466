"""Queues: when a channel took its messages up, where a timeline says only when they were called.

Messages of one channel go one after the other, in the order in which they were called; or those of
each collective do, where each has a queue of its own. A tool that notes when a rank called a
message has messages of one channel under way side by side. Their ends say when each was taken up:
not before the one ahead of it was over. That is so where messages end in the order of their calls.
Of queues that agree with this, those hold by which messages that are alike take most alike.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from syncopate.analysis.collectives import Collectives, collectives, is_served
from syncopate.analysis.sweep import groups, runs
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times, coded

_LATE_S = 2e-3
"""Ends are noted late by up to this: what overlaps by less does not stand in a queue."""

_IN_ORDER, _OFTEN = 0.98, 0.05
"""So many messages of a queue end in the order of their calls; so many overlap the one ahead."""


def in_queues(timeline: Timeline) -> Timeline:
    """Return a timeline whose messages begin when their channels took them up."""
    if timeline.source != "measured" or is_served(timeline):
        return timeline
    found = collectives(timeline)
    if not len(found):
        return timeline
    rows = np.flatnonzero(found.together[found.of])
    begun_s = found.spans.start_s[found.rows].copy()
    channel = found.spans.channel[found.rows[rows]]
    for _, mine in groups(channel):
        taken_s = _taken_s(found, rows[mine])
        if taken_s is not None:
            begun_s[rows[mine]] = taken_s
    at = found.rows
    moved = begun_s > found.spans.start_s[at]
    if not moved.any():
        return timeline
    columns = timeline.columns
    start_s, launched_s = columns.start_s.copy(), columns.launched_s.copy()
    unknown = moved & np.isnan(launched_s[at])
    launched_s[at[unknown]] = start_s[at[unknown]]
    start_s[at[moved]] = begun_s[moved]
    return replace(timeline, spans=columns.changed(start_s=start_s, launched_s=launched_s))


def _taken_s(found: Collectives, rows: Numbers) -> Times | None:
    """Return when messages of a channel were taken up, by row; None: as they begin."""
    spans, at = found.spans, found.rows[rows]
    start_s, ends_s, kind = spans.start_s[at], spans.end_s[at], found.kinds[found.of[rows]]
    alike = coded([kind, spans.rank[at], spans.nbytes[at]])
    best, least = None, _spread(found, rows, start_s, alike)
    for queue in (coded([kind, spans.rank[at]]), coded([spans.rank[at]])):
        ahead = _ahead(start_s, ends_s, queue)
        free_s = np.where(ahead >= 0, ends_s[ahead], -np.inf)
        if not _stands(start_s, ends_s, free_s):
            continue
        taken_s = np.minimum(np.maximum(start_s, free_s), ends_s)
        spread = _spread(found, rows, taken_s, alike)
        if spread < least:
            best, least = taken_s, spread
    return best


def _ahead(start_s: Times, ends_s: Times, queue: Numbers) -> Numbers:
    """Return the message ahead of each in its queue; -1: none."""
    order = np.lexsort((ends_s, start_s, queue))
    ahead = np.full(len(order), -1)
    same = np.diff(queue[order]) == 0
    ahead[order[1:][same]] = order[:-1][same]
    return ahead


def _stands(start_s: Times, ends_s: Times, free_s: Times) -> bool:
    """Say whether messages stand in queues: many overlap the one ahead, and end behind it."""
    overlap: Mask = start_s < free_s - _LATE_S
    if overlap.sum() < max(_OFTEN * len(overlap), 1):
        return False
    return bool((ends_s >= free_s - _LATE_S)[overlap].mean() >= _IN_ORDER)


def _spread(found: Collectives, rows: Numbers, begun_s: Times, alike: Numbers) -> float:
    """Return how much messages that are alike differ in what they take, in seconds of each."""
    order = np.argsort(found.of[rows], kind="stable")
    first = runs(found.of[rows][order])
    sizes = np.diff(first, append=len(rows))
    moves_s = np.empty(len(rows))
    moves_s[order] = np.repeat(np.maximum.reduceat(begun_s[order], first), sizes)
    takes_s = found.spans.end_s[found.rows[rows]] - moves_s
    off_s = np.empty(len(rows))
    for _, mine in groups(alike):
        off_s[mine] = np.abs(takes_s[mine] - np.median(takes_s[mine]))
    return float(off_s.mean())
