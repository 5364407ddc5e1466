"""Work: what each rank did by itself in each iteration, communication and pauses left out.

Spans of the wait lane with a name of :data:`~syncopate.timeline.PAUSES` are pauses. What they cover
of computation does not count as computation. A gap before an iteration's first computation, in
which no message, pause or other wait is under way, counts as waiting for input.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from syncopate.analysis.intervals import Interval, intersection, length_s, near, union, without
from syncopate.analysis.phases import COMMUNICATION, COMPUTATION, stalled
from syncopate.timeline import PAUSES, Span, Timeline

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


def works(timeline: Timeline) -> tuple[Work, ...]:
    """Return the work of every rank in every iteration that it computed in, by iteration, rank."""
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_rank[span.rank].append(span)
    origin_s = min((span.start_s for span in timeline.spans), default=0.0)
    found = [work for rank, mine in by_rank.items() for work in _of_rank(rank, mine, origin_s)]
    return tuple(sorted(found, key=lambda work: (work.iteration, work.rank)))


def computations(spans: Sequence[Span]) -> list[Span]:
    """Return what one rank computed, by start: its spans, cut where it waited for messages."""
    stalls = union(stalled(spans))
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


def _of_rank(rank: int, spans: Sequence[Span], origin_s: float) -> list[Work]:
    pauses = {name: _where(spans, ("wait",), name) for name in PAUSES}
    paused = union(stretch for found in pauses.values() for stretch in found)
    stalls = union(stalled(spans))
    taken = union([*_where(spans, COMMUNICATION), *paused, *stalls])
    groups: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if span.lane in COMPUTATION:
            groups[span.iteration].append(span)
    found, begins_s = [], origin_s
    for iteration, mine in sorted(groups.items()):
        starts_s, ends_s = min(s.start_s for s in mine), max(s.end_s for s in mine)
        idle = union([*near(stalls, starts_s, ends_s), *near(paused, starts_s, ends_s)])
        lanes = {lane: without(_where(mine, (lane,)), idle) for lane in COMPUTATION}
        paused_s = {name: _part_s(where, begins_s, ends_s) for name, where in pauses.items()}
        gap_s = max(starts_s - begins_s, 0.0)
        paused_s[INPUT] += gap_s - _part_s(taken, begins_s, starts_s)
        found.append(
            Work(
                rank=rank,
                iteration=iteration,
                begins_s=begins_s,
                starts_s=starts_s,
                ends_s=ends_s,
                computing_s={lane: length_s(where) for lane, where in lanes.items() if where},
                paused_s={name: lasted_s for name, lasted_s in paused_s.items() if lasted_s > 0},
            )
        )
        begins_s = max(begins_s, ends_s)
    return found


def _part_s(disjoint: list[Interval], start_s: float, end_s: float) -> float:
    """Return how much of a stretch is in sorted, disjoint intervals."""
    stretch = [(start_s, end_s)] if start_s < end_s else []
    return length_s(intersection(near(disjoint, start_s, end_s), stretch))


def _where(
    spans: Sequence[Span], lanes: tuple[str, ...], name: str | None = None
) -> list[Interval]:
    return union(
        (s.start_s, s.end_s) for s in spans if s.lane in lanes and (name is None or s.name == name)
    )
