"""Ideal: when an iteration ends whose overlap costs nothing, and nothing else about it.

The planner plays thousands of partitions to learn one number of each. Where computation and
collectives do not disturb each other, computation runs at one rate, and an iteration falls into two
parts: all pulls end before the piece of computation begins in which pushes become ready. Each part
is played by itself here. It is the arithmetic of ``fluid.py`` in the same order, so that the number
is the same to the last bit, without the events of computation and without what the caller of
``run`` learns beside it. Served weights, delays and links with turns are played there alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from syncopate.artifacts.workload import Workload
from syncopate.simulation.traffic import Traffic


class _Message(NamedTuple):
    """A collective that waits for its channel and for a time.

    Attributes:
        earliest_s: when it may start.
        duration_s: how long it takes on an otherwise idle machine.
        startup_s: the part of it that does not share the link.
        channel: which channel carries it.
        link: which link its bytes share.
    """

    earliest_s: float
    duration_s: float
    startup_s: float
    channel: int
    link: int


def iteration_s(workload: Workload, traffic: Traffic) -> float:
    """Return how long the steady iteration takes where overlap costs nothing; see the module.

    Args:
        workload: what is computed.
        traffic: the messages, not to servers.
    """
    pulls = [pull for bucket in traffic.pulled if (pull := traffic.pulls[bucket]) is not None]
    channels = {pull.channel for pull in pulls} | {push.channel for push in traffic.pushes}
    split = len(channels) > 1
    pulled_s = _ends_s([_Message(0.0, *pull[1:4], pull.link) for pull in pulls], split)
    gates_s: dict[float, float] = {0.0: 0.0}
    for pull, end_s in zip(pulls, pulled_s, strict=True):
        gates_s[pull.needed_s] = max(gates_s.get(pull.needed_s, 0.0), end_s)
    last_ready_s = max((push.ready_s for push in traffic.pushes), default=0.0)
    computed_s = max(workload.forward_s + workload.backward_s, last_ready_s)
    now = begin_s = base_s = left_s = 0.0
    for base_s, next_s in pairwise((*sorted(gates_s), computed_s)):
        begin_s, left_s = max(now, gates_s[base_s]), next_s - base_s
        now = _after(begin_s, left_s)
    messages = [
        _Message(_after(begin_s, min(push.ready_s - base_s, left_s)), *push[1:4], push.link)
        for push in traffic.pushes
    ]
    return _after(max([now, *_ends_s(messages, split)]), traffic.update_s)


def _after(start_s: float, work_s: float) -> float:
    return start_s + work_s if work_s > 0 else start_s


def _ends_s(messages: Sequence[_Message], split: bool) -> list[float]:
    """Return when messages end, each on its channel.

    Args:
        messages: in launch order.
        split: whether their start-ups are told from their bytes, which share the link.
    """
    if split:
        return _shared_ends_s(messages)
    now, ends_s = 0.0, []
    for earliest_s, duration_s, *_ in messages:
        now = _after(max(now, earliest_s), duration_s)
        ends_s.append(now)
    return ends_s


class _Flow:
    """A message on its way: first its start-up, then its share of the link."""

    __slots__ = ("amount_s", "bytes_s", "done_s", "ends_s", "index", "link", "rate", "since_s")

    def __init__(self, index: int, link: int, startup_s: float, bytes_s: float, now: float) -> None:
        self.index, self.link = index, link
        self.bytes_s = bytes_s  # what is left to begin when the start-up is over
        self._begin(startup_s, now)
        if startup_s == 0.0:
            self.send(now)

    def send(self, now: float) -> None:
        """Begin with the bytes."""
        amount_s, self.bytes_s = self.bytes_s, -1.0
        self._begin(amount_s, now)

    def _begin(self, amount_s: float, now: float) -> None:
        self.since_s, self.done_s, self.rate, self.amount_s = now, 0.0, 1.0, amount_s
        self.ends_s = _after(now, amount_s)

    def run_at(self, now: float, rate: float) -> None:
        """Go on at another rate."""
        self.done_s += (now - self.since_s) * self.rate
        self.since_s, self.rate = now, rate
        self.ends_s = _after(now, (self.amount_s - self.done_s) / rate)


def _shared_ends_s(messages: Sequence[_Message]) -> list[float]:
    """Return when messages end on channels whose bytes share links equally."""
    ends_s = [0.0] * len(messages)
    queues: dict[int, list[int]] = {}
    for index in range(len(messages) - 1, -1, -1):
        queues.setdefault(messages[index].channel, []).append(index)
    waiting = list(queues.values())  # the next of each last
    running: list[_Flow | None] = [None] * len(waiting)
    now = 0.0
    while now < math.inf:
        event_s = math.inf
        for place, queue in enumerate(waiting):
            flow = running[place]
            if flow is not None and now >= flow.ends_s:
                if flow.bytes_s >= 0:
                    flow.send(now)
                if now >= flow.ends_s:
                    ends_s[flow.index], flow = now, None
            while queue and flow is None:
                earliest_s, duration_s, startup_s, _, link = messages[queue[-1]]
                if now < earliest_s:
                    event_s = min(event_s, earliest_s)
                    break
                index = queue.pop()
                ends_s[index] = now
                if duration_s > 0:
                    startup_s = min(startup_s, duration_s)
                    flow = _Flow(index, link, startup_s, duration_s - startup_s, now)
            running[place] = flow
        sending = [flow.link for flow in running if flow is not None and flow.bytes_s < 0]
        for flow in running:
            if flow is not None:
                rate = 1.0 if flow.bytes_s >= 0 else 1.0 / sending.count(flow.link)
                if rate != flow.rate:
                    flow.run_at(now, rate)
                event_s = min(event_s, flow.ends_s)
        now = event_s
    return ends_s
