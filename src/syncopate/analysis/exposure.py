"""Exposure: what communication kept each rank from computing, by bucket, and why.

Of one rank, time is *exposed* to communication when at least one push or pull is under way and the
rank computes nothing, in whatever iteration. Each moment of it is shared equally among the messages
under way. The share of a message before its last rank's arrival is waiting for the slowest, the
share after it is transferring (:mod:`syncopate.analysis.collectives`). Waiting is charged to the
ranks that have not arrived, in equal parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from syncopate.analysis.collectives import Collective, collectives
from syncopate.analysis.intervals import Interval, near, without
from syncopate.analysis.phases import computing
from syncopate.timeline import Span, Timeline


@dataclass(frozen=True)
class Exposure:
    """How long one message kept one rank from computing.

    Attributes:
        iteration: of the message.
        rank: that was kept.
        lane: ``"push"`` or ``"pull"``.
        name: of the message, such as ``"bucket 3"``.
        nbytes: that it carried.
        waiting_s: for ranks that had not arrived.
        transferring_s: after the last had.
        waited_for_s: rank -> its part of ``waiting_s``.
    """

    iteration: int
    rank: int
    lane: str
    name: str
    nbytes: int
    waiting_s: float
    transferring_s: float
    waited_for_s: dict[int, float] = field(default_factory=dict)

    @property
    def exposed_s(self) -> float:
        """Both together."""
        return self.waiting_s + self.transferring_s


def exposures(timeline: Timeline, found: Sequence[Collective] = ()) -> tuple[Exposure, ...]:
    """Return the exposure of every rank to every message, by iteration, rank and start.

    Args:
        timeline: measured or simulated.
        found: its :func:`~syncopate.analysis.collectives`, where they are at hand.
    """
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_rank[span.rank].append(span)
    messages: dict[int, list[tuple[Span, Collective]]] = defaultdict(list)
    for one in found or collectives(timeline):
        for span in one.spans:
            messages[span.rank].append((span, one))
    result: list[tuple[float, Exposure]] = []
    for rank, mine in messages.items():
        mine.sort(key=lambda pair: (pair[0].start_s, pair[0].end_s))
        shared = _shared([span for span, _ in mine], computing(by_rank[rank]))
        for (span, one), pieces in zip(mine, shared, strict=True):
            result.append((span.start_s, _exposure(span, one, pieces)))
    result.sort(key=lambda row: (row[1].iteration, row[1].rank, row[0]))
    return tuple(exposure for _, exposure in result)


_Piece = tuple[float, float, int]
"""Start, end, and among how many messages it is shared."""


def _shared(spans: Sequence[Span], busy_s: list[Interval]) -> list[list[_Piece]]:
    """Return the exposed pieces of each of one rank's messages, which are sorted by start."""
    pieces: list[list[_Piece]] = [[] for _ in spans]
    bounds = sorted({at for span in spans for at in (span.start_s, span.end_s)})
    under_way: list[int] = []
    following = 0
    for start_s, end_s in pairwise(bounds):
        under_way = [i for i in under_way if spans[i].end_s > start_s]
        while following < len(spans) and spans[following].start_s <= start_s:
            if spans[following].end_s > start_s:
                under_way.append(following)
            following += 1
        if under_way:
            for free in without([(start_s, end_s)], near(busy_s, start_s, end_s)):
                for index in under_way:
                    pieces[index].append((*free, len(under_way)))
    return pieces


def _exposure(span: Span, one: Collective, pieces: Sequence[_Piece]) -> Exposure:
    moves_s = one.moves_from_s(span)
    waiting_s = transferring_s = 0.0
    charged: dict[int, float] = defaultdict(float)
    arrivals_s = sorted({s.start_s for s in one.spans if s.start_s <= moves_s})
    for start_s, end_s, among in pieces:
        transferring_s += max(end_s - max(start_s, moves_s), 0.0) / among
        cuts = [start_s, *(at for at in arrivals_s if start_s < at < end_s), end_s]
        for begin_s, stop_s in pairwise(cuts):
            if begin_s >= moves_s:
                break
            part_s = (min(stop_s, moves_s) - begin_s) / among
            waiting_s += part_s
            late = one.waited_for(begin_s)
            for rank in late:
                charged[rank] += part_s / len(late)
    return Exposure(
        iteration=span.iteration,
        rank=span.rank,
        lane=span.lane,
        name=span.name,
        nbytes=span.nbytes,
        waiting_s=waiting_s,
        transferring_s=transferring_s,
        waited_for_s=dict(charged),
    )
