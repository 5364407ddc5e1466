"""The event kernel: one thread of computation and collectives on channels, as a fluid.

It knows nothing of models or plans: work comes in as seconds and goes out as times. Computation is
a sequence of *pieces*, and a piece may wait for collectives before it begins. A collective waits
for its channel, and for computation to come as far as it says. The rules are those of the notes in
``iteration.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from syncopate.artifacts.cluster import Interference

_ROUNDING = 1e-12
"""Times that differ by less, as a share of them, differ by the rounding of their sums."""


class Collective(NamedTuple):
    """One bucket's communication.

    Attributes:
        ready_s: the progress of its piece of computation at which it may start.
        duration_s: how long it takes on an otherwise idle machine.
        startup_s: the part of it that does not share the link.
        channel: which channel carries it.
        piece: the piece of computation that ``ready_s`` speaks of.
        link: which link its bytes share; a link that carries both directions at once is two.
        turn: on its link a collective has nothing to share with one of a lower turn, which goes
            first, whichever began before; those of the same turn share it equally.
        after: the collectives that must have ended before it may start.
    """

    ready_s: float
    duration_s: float
    startup_s: float = 0.0
    channel: int = 0
    piece: int = 0
    link: int = 0
    turn: int = 0
    after: tuple[int, ...] = ()


class Piece(NamedTuple):
    """Computation without a wait inside it.

    Attributes:
        duration_s: how long it takes alone.
        after: the collectives that it waits for before it begins.
    """

    duration_s: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The times of computation and collectives, in seconds from the start.

    Attributes:
        starts_s: when each collective started.
        ends_s: when it ended.
        begins_s: when each piece of computation began, its waits over.
        finishes_s: when it was done.
        progress: per piece, the ``(time, progress)`` points from which on it ran at another rate.
    """

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    begins_s: tuple[float, ...]
    finishes_s: tuple[float, ...]
    progress: tuple[tuple[tuple[float, float], ...], ...]


class _Work:
    """Work that progresses at a rate.

    Its anchor moves only when the rate changes, so that undisturbed work is exact: it started at
    ``since`` with ``done`` and reaches ``amount`` at ``since + (amount - done) / rate``. When it
    reaches its own amount, ``ends_s``, is worked out as often, for it is asked at every event.
    """

    __slots__ = ("amount", "done", "ends_s", "rate", "since")

    def __init__(self, now: float, amount: float) -> None:
        self.since = now
        self.done = 0.0
        self.rate = 1.0
        self.amount = amount
        self.ends_s = self.when(amount)

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
        self.ends_s = self.when(self.amount)
        return True

    def when(self, amount: float) -> float:
        """Return the time at which ``amount`` is done, at the present rate."""
        if amount <= self.done:
            return self.since
        return self.since + (amount - self.done) / self.rate if self.rate > 0 else math.inf


class _Job:
    """A running collective: first its start-up, then its share of the link."""

    __slots__ = ("index", "shares_link", "transfer_s", "work")

    def __init__(self, index: int, startup_s: float, transfer_s: float, now: float) -> None:
        self.index = index
        self.transfer_s = transfer_s
        self.shares_link = startup_s == 0.0
        self.work = _Work(now, transfer_s if self.shares_link else startup_s)

    def ends(self, now: float, by: float) -> bool:
        """Return whether it ends ``by`` then; step from start-up to transfer on the way."""
        if not self.shares_link and by >= self.work.ends_s:
            self.shares_link = True
            self.work = _Work(now, self.transfer_s)
        return self.shares_link and by >= self.work.ends_s


class Computation(Protocol):
    """The computation beside collectives: one thread here, one of each rank in ``ranks.py``."""

    @property
    def index(self) -> int:
        """The piece that computation is in; of several threads the one that is furthest behind."""

    @property
    def runs(self) -> bool:
        """Whether it computes, on any thread."""

    @property
    def next_s(self) -> float:
        """When that may change by itself next; inf: not before a collective ends."""

    def advance(self, now: float, ended: Sequence[bool]) -> bool:
        """Finish pieces that are done by now, and begin those that wait for nothing any more.

        Returns:
            Whether there were any.
        """

    def when(self, collective: Collective) -> float:
        """Return when computation comes as far as a collective asks, as far as is known now."""

    def reach(self, collective: Collective) -> None:
        """Note that computation has come as far as a collective asks."""

    def set_rate(self, now: float, rate: float) -> None:
        """Compute at another rate from now on."""


