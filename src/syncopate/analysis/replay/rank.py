"""What one rank did, as tasks and messages, and what of it waited for what.

What waits for what goes by kind, and not by what ended before what: a push carries gradients, for
which the first update of its iteration waits that begins when it is over, or the next iteration
where none follows it. For a pull the first task waits that begins when it is over.

[Note: ends that are late] Profilers note the end of a collective when they hear of it, which may be
after what waited for it has begun. A task that stood still beside an open message of the kind that
it needs, or that began shortly before its end, waited for it: the message was over when it began.

[Note: standing beside an open message] The gap before a task, less what it waited for, is its
rank's own time and is kept. Where the rank had started all that it has to send, and waits for a
message after this task, time beside that message is waiting as well: short tasks in a wait, as
profilers note them, do not make it the rank's own. The gap that opens an iteration is for input.

[Note: messages in the midst of computation] Ranks that share a layer, or its parts, communicate
within forward and backward, and go on when that is over. So a rank waited for a message where it
computed nothing from its start to its end and went on at once, and does so with three quarters of
the messages of that name.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from syncopate.analysis import sweep
from syncopate.analysis.collectives import Collectives
from syncopate.analysis.intervals import Interval, common_s, near, union, without
from syncopate.analysis.path import CHANNEL_S
from syncopate.analysis.phases import COMPUTATION, stalling
from syncopate.spans import LANES, Spans

FORWARD, BACKWARD, PUSH, UPDATE, PULL = (
    LANES.index(lane) for lane in ("forward", "backward", "push", "update", "pull")
)

_LATE_S = 2e-3
"""The end of a message is noted at most as late; or as late as clocks are wrong."""

_SEAM_S = 2e-5
"""Computation of one lane that goes on within this time is one task."""

_BESIDE = 0.1
"""Computation that overlaps the one before by less than this part of it follows it."""

_MOSTLY = 0.75
"""What a rank does with so many messages of a name, it does with all."""

_SHORT = 0.01
"""A shorter part of an iteration's backward does not say when its gradients were there."""


class Times(NamedTuple):
    """What is known of the clocks of a timeline.

    Attributes:
        origin_s: when it begins.
        off_s: by how much clocks may be wrong.
    """

    origin_s: float
    off_s: float


class Task(NamedTuple):
    """A stretch of one rank's computation.

    Attributes:
        rank: whose.
        iteration: which it belongs to.
        lane: a place in :data:`~syncopate.spans.LANES`.
        start_s: when it began.
        end_s: when it ended.
        gap_s: the rank's own time before it: the gap less what it waited for.
        opens: whether it is the first of its rank in its iteration.
        previous: the rank's task before; -1 for its first.
    """

    rank: int
    iteration: int
    lane: int
    start_s: float
    end_s: float
    gap_s: float
    opens: bool
    previous: int


class Start(NamedTuple):
    """How a message starts on one rank, and when it was over for what waits for it.

    Attributes:
        end_s: when it was over.
        task: the computation that it follows; -1 where there is none before.
        share: how far that has come, in [0, 1].
        delay_s: from there to when the message is ready.
        after: the row of the message that it waits for; -1: none.
        handover_s: from when it is ready and may start to its start.
        queued: whether it waited for its channel, and nothing says since when.
    """

    end_s: float
    task: int
    share: float
    delay_s: float
    after: int
    handover_s: float
    queued: bool


class _Message(NamedTuple):
    start_s: float
    lane: int
    iteration: int
    name: int
    channel: int
    known_s: float


