"""Perfetto: messages of a parameter server's nodes, each with an arrow from where it was sent.

Servers and the scheduler are processes behind the ranks; a worker's messages are in the process of
its rank. A message is a slice of a microsecond, or less where the next one follows sooner: where
ZeroMQ was given it, and where it was taken from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from syncopate.tracing.perfetto import Event, arrow, nanoseconds, process, thread
from syncopate.tracing.run import Run
from syncopate.tracing.served.node_offsets import pairs
from syncopate.tracing.served.read import Served
from syncopate.tracing.served.rows import SCHEDULER, Wired
from syncopate.tracing.served.workers import key_names

_LANES = ("update", "search", "sent", "received")
_FIRST_LANE = 1000
"""Behind the lanes that a rank has besides."""

_SLICE_NS = 1000
_FIRST_ARROW = 1 << 40
"""Behind the arrows of collectives."""


def served_events(run: Run | None) -> Iterator[Event]:
    """Yield the events of all nodes, in microseconds from where the timeline begins.

    Args:
        run: those of the iterations that it shows; None or one without servers has none.
    """
    if run is None or run.served is None:
        return
    served, origin_s = run.served, run.origin_s
    since_s = origin_s if run.first else -math.inf
    processes = {node: _process(node, served, run) for node in served.messages}
    for node, pid in processes.items():
        yield from _names(node, pid)
    names = key_names(served)
    seen = {
        node: [m for m in mine if m.time_s >= since_s] for node, mine in served.messages.items()
    }
    for node, mine in seen.items():
        for lane in ("sent", "received"):
            some = [m for m in mine if m.sends == (lane == "sent")]
            yield from _slices(some, processes[node], lane, names, origin_s)
    for work in served.work:
        if work.kind in _LANES and work.start_s >= since_s:
            start = nanoseconds(work.start_s - origin_s)
            end = nanoseconds(work.end_s - origin_s)
            event = _slice(names.get(work.key, f"key {work.key}"), processes[work.node], work.kind)
            args: Event = {"key": work.key, "version": work.number}
            args |= {"for": work.peer} if work.peer else {}
            yield event | {"ts": start / 1000, "dur": (end - start) / 1000, "args": args}
    yield from _arrows(list(seen.values()), processes, names, origin_s)


def _process(node: str, served: Served, run: Run) -> int:
    first = run.timeline.world_size
    if node == SCHEDULER:
        return first + served.workers + served.servers
    if node[0] == "s":
        return first + served.workers + int(node[1:])
    # A worker without a rank has a process of its own.
    return run.ranks.get(node, first + int(node[1:]))


def _names(node: str, pid: int) -> Iterator[Event]:
    roles = {"w": "worker", "s": "server"}
    name = SCHEDULER if node == SCHEDULER else f"{roles[node[0]]} {node[1:]}"
    if node[0] != "w":
        yield from process(pid, name)
    for lane in _LANES if name.startswith("server") else ("sent", "received"):
        said = f"messages {lane}" if lane in ("sent", "received") else lane
        yield from thread(pid, _tid(lane), said)


def _tid(lane: str) -> int:
    return _FIRST_LANE + _LANES.index(lane)


def _slices(
    messages: Sequence[Wired], pid: int, lane: str, names: Mapping[int, str], origin_s: float
) -> Iterator[Event]:
    starts = [nanoseconds(m.time_s - origin_s) for m in messages]
    ends = [*starts[1:], starts[-1] + _SLICE_NS] if starts else []
    for m, start, end in zip(messages, starts, ends, strict=True):
        args: Event = {"peer": m.peer, "bytes": m.nbytes}
        if m.key >= 0:
            args |= {"key": m.key, "number": m.number}
        if m.sends:
            waited_us = round((m.time_s - m.queued_s) * 1e6, 3)
            args |= {"priority": m.priority, "waited_us": waited_us}
        dur = min(_SLICE_NS, end - start) / 1000
        yield _slice(_name(m, names), pid, lane) | {"ts": start / 1000, "dur": dur, "args": args}


def _slice(name: str, pid: int, lane: str) -> Event:
    return {"ph": "X", "name": name, "cat": lane, "pid": pid, "tid": _tid(lane)}


def _arrows(
    seen: Sequence[Sequence[Wired]],
    processes: Mapping[str, int],
    names: Mapping[int, str],
    origin_s: float,
) -> Iterator[Event]:
    """Join every message's two ends."""
    for number, (sent, came, _, _) in enumerate(pairs(seen)):
        ends = []
        for m, lane in ((sent, "sent"), (came, "received")):
            event = _slice(_name(sent, names), processes[m.node], lane)
            event |= {"cat": "message flow", "id": _FIRST_ARROW + number}
            ends.append(event | {"ts": nanoseconds(m.time_s - origin_s) / 1000})
        yield from arrow(*ends)


def _name(m: Wired, names: Mapping[int, str]) -> str:
    return f"{m.kind} {names.get(m.key, m.key)}" if m.key >= 0 else m.kind
