"""Perfetto: a timeline as Chrome JSON, for ui.perfetto.dev and chrome://tracing.

One process per rank, or for all ranks that do the same, and one thread per lane and channel.
Complete events must nest within their thread, so a span that overlaps another one without nesting
moves to a further thread of its lane. The spans of one collective on all ranks are joined by flow
arrows in the order in which the ranks started it, and a counter of each rank shows the bytes of the
messages under way. With parameter servers there are no collectives: arrows then join the two ends
of single messages, where a run captured them. Times are whole nanoseconds, written in microseconds
as the format wants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from syncopate.artifacts.plan import SERVED
from syncopate.artifacts.timeline import LANES, Span, Timeline
from syncopate.units import format_count

_COMMUNICATION = ("push", "pull")

Event = dict[str, Any]
"""One event of the format."""


def to_perfetto(timeline: Timeline, beside: Iterable[dict[str, Any]] = ()) -> bytes:
    """Return ``timeline`` as UTF-8 Chrome JSON.

    Args:
        timeline: measured or simulated.
        beside: further events, as of :mod:`syncopate.tracing.served.perfetto`.
    """
    threads = _threads(_place(timeline.kept))
    events = list(_names(timeline, threads))
    for (rank, tid), (_, placed) in threads.items():
        events.extend(_complete(one, rank, tid) for one in placed)
    events.extend(_under_way(timeline.world_size, threads))
    if timeline.metadata.get("exchange") != SERVED:
        events.extend(_arrows(threads))
    events.extend(beside)
    # What came before the first span begins the file.
    early_us = -min((event["ts"] for event in events if "ts" in event), default=0.0)
    if early_us > 0:
        for event in events:
            if "ts" in event:
                event["ts"] = round(event["ts"] + early_us, 3)
    document = {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"name": timeline.name, "source": timeline.source} | timeline.metadata,
    }
    return msgspec.json.encode(document) + b"\n"


class _Placed(NamedTuple):
    """A span with its times in whole nanoseconds since the timeline's first start."""

    start: int
    end: int
    span: Span


_Threads = dict[tuple[int, int], tuple[str, list[_Placed]]]


def _place(spans: Iterable[Span]) -> list[_Placed]:
    spans = list(spans)
    origin_s = min((span.start_s for span in spans), default=0.0)
    return [
        _Placed(nanoseconds(s.start_s - origin_s), nanoseconds(s.end_s - origin_s), s)
        for s in spans
    ]


def nanoseconds(seconds: float) -> int:
    """Return a duration in whole nanoseconds."""
    return round(seconds * 1e9)


def process(pid: int, name: str) -> Iterator[Event]:
    """Yield what names a process; processes stand in the order of their numbers."""
    yield _meta("process_name", pid, {"name": name})
    yield _meta("process_sort_index", pid, {"sort_index": pid})


def thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    """Yield what names a thread of a process."""
    yield _meta("thread_name", pid, {"name": name}, tid)
    yield _meta("thread_sort_index", pid, {"sort_index": tid}, tid)


def arrow(source: Event, target: Event) -> Iterator[Event]:
    """Yield an arrow between two places in threads, which have its number as their ``id``."""
    yield source | {"ph": "s"}
    yield target | {"ph": "f", "bp": "e"}


def _meta(name: str, pid: int, args: Event, tid: int = 0) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _threads(placed: Iterable[_Placed]) -> _Threads:
    """Return ``(rank, tid) -> (name, spans that nest)``; tids follow lane, channel, row."""
    groups: dict[tuple[int, int, int], list[_Placed]] = defaultdict(list)
    for one in placed:
        groups[one.span.rank, LANES.index(one.span.lane), one.span.channel].append(one)
    several = {(rank, lane) for rank, lane, channel in groups if channel > 0}
    threads: _Threads = {}
    used: dict[int, int] = defaultdict(int)
    for rank, lane, channel in sorted(groups):
        for row, nested in enumerate(_rows(groups[rank, lane, channel])):
            name = LANES[lane]
            if (rank, lane) in several:
                name += f" {channel}"
            if row:
                name += f" (overlapping {row})"
            threads[rank, used[rank]] = (name, nested)
            used[rank] += 1
    return threads


def _rows(placed: Iterable[_Placed]) -> list[list[_Placed]]:
    """Distribute spans over as few rows as first fit finds, so that each row nests."""
    rows: list[list[_Placed]] = []
    stacks: list[list[int]] = []
    for one in sorted(placed, key=lambda p: (p.start, -p.end)):
        for row, stack in zip(rows, stacks, strict=True):
            while stack and stack[-1] <= one.start:
                stack.pop()
            if not stack or one.end <= stack[-1]:
                row.append(one)
                stack.append(one.end)
                break
        else:
            rows.append([one])
            stacks.append([one.end])
    return rows


def _names(timeline: Timeline, threads: _Threads) -> Iterator[Event]:
    like = {one.rank: one.all.tolist() for one in timeline.alike}
    elsewhere = {other for rank, ranks in like.items() for other in ranks if other != rank}
    for rank in range(timeline.world_size):
        if rank in elsewhere:
            continue
        others = len(like.get(rank, [rank])) - 1
        beside = f" and {format_count(others, 'other')} like it" if others else ""
        yield from process(rank, f"rank {rank}{beside}")
    for (rank, tid), (name, _) in threads.items():
        yield from thread(rank, tid, name)


def _complete(placed: _Placed, pid: int, tid: int) -> Event:
    span = placed.span
    args: Event = {"iteration": span.iteration}
    if span.lane in _COMMUNICATION:
        args |= {"bytes": span.nbytes, "channel": span.channel}
    if span.detail:
        args["detail"] = span.detail
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.lane,
        "pid": pid,
        "tid": tid,
        "ts": placed.start / 1000,
        "dur": (placed.end - placed.start) / 1000,
        "args": args,
    }


def _under_way(world_size: int, threads: _Threads) -> Iterator[Event]:
    """Yield each rank's counter of the bytes of the messages it takes part in at a time."""
    changes: list[dict[int, int]] = [defaultdict(int) for _ in range(world_size)]
    for (rank, _), (_, placed) in threads.items():
        for start, end, span in placed:
            if span.lane in _COMMUNICATION and span.nbytes:
                changes[rank][start] += span.nbytes
                changes[rank][end] -= span.nbytes
    for rank, own in enumerate(changes):
        nbytes = 0
        for moment, change in sorted(own.items()):
            nbytes += change
            event: Event = {"ph": "C", "name": "bytes under way", "pid": rank, "tid": 0}
            yield event | {"ts": moment / 1000, "args": {"bytes": nbytes}}


def _arrows(threads: _Threads) -> Iterator[Event]:
    """Join every collective's spans, found by iteration, name, lane and channel on all ranks."""
    collectives: dict[tuple[int, str, str, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    for (rank, tid), (_, placed) in threads.items():
        for start, _end, span in placed:
            if span.lane in _COMMUNICATION:
                key = (span.iteration, span.name, span.lane, span.channel)
                collectives[key].setdefault(rank, (start, tid))
    identifier = 0
    for (_, name, lane, _), ranks in sorted(collectives.items()):
        order = sorted((start, rank, tid) for rank, (start, tid) in ranks.items())
        for source, target in pairwise(order):
            identifier += 1
            event: Event = {"ph": "", "name": name, "cat": f"{lane} flow", "id": identifier}
            yield from arrow(
                *(
                    event | {"pid": rank, "tid": tid, "ts": start / 1000}
                    for start, rank, tid in (source, target)
                )
            )
