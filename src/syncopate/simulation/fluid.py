"""The event kernel: one thread of computation and collectives on channels, as a fluid.

It knows nothing of models or plans: work comes in as seconds and goes out as times. The rules are
those of the notes in ``iteration.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from syncopate.cluster import Interference


@dataclass(frozen=True)
class Collective:
    """One bucket's communication.

    Attributes:
        ready_s: the progress of computation at which it may start.
        duration_s: how long it takes on an otherwise idle machine.
        startup_s: the part of it that does not share the link.
        channel: which channel carries it.
    """

    ready_s: float
    duration_s: float
    startup_s: float = 0.0
    channel: int = 0


@dataclass(frozen=True)
class Run:
    """What happened: see ``iteration.Iteration`` for the fields."""

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    compute_end_s: float
    progress: tuple[tuple[float, float], ...]


class _Work:
    """Work that progresses at a rate.

    Its anchor moves only when the rate changes, so that undisturbed work is exact: it started at
    ``since`` with ``done`` and reaches ``amount`` at ``since + (amount - done) / rate``.
    """

    __slots__ = ("done", "rate", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.done = 0.0
        self.rate = 1.0

    def set_rate(self, now: float, rate: float, at_least: float = 0.0) -> bool:
        """Change the rate from now on; return whether it was another one.

        Args:
            now: the time.
            rate: amount per second.
            at_least: what is known to be done by now. Rounding must not undo it: before a stall,
                the last bit would cost the whole stall.
        """
        if rate == self.rate:
            return False
        self.done = max(self.done + (now - self.since) * self.rate, at_least)
        self.since = now
        self.rate = rate
        return True

    def when(self, amount: float) -> float:
        """Return the time at which ``amount`` is done, at the present rate."""
        if amount <= self.done:
            return self.since
        return self.since + (amount - self.done) / self.rate if self.rate > 0 else math.inf


class _Job:
    """A running collective: first its start-up, then its share of the link."""

    __slots__ = ("amount", "index", "shares_link", "transfer_s", "work")

    def __init__(self, index: int, startup_s: float, transfer_s: float, now: float) -> None:
        self.index = index
        self.transfer_s = transfer_s
        self.shares_link = startup_s == 0.0
        self.amount = transfer_s if self.shares_link else startup_s
        self.work = _Work(now)

    @property
    def next_s(self) -> float:
        """When the present part ends, at the present rate."""
        return self.work.when(self.amount)

    def ends(self, now: float) -> bool:
        """Return whether it has ended; step from start-up to transfer on the way."""
        if not self.shares_link and now >= self.next_s:
            self.shares_link = True
            self.amount = self.transfer_s
            self.work = _Work(now)
        return self.shares_link and now >= self.next_s


class _Machine:
    """The state of a run between two events."""

    def __init__(
        self, compute_s: float, collectives: Sequence[Collective], interference: Interference
    ) -> None:
        self.collectives = collectives
        self.interference = interference
        self.compute_s = max(compute_s, max((c.ready_s for c in collectives), default=0.0))
        self.compute = _Work(0.0)
        self.progress = [(0.0, 0.0)]
        self.reached_s = 0.0
        self.queues: dict[int, deque[int]] = {}
        for index, collective in enumerate(collectives):
            self.queues.setdefault(collective.channel, deque()).append(index)
        # Alone on the link a collective is one part, which keeps its end exact.
        self.splits = len(self.queues) > 1
        self.running: dict[int, _Job] = {}
        self.starts = [0.0] * len(collectives)
        self.ends = [0.0] * len(collectives)

    def end_collectives(self, now: float) -> None:
        for channel, job in list(self.running.items()):
            if job.ends(now):
                self.ends[job.index] = now
                del self.running[channel]

    def start_collectives(self, now: float) -> None:
        for channel, queue in self.queues.items():
            while queue and channel not in self.running:
                collective = self.collectives[queue[0]]
                if now < self.compute.when(collective.ready_s):
                    break
                index = queue.popleft()
                self.starts[index] = self.ends[index] = now
                self.reached_s = max(self.reached_s, collective.ready_s)
                if collective.duration_s > 0:
                    whole = collective.duration_s
                    startup = min(collective.startup_s, whole) if self.splits else 0.0
                    self.running[channel] = _Job(index, startup, whole - startup, now)

    def set_rates(self, now: float) -> None:
        overlapped = now < self.compute.when(self.compute_s)
        stretch = self.interference.collective_stretch if overlapped else 1.0
        sharers = sum(job.shares_link for job in self.running.values())
        for job in self.running.values():
            job.work.set_rate(now, 1.0 / (stretch * (sharers if job.shares_link else 1)))
        if overlapped:
            rate = self.interference.compute_rate if self.running else 1.0
            if self.compute.set_rate(now, rate, self.reached_s):
                self.progress.append((now, self.compute.done))

    def next_event(self, now: float) -> float | None:
        """Return when anything changes next, or None when all collectives have ended."""
        times = [job.next_s for job in self.running.values()]
        if self.running and now < (end := self.compute.when(self.compute_s)):
            times.append(end)
        times += [
            self.compute.when(self.collectives[queue[0]].ready_s)
            for channel, queue in self.queues.items()
            if queue and channel not in self.running
        ]
        return min(times) if times else None


def run(compute_s: float, collectives: Sequence[Collective], interference: Interference) -> Run:
    """Run computation of ``compute_s`` seconds beside ``collectives``.

    Args:
        compute_s: computation that overlaps with collectives; at least the last ready time.
        collectives: in launch order per channel.
        interference: see [Note: interference] in ``iteration.py``.
    """
    machine = _Machine(compute_s, collectives, interference)
    now: float | None = 0.0
    while now is not None:
        machine.end_collectives(now)
        machine.start_collectives(now)
        machine.set_rates(now)
        now = machine.next_event(now)
    end = machine.compute.when(machine.compute_s)
    return Run(
        starts_s=tuple(machine.starts),
        ends_s=tuple(machine.ends),
        compute_end_s=end,
        progress=(*machine.progress, (end, machine.compute_s)),
    )
