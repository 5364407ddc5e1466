"""Pipelines: which ranks are stages of one, and what each sent to which.

A stage receives activations before a forward and sends some on after it; before a backward it
receives their gradients from the next stage, and sends its own to the one before. So what a rank
computes next to a message says to which stage it goes, or from which it comes; of the last stage
with several parts of a model, the next is the first. Messages of point-to-point communication are
spans named ``"send"`` and ``"recv"`` and a number. Ranks that have such on one channel, or in
groups that share a rank, are the stages of one pipeline, in the order of their numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.spans import LANES, Mask, Numbers, Spans, coded

SEND, RECV = "send", "recv"

_EARLY_S = 2.5e-4
"""A stage begins with what it received this long before the message is noted to end, at most."""

_FORWARD, _BACKWARD = LANES.index("forward"), LANES.index("backward")


def point_to_point(spans: Spans) -> tuple[Mask, Mask]:
    """Return which spans are messages of two ranks, and which of them are sent."""
    kinds = np.array([text.rpartition(" ")[0] for text in spans.texts] or [""])
    kind = kinds[spans.name]
    return np.asarray((kind == SEND) | (kind == RECV)), np.asarray(kind == SEND)


def pipelines(timeline: Timeline) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each pipeline, by stage; empty: there is none."""
    spans = timeline.columns
    spans = spans.take(spans.in_lanes("push", "pull"))
    spans = spans.take(point_to_point(spans)[0])
    pairs = np.unique(np.stack([spans.channel, spans.rank]), axis=1).T.tolist()
    ranks: dict[int, set[int]] = defaultdict(set)
    for channel, rank in pairs:
        ranks[channel].add(rank)
        if 0 <= channel < len(timeline.groups):
            ranks[channel] |= set(timeline.groups[channel].ranks)
    joined: list[set[int]] = []
    for mine in ranks.values():
        apart = [other for other in joined if not other & mine]
        joined = [*apart, set().union(mine, *(other for other in joined if other & mine))]
    return tuple(sorted(tuple(sorted(mine)) for mine in joined if len(mine) > 1))


def stages(timeline: Timeline) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each stage of pipelines of equal length; empty: there are none."""
    found = pipelines(timeline)
    if not found or len({len(ranks) for ranks in found}) > 1:
        return ()
    return tuple(zip(*found, strict=True))


def matched(timeline: Timeline, spans: Spans) -> Numbers:
    """Return a number for each span: the same of a message on both of its ranks.

    -1: it is no message of two ranks. What has no other end that is known has a number of its own.

    Args:
        timeline: that the spans are of.
        spans: its messages.
    """
    number = np.full(len(spans), -1)
    between, sent = point_to_point(spans)
    rows = np.flatnonzero(between)
    if not len(rows):
        return number
    other = _others(timeline, spans.take(rows), sent[rows])
    mine = spans.rank[rows].astype(np.int64)
    source, target = np.where(sent[rows], mine, other), np.where(sent[rows], other, mine)
    way = coded([spans.iteration[rows], spans.channel[rows], source, target])
    ends = coded([way, sent[rows]])
    order = np.lexsort((spans.start_s[rows], ends))
    first = np.flatnonzero(np.diff(ends[order], prepend=-1))
    nth = np.empty(len(rows), np.int64)
    nth[order] = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
    counts = np.array([np.bincount(way[sent[rows] == one], minlength=way.max() + 1)
                       for one in (True, False)])  # fmt: skip
    known = (other >= 0) & (counts[0] == counts[1])[way]
    together = coded([way, nth])
    alone = together.max() + 1 + np.arange(len(rows))
    number[rows] = np.where(known, together, alone)
    return number


def _others(timeline: Timeline, spans: Spans, sent: Mask) -> Numbers:
    """Return the rank at the other end of each message; -1: not known."""
    other = np.full(len(spans), -1)
    place = {rank: (ranks, at) for ranks in pipelines(timeline) for at, rank in enumerate(ranks)}
    columns = timeline.columns
    computing = columns.take(columns.in_lanes("forward", "backward"))
    for rank in np.unique(spans.rank).tolist():
        if rank not in place:
            continue
        ranks, at = place[rank]
        mine = np.flatnonzero(spans.rank == rank)
        step = _steps(computing.take(computing.rank == rank), spans.take(mine), sent[mine])
        ends = np.array(ranks)[(at + step) % len(ranks)]
        other[mine] = np.where(step == 0, -1, ends)
    return other


def _steps(computing: Spans, spans: Spans, sent: Mask) -> Numbers:
    """Return how many stages further the other end of each message of a rank is; 0: not known."""
    order = np.argsort(computing.start_s, kind="stable")
    begins_s, lanes = computing.start_s[order], computing.lane[order]
    if not len(lanes):
        return np.zeros(len(spans), np.int64)
    before = np.searchsorted(begins_s, spans.start_s, "right") - 1
    early_s = np.minimum(_EARLY_S, (spans.end_s - spans.start_s) / 2)
    behind = np.searchsorted(begins_s, spans.end_s - early_s, "left")
    beside = np.where(sent, before, behind)
    there = (beside >= 0) & (beside < len(lanes))
    lane = np.where(there, lanes[np.clip(beside, 0, len(lanes) - 1)], -1)
    on = np.where(lane == _FORWARD, 1, np.where(lane == _BACKWARD, -1, 0))
    return np.where(sent, on, -on)


def of_stage(timeline: Timeline, ranks: Sequence[int]) -> list[list[int]]:
    """Return places in ``ranks`` of those that compute the same: of a stage, or all."""
    found = stages(timeline)
    place = {rank: at for at, rank in enumerate(ranks)}
    alike = [[place[rank] for rank in mine if rank in place] for mine in found]
    rest = sorted(set(range(len(ranks))) - {at for mine in alike for at in mine})
    return [mine for mine in (*alike, rest) if mine]
