"""Critical path: what an iteration waited for, moment by moment, from its end back to its start.

The walk starts where the last rank's iteration ends. Where a rank computes, the path is its
computation. Where it stands still, the path is the message that ended last: its transfer, and
before that the rank that arrived last. That rank was late because its channel carried another
message until then, or else because of what it computed. So no waiting for ranks is on the path:
what is on it has to become shorter for the iteration to become shorter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from syncopate.analysis.collectives import collectives
from syncopate.analysis.phases import COMPUTATION
from syncopate.analysis.sweep import groups
from syncopate.analysis.work import INPUT, computations, last_end_s, works
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import InvalidValueError

TRANSFER, IDLE = "transfer", "idle"
"""Kinds of segments beside the lanes of computation and ``"input"``."""

CHANNEL_S = 2e-4
"""A message that starts within this time of the end of another waited for its channel."""


@dataclass(frozen=True)
class Segment:
    """A stretch of the critical path.

    Attributes:
        rank: whose time it is.
        kind: a lane of computation, ``"transfer"``, ``"input"`` (before an iteration's first
            computation), or ``"idle"``.
        name: of the span; of the last of several that follow one another on one rank.
        start_s: when it starts.
        end_s: when it ends.
    """

    rank: int
    kind: str
    name: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


def critical_path(timeline: Timeline, iteration: int) -> tuple[Segment, ...]:
    """Return the critical path of one iteration from its start to its end, without gaps.

    Raises:
        InvalidValueError: nothing was computed in this iteration; names those there are.
    """
    work = {w.rank: w for w in works(timeline) if w.iteration == iteration}
    if not work:
        known = ", ".join(map(str, last_end_s(works(timeline)))) or "none"
        raise InvalidValueError("iteration", iteration, f"one with computation: {known}")
    last = max(work.values(), key=lambda w: (w.ends_s, -w.rank))
    floors_s = {w.rank: w.begins_s for w in work.values()}
    return _Walk(timeline, floors_s, last.ends_s).back(last.rank, last.ends_s)


class _Walk:
    """Goes back along what each moment waited for.

    Args:
        timeline: measured or simulated.
        floors_s: rank -> where its iteration begins.
        end_s: where the iteration ends.
    """

    def __init__(self, timeline: Timeline, floors_s: dict[int, float], end_s: float) -> None:
        first_s = min(floors_s.values())
        self._floors_s = defaultdict(lambda: first_s, floors_s)
        self._seen: set[int] = set()  # or clocks that disagree would have it go round in circles
        self._computing: dict[int, list[Span]] = defaultdict(list)
        by_rank: dict[int, list[Span]] = defaultdict(list)
        spans, self._sent = timeline.columns, collectives(timeline)
        for span in spans.take((spans.end_s > first_s) & (spans.start_s <= end_s)):
            by_rank[span.rank].append(span)
        for rank, mine in by_rank.items():
            self._computing[rank] = sorted(computations(mine), key=lambda s: s.end_s)
        sent = self._sent
        under_way = (sent.most(spans.end_s) > first_s) & (sent.least(spans.start_s) <= end_s)
        rows = np.flatnonzero(under_way[sent.of])
        rows = rows[np.argsort(spans.end_s[sent.rows[rows]], kind="stable")]
        ranks = spans.rank[sent.rows[rows]]
        self._rows = {rank: rows[mine] for rank, mine in groups(ranks)}

    def back(self, rank: int, at_s: float) -> tuple[Segment, ...]:
        """Return the segments that end at ``at_s`` on ``rank``, in the order of time."""
        found: list[Segment] = []
        while at_s > self._floors_s[rank]:
            floor_s = self._floors_s[rank]
            span = self._computed(rank, at_s)
            if span is not None and span.end_s >= at_s:
                found.append(Segment(rank, span.lane, span.name, max(span.start_s, floor_s), at_s))
                at_s = span.start_s
                continue
            before_s = max(span.end_s if span is not None else floor_s, floor_s)
            there = self._ended(rank, before_s, at_s)
            if there is None:
                kind = INPUT if before_s == floor_s else IDLE
                found.append(Segment(rank, kind, "", before_s, at_s))
                at_s = before_s
                continue
            if there[1].end_s < at_s:
                found.append(Segment(rank, IDLE, "", there[1].end_s, at_s))
            rank, at_s = self._carried(there, found)
        return _joined(found)

    def _carried(self, there: tuple[int, Span], found: list[Segment]) -> tuple[int, float]:
        """Add the transfers that end with one; return the rank and the time they waited for."""
        sent = self._sent
        while True:
            row, span = there
            one = int(sent.of[row])
            self._seen.add(one)
            moves_s = float(sent.moves_s[row])
            if span.end_s > moves_s:
                found.append(Segment(span.rank, TRANSFER, span.name, moves_s, span.end_s))
            all_of = sent.rows[sent.first[one] : sent.first[one] + sent.sizes[one]]
            last = sent.spans[int(all_of[np.argmax(sent.spans.start_s[all_of])])]
            rank, at_s = last.rank, last.start_s
            if span.end_s < at_s:
                rank, at_s = span.rank, span.start_s
                found.append(Segment(rank, TRANSFER, span.name, at_s, span.end_s))
            before = self._on_channel(rank, at_s, span)
            if before is None or before[1].end_s <= self._floors_s[rank]:
                return rank, at_s
            if before[1].end_s < at_s:
                found.append(Segment(rank, IDLE, "", before[1].end_s, at_s))
            there = before

    def _computed(self, rank: int, at_s: float) -> Span | None:
        """Return the computation of a rank that is under way just before a moment, or the last."""
        spans = self._computing[rank]
        index = bisect_left(spans, at_s, key=lambda s: s.end_s)
        if index < len(spans) and spans[index].start_s < at_s:
            return spans[index]
        return spans[index - 1] if index else None

    def _ended(self, rank: int, after_s: float, by_s: float) -> tuple[int, Span] | None:
        """Return the message that ended last on a rank in ``(after_s, by_s]``: its row and span."""
        for row, span in self._latest(rank, by_s):
            if span.end_s <= after_s:
                break
            if self._sent.of[row] not in self._seen:
                return row, span
        return None

    def _on_channel(self, rank: int, at_s: float, behind: Span) -> tuple[int, Span] | None:
        """Return the message that kept a rank's channel busy until a moment, likewise."""
        for row, span in self._latest(rank, at_s):
            if span.end_s < at_s - CHANNEL_S:
                break
            if span.channel == behind.channel and self._sent.of[row] not in self._seen:
                return row, span
        return None

    def _latest(self, rank: int, by_s: float) -> Iterator[tuple[int, Span]]:
        """Yield the messages of a rank that ended by a moment, the last of them first."""
        rows, spans = self._rows.get(rank, np.zeros(0, np.int64)), self._sent.spans
        places = self._sent.rows[rows]
        end = np.searchsorted(spans.end_s[places], by_s, "right")
        for at in range(int(end) - 1, -1, -1):
            yield int(rows[at]), spans[int(places[at])]


def _joined(found: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return segments in the order of time, computation of one lane and rank as one."""
    joined: list[Segment] = []
    for segment in sorted(found, key=lambda s: (s.start_s, s.end_s)):
        last = joined[-1] if joined else None
        if (
            last
            and segment.kind in COMPUTATION
            and (last.rank, last.kind, last.end_s) == (segment.rank, segment.kind, segment.start_s)
        ):
            joined[-1] = replace(last, end_s=segment.end_s, name=segment.name)
            continue
        joined.append(segment)
    return tuple(joined)
