"""Work: what each rank did by itself in each iteration, communication and pauses left out.

Spans of the wait lane with a name of :data:`~syncopate.artifacts.timeline.PAUSES` are pauses. What
they cover of computation does not count as computation. A gap before an iteration's first
computation, in which no message, pause or other wait is under way, counts as waiting for input.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from syncopate.analysis import sweep
from syncopate.analysis.intervals import Interval, length_s, near, union, without
from syncopate.analysis.memoized import memoized
from syncopate.analysis.phases import COMMUNICATION, COMPUTATION, stalling
from syncopate.artifacts.timeline import PAUSES, Span, Timeline
from syncopate.artifacts.timelines.alike import shared
from syncopate.artifacts.timelines.spans import LANES, Numbers, Spans, coded

INPUT = PAUSES[0]
"""The pause that a gap before the first computation of an iteration counts as."""

SEVERAL = 3
"""Iterations from which on what is usual can be told from what happened once."""


@dataclass(frozen=True)
class Work:
    """One rank's own part in one iteration.

    Attributes:
        rank: whose.
        iteration: which.
        begins_s: when the iteration before ended on this rank; the timeline's start for the first.
        starts_s: when its first computation started.
        ends_s: when its last computation ended.
        computing_s: seconds in each lane of computation.
        paused_s: seconds of each pause, by name.
    """

    rank: int
    iteration: int
    begins_s: float
    starts_s: float
    ends_s: float
    computing_s: dict[str, float] = field(default_factory=dict)
    paused_s: dict[str, float] = field(default_factory=dict)

    @property
    def computation_s(self) -> float:
        """All lanes together."""
        return sum(self.computing_s.values())

    @property
    def input_s(self) -> float:
        """How long it waited for input."""
        return self.paused_s.get(INPUT, 0.0)


@memoized
def works(timeline: Timeline) -> tuple[Work, ...]:
    """Return the work of every rank in every iteration that it computed in, by iteration, rank."""
    spans = timeline.kept
    if not len(spans):
        return ()
    origin_s = float(spans.start_s.min())
    by_rank = ((rank, spans.take(mine)) for rank, mine in sweep.groups(spans.rank))
    found = [
        work if work.rank == rank else dataclasses.replace(work, rank=rank)
        for first, mine in by_rank
        for work in _of_rank(first, mine, origin_s)
        for rank in timeline.ranks_like(first)
    ]
    return tuple(sorted(found, key=lambda work: (work.iteration, work.rank)))


def computations(spans: Sequence[Span]) -> list[Span]:
    """Return what one rank computed, by start: its spans, cut where it waited for messages."""
    waits = (span for span in spans if span.lane == "wait" and span.name not in PAUSES)
    stalls = union((span.start_s, span.end_s) for span in waits)
    return sorted(
        (
            replace(span, start_s=start_s, end_s=end_s)
            for span in spans
            if span.lane in COMPUTATION
            for start_s, end_s in without(
                [(span.start_s, span.end_s)], near(stalls, span.start_s, span.end_s)
            )
        ),
        key=lambda span: (span.start_s, span.end_s),
    )


def last_end_s(found: Sequence[Work]) -> dict[int, float]:
    """Return when each iteration ended: when the last rank's computation did."""
    ends: dict[int, float] = {}
    for work in found:
        ends[work.iteration] = max(ends.get(work.iteration, work.ends_s), work.ends_s)
    return ends


def missing(timeline: Timeline) -> list[int]:
    """Return the ranks of which nothing is recorded."""
    there = set(np.unique(timeline.kept.rank).tolist())
    there = there.union(*(one.all.tolist() for one in timeline.alike))
    return [rank for rank in range(timeline.world_size) if rank not in there]


def of_iterations(timeline: Timeline, first: int, last: int) -> Timeline:
    """Return the iterations from ``first`` to ``last``; ranks that do the same still do."""
    kept, alike = timeline.kept, timeline.alike
    spans = kept.take((kept.iteration >= first) & (kept.iteration <= last))
    found: Timeline = replace(timeline, spans=shared(spans, alike, timeline.world_size))
    if not alike:
        return found
    shown = max(len(timeline.ranks_like(one.rank)) for one in alike)
    return found.few(shown * len(spans))


def whole(timeline: Timeline) -> tuple[Timeline, tuple[int, int] | None]:
    """Return the part of a timeline in which every rank that is there computes in every iteration.

    That is the longest row of iterations, of several the last. A rank that was killed lacks the
    last ones, and one whose disk was slow may lack any. Where one of them ends in the midst of the
    last, that one is left out as well.

    Returns:
        The timeline, and the first and last iteration of that row; None where it has all, or where
        there is none.
    """
    spans = timeline.kept
    computing = spans.in_lanes(*COMPUTATION)
    pairs = np.unique(np.stack([spans.iteration, spans.rank])[:, computing], axis=1)
    numbers, counts = np.unique(pairs[0], return_counts=True)
    good = numbers[counts == len(np.unique(pairs[1]))]
    if not len(good):
        return timeline, None
    rows = np.split(good, np.flatnonzero(np.diff(good) != 1) + 1)
    longest = max(reversed(rows), key=len)
    if len(longest) > 1 and _ends_in_midst(spans, *longest[-2:].tolist()):
        longest = longest[:-1]
    if len(longest) == len(numbers):
        return timeline, None
    first, last = int(longest[0]), int(longest[-1])
    return of_iterations(timeline, first, last), (first, last)