class Rank:
    """One rank.

    Args:
        rank: which.
        found: all collectives.
        clocks: of the timeline.
        base: how many tasks there are of ranks before it.
        served: whether messages go to and come from servers.

    Attributes:
        rows: its messages, as rows of the collectives, by start.
        tasks: by start.
        starts: of each message.
        gates: which task waits for which row.
    """

    def __init__(
        self, rank: int, found: Collectives, clocks: Times, base: int, *, served: bool
    ) -> None:
        every = found.spans
        spans = every.take(np.flatnonzero(every.rank == rank))
        self._origin_s, self._served = clocks.origin_s, served
        self._late_s = max(_LATE_S, clocks.off_s)
        self._channel_s = max(CHANNEL_S, clocks.off_s)
        stalls = sweep.union(spans, stalling(spans))
        self._pieces = _pieces(spans, stalls)
        self._start_s = [piece.start_s for piece in self._pieces]
        ends_s = [self._origin_s, *(piece.end_s for piece in self._pieces)]
        self._free_s: list[float] = np.maximum.accumulate(ends_s).tolist()
        self._stood = [
            common_s(stalls, a, b) > 0 for a, b in zip(self._free_s, self._start_s, strict=False)
        ]
        self.rows, self._messages, self._over_s = _messages(found, rank)
        gates = self._gates()
        gaps_s = self._own_gaps_s(gates)
        starts = list(self._starts())
        self._without_waits(gaps_s, {part: at for at, part in gates}, starts)
        self.gates = [(base + at, self.rows[part]) for at, part in gates]
        self.tasks = [
            Task(
                rank, piece.iteration, piece.lane, piece.start_s, piece.end_s, gap_s,
                self._opens(at), base + at - 1 if at else -1,
            )
            for at, (piece, gap_s) in enumerate(zip(self._pieces, gaps_s, strict=True))
        ]  # fmt: skip
        self.starts = [
            one._replace(
                end_s=over_s,
                task=base + one.task if one.task >= 0 else -1,
                after=self.rows[one.after] if one.after >= 0 else -1,
            )
            for one, over_s in zip(starts, self._over_s, strict=True)
        ]

    def _opens(self, at: int) -> bool:
        return not at or self._pieces[at].iteration != self._pieces[at - 1].iteration

    # -- what waits for what -------------------------------------------------------------------

    def _gates(self) -> list[tuple[int, int]]:
        """Return which tasks wait for which messages; note when these were over for them."""
        updates: dict[int, list[int]] = defaultdict(list)
        opening: dict[int, int] = {}
        for at, piece in enumerate(self._pieces):
            opening.setdefault(piece.iteration, at)
            if piece.lane == UPDATE:
                updates[piece.iteration].append(at)
        pulls = any(message.lane == PULL for message in self._messages)
        blocking = self._blocking()
        found = []
        for part, message in enumerate(self._messages):
            over_s = self._over_s[part]
            first = bisect_right(self._start_s, message.start_s)
            needing: Iterable[int] = [at for at in updates[message.iteration] if at >= first]
            must = bool(needing) or not pulls
            if message.lane == PULL:
                needing, must = self._from(first, message.iteration), False
            elif not needing:
                after = opening.get(message.iteration + 1, -1)
                needing = [after] if after >= first else []
            at = self._waits(part, needing, must=must)
            stood = bisect_left(self._start_s, over_s)
            if stood < len(self._pieces) and self._stood[stood] and over_s > self._free_s[stood]:
                found.append((stood, part))  # it says itself that it waited
            elif part in blocking and blocking[part] != at:
                found.append((blocking[part], part))
                self._over_s[part] = min(over_s, self._start_s[blocking[part]])
            if at >= 0:
                found += [(at, part)] if (at, part) not in found[-1:] else []
                self._over_s[part] = min(over_s, self._start_s[at])
        return found

    def _blocking(self) -> dict[int, int]:
        """Return which pushes a task waited for in the midst of computation, and which task.

        [Note: messages in the midst of computation]
        """
        found: dict[int, int] = {}
        for part, message in enumerate(self._messages):
            if message.lane != PUSH:
                continue
            over_s = self._over_s[part]
            at = bisect_left(self._start_s, over_s - self._late_s)
            if (
                at < len(self._pieces)
                and self._pieces[at].iteration == message.iteration
                and self._free_s[at] <= message.start_s + _SEAM_S
                and message.start_s < self._start_s[at] <= over_s + self._channel_s
            ):
                found[part] = at
        return self._mostly(found)

    def _following(self) -> dict[int, int]:
        """Return which messages a rank began when another was over, with nothing in between.

        [Note: messages in the midst of computation]
        """
        order = sorted(range(len(self._messages)), key=self._over_s.__getitem__)
        ends_s = [self._over_s[part] for part in order]
        found: dict[int, int] = {}
        for part, message in enumerate(self._messages):
            at_s = message.start_s if math.isnan(message.known_s) else message.known_s
            place = bisect_right(ends_s, min(at_s + self._late_s, message.start_s + _SEAM_S)) - 1
            if place < 0 or at_s - ends_s[place] > self._channel_s:
                continue
            before = order[place]
            begun_s = self._messages[before].start_s
            free_s = self._free_s[bisect_left(self._start_s, at_s)]
            if before != part and begun_s < at_s and free_s <= begun_s + _SEAM_S:
                found[part] = before
        return self._mostly(found)

    def _mostly(self, found: dict[int, int]) -> dict[int, int]:
        """Return what is found of three quarters of the messages of a name and channel."""
        keys = [(message.lane, message.name, message.channel) for message in self._messages]
        every, mine = Counter(keys), Counter(keys[part] for part in found)
        return {
            part: what
            for part, what in found.items()
            if mine[keys[part]] >= _MOSTLY * every[keys[part]]
        }

    def _from(self, first: int, number: int) -> Iterator[int]:
        """Yield tasks that may wait for weights of an iteration: of that, and the next."""
        for at in range(first, len(self._pieces)):
            if self._pieces[at].iteration > number + 1:
                return
            if self._pieces[at].iteration >= number:
                yield at

    def _waits(self, part: int, needing: Iterable[int], *, must: bool) -> int:
        """Return which of the tasks that need a message waited for it; -1: none.

        [Note: ends that are late]
        """
        last, late_s = -1, 0.0
        for at in needing:
            last, late_s = at, self._over_s[part] - self._start_s[at]
            if late_s <= 0 or (late_s <= self._late_s and self._beside_s(part, at) > 0):
                return at
        if last >= 0 and must and late_s <= max(self._late_s, self._beside_s(part, last)):
            return last
        return -1

    def _beside_s(self, part: int, at: int) -> float:
        """Return how long the rank stood still beside a message before a task."""
        return self._start_s[at] - max(self._free_s[at], self._messages[part].start_s)

    def _own_gaps_s(self, gates: Sequence[tuple[int, int]]) -> list[float]:
        """Return the gap before each task, less what it waited for."""
        since_s = self._free_s[: len(self._pieces)]
        for at, part in gates:
            since_s[at] = max(since_s[at], self._over_s[part])
        return [max(a - b, 0.0) for a, b in zip(self._start_s, since_s, strict=True)]

    def _without_waits(
        self, gaps_s: list[float], gates: dict[int, int], starts: Sequence[Start]
    ) -> None:
        """Count gaps as waits by [Note: standing beside an open message]."""
        driving = {start.task for start in starts}
        beside: dict[int, list[Interval]] = defaultdict(list)
        for part, gate in gates.items():
            begun_s, at = self._messages[part].start_s, gate - 1
            while at >= 0 and at not in driving and self._start_s[at] > begun_s:
                if gaps_s[at] > 0 and not self._opens(at):
                    beside[at].append((begun_s, self._over_s[part]))
                at -= 1
        for at, where in beside.items():
            start_s = self._start_s[at]
            gaps_s[at] -= common_s(union(where), start_s - gaps_s[at], start_s)

    # -- how messages start --------------------------------------------------------------------

    def _starts(self) -> Iterator[Start]:
        """Yield how each message starts; tasks and messages by their places on this rank.

        It waited for its channel where that was free later than computation was over, or just now.
        """
        backward_s = self._backward_ends_s()
        updated_s = [piece.end_s for piece in self._pieces if piece.lane == UPDATE]
        on_channel: dict[int, int] = {}
        pushed: dict[int, int] = {}
        following = self._following()
        for part, message in enumerate(self._messages):
            begun_s = message.start_s
            before = self._in_turn(on_channel.get(message.channel, -1), begun_s)
            own = pushed.get(message.name, -1) if message.lane == PULL else -1
            if own >= 0 and self._over_s[own] <= begun_s and not self._served:
                before = own if before < 0 or self._over_s[own] > self._over_s[before] else before
            if (last := following.get(part, -1)) >= 0 and self._over_s[last] <= begun_s:
                before = last if before < 0 or self._over_s[last] > self._over_s[before] else before
            free_s = self._over_s[before] if before >= 0 else self._origin_s
            ready_s, queued = begun_s, False
            if not math.isnan(message.known_s):
                ready_s = min(begun_s, message.known_s)
            elif before >= 0 and begun_s - free_s <= max(self._channel_s, self._idle_s(begun_s)):
                queued = message.lane == PUSH
                number = self._messages[own].iteration if own >= 0 else message.iteration
                ready_s = min(begun_s, backward_s.get(number, begun_s))
                place = bisect_right(updated_s, begun_s) if message.lane == PULL else 0
                if place and (ready_s == begun_s or updated_s[place - 1] > ready_s):
                    ready_s = updated_s[place - 1]
            at = bisect_right(self._start_s, ready_s) - 1
            share, delay_s = 0.0, ready_s - self._origin_s
            if at >= 0:
                under = self._pieces[at]
                share = min((ready_s - under.start_s) / (under.end_s - under.start_s or 1.0), 1.0)
                delay_s = max(ready_s - under.end_s, 0.0)
            handover_s = max(begun_s - max(ready_s, free_s), 0.0)
            yield Start(self._over_s[part], at, share, delay_s, before, handover_s, queued)
            on_channel[message.channel] = part
            if message.lane == PUSH:
                pushed[message.name] = part

    def _idle_s(self, at_s: float) -> float:
        """Return for how long the rank had computed nothing."""
        return at_s - self._free_s[bisect_right(self._start_s, at_s)]

    def _in_turn(self, before: int, begun_s: float) -> int:
        """Return the message before on a channel; -1: none, or several are under way at a time.

        [Note: ends that are late]
        """
        late_s = self._over_s[before] - begun_s if before >= 0 else 0.0
        if late_s > 0:
            if late_s > min(self._late_s, (begun_s - self._messages[before].start_s) / 2):
                return -1
            self._over_s[before] = begun_s
        return before

    def _backward_ends_s(self) -> dict[int, float]:
        """Return when all gradients of each iteration were there."""
        lasts_s: dict[int, float] = defaultdict(float)
        mine = [piece for piece in self._pieces if piece.lane == BACKWARD]
        for piece in mine:
            lasts_s[piece.iteration] += piece.end_s - piece.start_s
        return {
            piece.iteration: piece.end_s
            for piece in mine
            if piece.end_s - piece.start_s >= _SHORT * lasts_s[piece.iteration]
        }