class _Thread:
    """The only thread that computes: the piece it is in, and whether it waits to begin it."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.index = 0
        self.waits = True
        self.arrived = 0  # of what the next piece waits for, this many have ended
        self.work = _Work(0.0, 0.0)
        self.reached_s = 0.0
        self.begins_s: list[float] = []
        self.finishes_s: list[float] = []
        self.progress: list[list[tuple[float, float]]] = []

    @property
    def runs(self) -> bool:
        return not self.waits and self.index < len(self.pieces)

    @property
    def next_s(self) -> float:
        return self.work.ends_s if self.runs else math.inf

    def advance(self, now: float, ended: Sequence[bool]) -> bool:
        advanced = False
        while self.index < len(self.pieces):
            if self.waits:
                after = self.pieces[self.index].after
                while self.arrived < len(after) and ended[after[self.arrived]]:
                    self.arrived += 1
                if self.arrived < len(after):
                    break
                self.waits, self.arrived = False, 0
                duration_s = self.pieces[self.index].duration_s
                self.work, self.reached_s = _Work(now, duration_s), 0.0
                self.begins_s.append(now)
                self.progress.append([(now, 0.0)])
                advanced = True
            if now < self.work.ends_s:
                break
            self.finishes_s.append(now)
            self.index += 1
            self.waits = advanced = True
        return advanced

    def when(self, collective: Collective) -> float:
        if collective.piece != self.index:
            return -math.inf if collective.piece < self.index else math.inf
        return math.inf if self.waits else self.work.when(collective.ready_s)

    def reach(self, collective: Collective) -> None:
        if collective.piece == self.index:
            self.reached_s = max(self.reached_s, collective.ready_s)

    def set_rate(self, now: float, rate: float) -> None:
        if self.work.set_rate(now, rate, self.reached_s):
            self.progress[-1].append((now, self.work.done))


class _Channels:
    """The collectives that have not begun, in the order of their channels.

    At an event most channels wait for a collective to end, or for a piece of computation that is
    far away. They are not asked again before that has happened; only the *open* ones are.
    """

    def __init__(self, collectives: Sequence[Collective]) -> None:
        self.collectives = collectives
        queues: dict[int, deque[int]] = {}
        for index, collective in enumerate(collectives):
            queues.setdefault(collective.channel, deque()).append(index)
        self.queues = list(queues.values())
        self.ended = [False] * len(collectives)
        self.open: set[int] = set()
        """Idle channels whose first collective waits for a moment of the present piece at most."""
        self.piece = 0
        self._after: dict[int, list[int]] = {}  # collective -> the channels that wait for its end
        self._later: dict[int, list[int]] = {}  # piece -> the channels that wait for it
        for place in range(len(self.queues)):
            self.look_at(place)

    def look_at(self, place: int) -> None:
        """Find out what an idle channel waits for."""
        if not self.queues[place]:
            return
        collective = self.collectives[self.queues[place][0]]
        for index in collective.after:
            if not self.ended[index]:
                self._after.setdefault(index, []).append(place)
                return
        if collective.piece > self.piece:
            self._later.setdefault(collective.piece, []).append(place)
        else:
            self.open.add(place)

    def end(self, index: int) -> None:
        """Note that a collective has ended."""
        self.ended[index] = True
        for place in self._after.pop(index, ()):
            self.look_at(place)

    def come_to(self, piece: int) -> None:
        """Note which piece of computation is the present one."""
        while self.piece < piece:
            self.piece += 1
            for place in self._later.pop(self.piece, ()):
                self.look_at(place)


class Machine:
    """The state of a run between two events.

    Args:
        computation: what computes.
        collectives: in launch order per channel.
        interference: see [Note: interference] in ``iteration.py``.

    Attributes:
        starts: when each collective started.
        ends: when it ended.
    """

    def __init__(
        self,
        computation: Computation,
        collectives: Sequence[Collective],
        interference: Interference,
    ) -> None:
        self.collectives = collectives
        self.interference = interference
        self.computation = computation
        self.channels = _Channels(collectives)
        # Alone on the link a collective is one part, which keeps its end exact.
        self.splits = len(self.channels.queues) > 1
        self.alike = all((one.link, one.turn) == (0, 0) for one in collectives)
        self.takes_turns = any(one.turn for one in collectives)
        self.running: dict[int, _Job] = {}  # by the place of its channel
        self.starts = [0.0] * len(collectives)
        self.ends = [0.0] * len(collectives)
        self.rates_hold = False  # whether nothing has happened since rates were set

    def end_collectives(self, now: float) -> None:
        """End what is done by now, and step from start-ups to bytes."""
        # Out of turn, what is done but for the rounding of times would stand still.
        by = now * (1 + _ROUNDING) if self.takes_turns else now
        due = [place for place, job in self.running.items() if by >= job.work.ends_s]
        for place in due:
            self.rates_hold = False
            job = self.running[place]
            if job.ends(now, by):
                self.ends[job.index] = now
                del self.running[place]
                self.channels.end(job.index)
                self.channels.look_at(place)

    def start_collectives(self, now: float) -> bool:
        """Start what can start; return whether some took no time and ended at once."""
        at_once = False
        opened = self.channels.open
        if not opened:
            return False
        for place in sorted(opened):
            while place in opened:
                index = self.channels.queues[place][0]
                collective = self.collectives[index]
                if now < self.computation.when(collective):
                    break
                self.channels.queues[place].popleft()
                opened.remove(place)
                self.starts[index] = self.ends[index] = now
                self.computation.reach(collective)
                if collective.duration_s > 0:
                    whole = collective.duration_s
                    startup = min(collective.startup_s, whole) if self.splits else 0.0
                    self.running[place] = _Job(index, startup, whole - startup, now)
                    self.rates_hold = False
                else:
                    at_once = True
                    self.channels.end(index)
                    self.channels.look_at(place)
        return at_once

    def sharers(self, running: Sequence[_Job]) -> list[float]:
        """Return among how many each job's link is shared: 1 in its start-up, inf out of turn."""
        if self.alike:
            count = 0
            for job in running:
                count += job.shares_link
            return [count if job.shares_link else 1 for job in running]
        turns: dict[int, list[int]] = {}
        for job in running:
            if job.shares_link:
                one = self.collectives[job.index]
                turns.setdefault(one.link, []).append(one.turn)
        first = {link: min(there) for link, there in turns.items()}
        found: list[float] = []
        for job in running:
            one = self.collectives[job.index]
            if not job.shares_link:
                found.append(1)
            elif one.turn > first[one.link]:
                found.append(math.inf)
            else:
                found.append(turns[one.link].count(one.turn))
        return found

    def set_rates(self, now: float) -> None:
        """Let what runs go on at the rates that hold from now on."""
        if self.rates_hold:
            return
        self.rates_hold = True
        computes = self.computation.runs
        stretch = self.interference.collective_stretch if computes else 1.0
        running = list(self.running.values())
        for job, sharers in zip(running, self.sharers(running), strict=True):
            rate = 1.0 / (stretch * sharers)
            if rate != job.work.rate:
                job.work.set_rate(now, rate)
        if computes:
            self.computation.set_rate(now, self.interference.compute_rate if running else 1.0)

    def next_event(self) -> float | None:
        """Return when anything changes next, or None when all is done."""
        computation = self.computation
        event = computation.next_s
        for job in self.running.values():
            event = min(event, job.work.ends_s)
        for place in self.channels.open:
            event = min(event, computation.when(self.collectives[self.channels.queues[place][0]]))
        return event if event < math.inf else None

    def settle(self, now: float) -> None:
        """Do all that happens at one moment: what ends, what begins, and what follows at once."""
        self.end_collectives(now)
        # A collective that is ready as its piece ends starts before the next piece begins.
        while self.start_collectives(now) | self._advance(now):
            pass
        self.set_rates(now)

    def play(self) -> None:
        """Play from 0 until nothing changes any more."""
        now: float | None = 0.0
        while now is not None:
            self.settle(now)
            now = self.next_event()

    def _advance(self, now: float) -> bool:
        if self.computation.advance(now, self.channels.ended):
            self.channels.come_to(self.computation.index)
            self.rates_hold = False
            return True
        return False


def run(
    pieces: Sequence[Piece], collectives: Sequence[Collective], interference: Interference
) -> Run:
    """Run computation beside collectives.

    Args:
        pieces: computation, in order. A collective that a piece waits for must be ready in an
            earlier piece, and no piece may end before the ready times that speak of it.
        collectives: in launch order per channel.
        interference: see [Note: interference] in ``iteration.py``.
    """
    computation = _Thread(pieces)
    machine = Machine(computation, collectives, interference)
    machine.play()
    assert computation.index == len(pieces), "a piece waits for what can never start"
    return Run(
        starts_s=tuple(machine.starts),
        ends_s=tuple(machine.ends),
        begins_s=tuple(computation.begins_s),
        finishes_s=tuple(computation.finishes_s),
        progress=tuple(map(tuple, computation.progress)),
    )