def _ends_in_midst(spans: Spans, before: int, last: int) -> bool:
    """Say whether a rank lacks in ``last`` what it did in ``before``, and others did in both."""
    lanes = [LANES.index(lane) for lane in (*COMPUTATION, *COMMUNICATION)]
    rows = np.flatnonzero(np.isin(spans.iteration, (before, last)) & np.isin(spans.lane, lanes))
    what = coded([spans.lane[rows], spans.name[rows]])
    whose = coded([spans.rank[rows], what])
    now = spans.iteration[rows] == last
    there = np.isin(whose, whose[now])
    lacking, kept = what[~there & ~now], what[there & ~now]
    return bool(np.isin(lacking, kept).any())


def steady(iterations: Sequence[int]) -> tuple[int, ...]:
    """Return the iterations that stand for all: without the first, where ``SEVERAL`` are left.

    The first of a training has nothing to pull, and often warms something up.
    """
    numbers = sorted(set(iterations))
    return tuple(numbers[1:] if len(numbers) > SEVERAL else numbers)


def usual(values: Sequence[float]) -> float:
    """Return what is usual: the median of several values, the mean of fewer."""
    if not values:
        return 0.0
    return statistics.median(values) if len(values) >= SEVERAL else statistics.fmean(values)


def _of_rank(rank: int, spans: Spans, origin_s: float) -> list[Work]:
    waits = spans.in_lanes("wait")
    pauses = {name: sweep.union(spans, waits & spans.named((name,))) for name in PAUSES}
    pauses = {name: found for name, found in pauses.items() if found}
    paused = union(stretch for found in pauses.values() for stretch in found)
    stalls = sweep.union(spans, stalling(spans))
    taken = union([*sweep.union(spans, spans.in_lanes(*COMMUNICATION)), *paused, *stalls])
    away = union([*stalls, *paused])
    rows = np.flatnonzero(spans.in_lanes(*COMPUTATION))
    rows = rows[np.lexsort((spans.start_s[rows], spans.lane[rows], spans.iteration[rows]))]
    one_lane = sweep.runs(coded([spans.iteration[rows], spans.lane[rows]]))
    computing = _computing_s(spans, rows, one_lane, away)
    first = sweep.runs(spans.iteration[rows])
    starts_s = np.minimum.reduceat(spans.start_s[rows], first) if len(rows) else np.empty(0)
    ends_s = np.maximum.reduceat(spans.end_s[rows], first) if len(rows) else np.empty(0)
    begins_s = np.maximum.accumulate(np.concatenate([[origin_s], ends_s]))[:-1]
    numbers, lanes = spans.iteration[rows[first]].tolist(), spans.lane[rows[one_lane]].tolist()
    turns = np.searchsorted(first, one_lane, "right") - 1
    computing_s: list[dict[str, float]] = [{} for _ in numbers]
    for turn, lane, lasts_s in zip(turns.tolist(), lanes, computing, strict=True):
        if lasts_s is not None:
            computing_s[turn][LANES[lane]] = lasts_s
    paused_s: list[dict[str, float]] = [{} for _ in numbers]
    for name in PAUSES:
        lasts = sweep.common_s(pauses.get(name, []), begins_s, ends_s)
        if name == INPUT:
            gaps_s = np.maximum(starts_s - begins_s, 0.0)
            lasts = lasts + (gaps_s - sweep.common_s(taken, begins_s, starts_s))
        for turn in np.flatnonzero(lasts > 0).tolist():
            paused_s[turn][name] = float(lasts[turn])
    times = zip(begins_s.tolist(), starts_s.tolist(), ends_s.tolist(), strict=True)
    return [
        Work(rank, number, *mine, computed, idle)
        for number, mine, computed, idle in zip(numbers, times, computing_s, paused_s, strict=True)
    ]


def _computing_s(
    spans: Spans, rows: Numbers, first: Numbers, away: list[Interval]
) -> list[float | None]:
    """Return how long each run of rows computes, its rank not away; None: not at all.

    Args:
        spans: of one rank.
        rows: of one lane and iteration behind the other, by start.
        first: where in ``rows`` each lane and iteration begins.
        away: when the rank waited or paused.
    """
    start_s, end_s = spans.start_s[rows], spans.end_s[rows]
    count = np.diff(first, append=len(rows))
    plain = (count == 1) & ~sweep.shared(away, start_s[first], end_s[first])
    found: list[float | None] = (end_s[first] - start_s[first]).tolist()
    for turn in np.flatnonzero(~plain | (end_s[first] <= start_s[first])).tolist():
        mine = slice(int(first[turn]), int(first[turn] + count[turn]))
        busy = union(zip(start_s[mine].tolist(), end_s[mine].tolist(), strict=True))
        left = without(busy, near(away, busy[0][0], busy[-1][1]))
        found[turn] = length_s(left) if left else None
    return found
