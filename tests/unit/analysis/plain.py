"""The analysis of a timeline span by span, as its formulas read: what columns must agree with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from syncopate.analysis.intervals import Interval, intersection, length_s, near, union, without
from syncopate.analysis.phases import COMMUNICATION, COMPUTATION
from syncopate.artifacts.timeline import PAUSES, Span, Timeline

Message = tuple[Span, ...]
"""The spans of one message, by rank."""


def computing(spans: Sequence[Span]) -> list[Interval]:
    busy = union((span.start_s, span.end_s) for span in spans if span.lane in COMPUTATION)
    waits = (span for span in spans if span.lane == "wait" and span.name not in PAUSES)
    return without(busy, union((span.start_s, span.end_s) for span in waits))


def phases(timeline: Timeline) -> list[tuple[float, ...]]:
    """Return iteration, rank, duration, computation, communication and what both have in common."""
    groups: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        groups[span.iteration, span.rank].append(span)
    found = []
    for key, spans in sorted(groups.items()):
        busy = computing(spans)
        sent = union((s.start_s, s.end_s) for s in spans if s.lane in COMMUNICATION)
        lasts_s = max(s.end_s for s in spans) - min(s.start_s for s in spans)
        both_s = length_s(intersection(busy, sent))
        found.append((*key, lasts_s, length_s(busy), length_s(sent), both_s))
    return found


def messages(timeline: Timeline, *, together: bool = True) -> list[Message]:
    """Return the messages in the order in which their last ranks arrived."""
    groups: dict[tuple[object, ...], dict[int, list[Span]]] = defaultdict(dict)
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        if span.lane in COMMUNICATION:
            key = (span.iteration, span.lane, span.name, span.channel)
            groups[key].setdefault(span.rank, []).append(span)
    found: list[Message] = []
    for by_rank in groups.values():
        for index in range(max(map(len, by_rank.values()))):
            there = [mine[index] for _, mine in sorted(by_rank.items()) if index < len(mine)]
            found += [tuple(there)] if together else [(span,) for span in there]
    return sorted(found, key=lambda one: (arrived_s(one), one[0].name))


def arrived_s(message: Message) -> float:
    return max(span.start_s for span in message)


def moves_s(message: Message, span: Span) -> float:
    return min(arrived_s(message), span.end_s)


def exposures(
    timeline: Timeline, *, together: bool = True
) -> list[tuple[Span, float, float, dict[int, float]]]:
    """Return each span of a message, its waiting and transferring, and for whom it waited."""
    of_rank: dict[int, list[tuple[Span, Message]]] = defaultdict(list)
    for message in messages(timeline, together=together):
        for span in message:
            of_rank[span.rank].append((span, message))
    found = []
    for rank, mine in of_rank.items():
        mine.sort(key=lambda pair: (pair[0].start_s, pair[0].end_s))
        busy = computing([span for span in timeline.spans if span.rank == rank])
        pieces: list[list[tuple[float, float, int]]] = [[] for _ in mine]
        bounds = sorted({at for span, _ in mine for at in (span.start_s, span.end_s)})
        for start_s, end_s in pairwise(bounds):
            there = [i for i, (s, _) in enumerate(mine) if s.start_s <= start_s < s.end_s]
            for free in without([(start_s, end_s)], near(busy, start_s, end_s)):
                for index in there:
                    pieces[index].append((*free, len(there)))
        found += [
            (span, *_shares(span, message, own))
            for (span, message), own in zip(mine, pieces, strict=True)
        ]
    found.sort(key=lambda row: (row[0].iteration, row[0].rank, row[0].start_s))
    return found


def _shares(
    span: Span, message: Message, pieces: Sequence[tuple[float, float, int]]
) -> tuple[float, float, dict[int, float]]:
    until_s = moves_s(message, span)
    waiting_s = transferring_s = 0.0
    charged: dict[int, float] = defaultdict(float)
    arrivals_s = sorted({s.start_s for s in message if s.start_s <= until_s})
    for start_s, end_s, among in pieces:
        transferring_s += max(end_s - max(start_s, until_s), 0.0) / among
        cuts = [start_s, *(at for at in arrivals_s if start_s < at < end_s), end_s]
        for begin_s, stop_s in pairwise(cuts):
            if begin_s < until_s:
                part_s = (min(stop_s, until_s) - begin_s) / among
                waiting_s += part_s
                late = [s.rank for s in message if s.start_s > begin_s]
                for rank in late:
                    charged[rank] += part_s / len(late)
    return waiting_s, transferring_s, dict(charged)


def transferring(
    timeline: Timeline, *, together: bool = True
) -> dict[tuple[int, int], list[Interval]]:
    """Return when messages moved, by iteration and rank."""
    found: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for message in messages(timeline, together=together):
        for span in message:
            found[span.iteration, span.rank].append((moves_s(message, span), span.end_s))
    return {key: union(where) for key, where in found.items()}


def worked(timeline: Timeline) -> dict[tuple[int, int], float]:
    """Return how long each rank computed in each iteration, pauses left out."""
    found: dict[tuple[int, int], float] = {}
    for rank in {span.rank for span in timeline.spans}:
        spans = [span for span in timeline.spans if span.rank == rank]
        idle = union((s.start_s, s.end_s) for s in spans if s.lane == "wait")
        for span in spans:
            if span.lane in COMPUTATION:
                found.setdefault((span.iteration, rank), 0.0)
        for iteration, _ in [key for key in found if key[1] == rank]:
            for lane in COMPUTATION:
                mine = [s for s in spans if (s.iteration, s.lane) == (iteration, lane)]
                where = without(union((s.start_s, s.end_s) for s in mine), idle)
                found[iteration, rank] += length_s(where)
    return found