def _messages(found: Collectives, rank: int) -> tuple[list[int], list[_Message], list[float]]:
    """Return the rows of a rank's messages by start, the messages, and when they were over."""
    spans = found.spans
    rows = np.flatnonzero(spans.rank[found.rows] == rank)
    rows = rows[np.lexsort((rows, spans.start_s[found.rows[rows]]))]
    at = found.rows[rows]
    known_s = np.where(np.isnan(spans.launched_s[at]), spans.ready_s[at], spans.launched_s[at])
    columns = (spans.start_s, spans.lane, spans.iteration, spans.name, spans.channel)
    values = (*(column[at].tolist() for column in columns), known_s.tolist())
    messages = [_Message(*row) for row in zip(*values, strict=True)]
    return rows.tolist(), messages, spans.end_s[at].tolist()


class _Piece(NamedTuple):
    """A stretch of computation."""

    start_s: float
    end_s: float
    lane: int
    iteration: int


def _pieces(spans: Spans, stalls: list[Interval]) -> list[_Piece]:
    """Return what one rank computed, by start, cut where it waited for messages.

    What lies within other computation is part of it, and what goes on in one lane is one piece.
    """
    counted = spans.take(np.flatnonzero(spans.in_lanes(*COMPUTATION)))
    order = np.lexsort((-counted.end_s, counted.start_s))
    columns = (counted.start_s, counted.end_s, counted.lane, counted.iteration)
    found: list[_Piece] = []
    for one in map(_Piece, *(column[order].tolist() for column in columns)):
        last = found[-1] if found else None
        if last is None or one.start_s > last.end_s + _SEAM_S:
            found.append(one)
            continue
        same = (one.lane, one.iteration) == (last.lane, last.iteration)
        lasts_s = one.end_s - one.start_s
        if one.end_s <= last.end_s and (same or 2 * lasts_s <= last.end_s - last.start_s):
            continue
        if same:
            found[-1] = last._replace(end_s=max(one.end_s, last.end_s))
        elif 0 < last.end_s - one.start_s <= _BESIDE * lasts_s:
            found.append(one._replace(start_s=last.end_s))
        else:
            found.append(one)
    if not stalls:
        return found
    return sorted(
        piece._replace(start_s=start_s, end_s=end_s)
        for piece in found
        for start_s, end_s in without(
            [(piece.start_s, piece.end_s)], near(stalls, piece.start_s, piece.end_s)
        )
    )
