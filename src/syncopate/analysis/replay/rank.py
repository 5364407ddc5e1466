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

[Note: pushes to servers] Servers answer a push with weights. Where these are pulled, a rank waits
for the pull, and its update for neither: that asks for the weights. Where a push of the same name
comes before any pull, the update that begins when the first is over waits for it. By a plan
messages are under way side by side, and each waits for the one before of its name and kind alone.
What backward is done with last is pushed and pulled first, and needed first. So a pull that came
before its turn is needed no earlier than those that go first, and no forward waits for a push.

[Note: messages in the midst of computation] Ranks that share a layer, or its parts, communicate
within forward and backward, and go on when that is over. So a rank waited for a message where it
computed nothing from its start to its end and went on at once, and does so with three quarters of
the messages of that name.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from syncopate.analysis import sweep
from syncopate.analysis.collectives import Collectives
from syncopate.analysis.intervals import Interval, common_s, union
from syncopate.analysis.path import CHANNEL_S
from syncopate.analysis.phases import stalling
from syncopate.analysis.replay.pieces import SEAM_S, backward_ends_s, pieces_of, without_small
from syncopate.analysis.replay.turns import in_turn
from syncopate.artifacts.timeline import PAUSES
from syncopate.artifacts.timelines.spans import LANES, Mask, Numbers, Times, coded

FORWARD, BACKWARD, PUSH, UPDATE, PULL = (
    LANES.index(lane) for lane in ("forward", "backward", "push", "update", "pull")
)

_LATE_S = 2e-3
"""The end of a message is noted at most as late; or as late as clocks are wrong."""

_MOSTLY = 0.75
"""What a rank does with so many messages of a name, it does with all."""

_HARDLY = 0.02
"""A rank that computes for less than this part of a wait stands still."""


class Run(NamedTuple):
    """What holds for a whole timeline.

    Attributes:
        origin_s: when it begins.
        off_s: by how much clocks may be wrong.
        served: whether messages go to and come from servers.
        by_turns: whether they do so side by side, as a plan has it: [Note: pushes to servers].
    """

    origin_s: float
    off_s: float
    served: bool
    by_turns: bool


class Tasks(NamedTuple):
    """Stretches of computation, by rank, then start; each field is a column.

    Attributes:
        rank: whose.
        iteration: which it belongs to.
        lane: a place in :data:`~syncopate.artifacts.timelines.spans.LANES`.
        start_s: when it began.
        end_s: when it ended.
        gap_s: the rank's own time before it: the gap less what it waited for.
        opens: whether it is the first of its rank in its iteration.
        previous: the rank's task before; -1 for its first.
    """

    rank: Numbers
    iteration: Numbers
    lane: Numbers
    start_s: Times
    end_s: Times
    gap_s: Times
    opens: Mask
    previous: Numbers


class Parts(NamedTuple):
    """A message on each of its ranks; each field is a column.

    Attributes:
        message: which.
        rank: where.
        iteration: which it belongs to.
        lane: a place in :data:`~syncopate.artifacts.timelines.spans.LANES`.
        name: a place in the texts of the timeline's columns.
        start_s: when it started.
        end_s: when it was over for what waits for it.
        task: the computation that it follows; -1 where there is none before.
        share: how far that has come, in [0, 1].
        delay_s: from there to when the message is ready.
        after: the part that its start waits for; -1: none.
        handover_s: from when it is ready and may start to its start.
        queued: whether it waited for its channel, and nothing says since when.
    """

    message: Numbers
    rank: Numbers
    iteration: Numbers
    lane: Numbers
    name: Numbers
    start_s: Times
    end_s: Times
    task: Numbers
    share: Times
    delay_s: Times
    after: Numbers
    handover_s: Times
    queued: Mask


class Rank:
    """One rank.

    Args:
        rank: which.
        own: its spans, as places in those of the timeline.
        rows: its messages, as places in the rows of the collectives.
        found: all collectives.
        run: what holds for the timeline.
        base: how many tasks there are of ranks before it.

    Attributes:
        rows: its messages, as rows of the collectives, by start.
        tasks: by start.
        parts: its messages, likewise.
        gates: which task waits for which row, a pair in each row.
    """

    def __init__(
        self,
        rank: int,
        own: Numbers,
        rows: Numbers,
        found: Collectives,
        run: Run,
        *,
        base: int,
    ) -> None:
        spans = found.spans.take(own)
        self._run, self._origin_s = run, run.origin_s
        self._late_s = max(_LATE_S, run.off_s)
        self._channel_s = max(CHANNEL_S, run.off_s)
        pauses = spans.in_lanes("wait") & spans.named(PAUSES)
        self._paused_s = np.sort(spans.end_s[pauses])
        stalls = sweep.union(spans, stalling(spans))
        self.rows = rows = rows[np.lexsort((rows, found.spans.start_s[found.rows[rows]]))]
        self._messages = sent = found.spans.take(found.rows[rows])
        self._known_s = np.where(np.isnan(sent.launched_s), sent.ready_s, sent.launched_s)
        self._over_s = found.over_s[rows]
        pieces = pieces_of(spans, stalls)
        pieces = without_small(pieces, sent.start_s, self._over_s, self._channel_s)
        self._pieces = pieces
        self._start_s = pieces.start_s
        ends_s = np.concatenate([[self._origin_s], pieces.end_s])
        self._free_s: Times = np.maximum.accumulate(ends_s)
        true = [one for one in stalls if one[0] < one[1]]
        self._stood = sweep.shared(true, self._free_s[:-1], self._start_s)
        changes = pieces.iteration[1:] != pieces.iteration[:-1]
        self._opens = np.concatenate([np.ones(min(len(pieces.start_s), 1), bool), changes])
        stood, waited = self._gates()
        at = np.concatenate([stood[stood >= 0], waited[waited >= 0]])
        part = np.concatenate([np.flatnonzero(stood >= 0), np.flatnonzero(waited >= 0)])
        self.gates = np.stack([base + at, self.rows[part]], axis=1)
        gaps_s = self._own_gaps_s(at, part)
        parts = self._parts(rank, found.of[rows])
        self._without_waits(gaps_s, np.where(waited >= 0, waited, stood), parts.task)
        before = np.arange(len(gaps_s)) - 1
        self.tasks = Tasks(
            np.full(len(gaps_s), rank), pieces.iteration, pieces.lane, self._start_s,
            pieces.end_s, gaps_s, self._opens, np.where(before >= 0, base + before, -1),
        )  # fmt: skip
        self.parts = parts._replace(
            task=np.where(parts.task >= 0, base + parts.task, -1),
            after=np.where(parts.after >= 0, np.append(rows, -1)[parts.after], -1),
        )

    # -- what waits for what -------------------------------------------------------------------

    def _gates(self) -> tuple[Numbers, Numbers]:
        """Note when messages were over for the tasks that wait for them.

        Returns:
            Of each message the task that says itself that it waited, and the task that waited by
            what it needs; -1: none.
        """
        sent, over_s = self._messages, self._over_s
        stood = np.searchsorted(self._start_s, over_s)
        there = np.flatnonzero(stood < len(self._start_s))
        on = stood[there]
        says = self._stood[on] & (over_s[there] > self._free_s[on])
        waited = np.full(len(over_s), -1)
        pulls = sent.lane == PULL
        first = np.searchsorted(self._start_s, sent.start_s, "right")
        self._find_pulled(waited, np.flatnonzero(pulls), first)
        if self._run.by_turns:
            self._need_in_turn(waited, np.flatnonzero(pulls))
        answered = self._pulled() if self._run.served else pulls
        pushes = np.flatnonzero(~(pulls | answered))
        self._find_pushed(waited, pushes, first, pulls=bool(pulls.any()))
        if self._run.by_turns:  # what a wait is for is known: [Note: pushes to servers]
            says &= ~(pulls & (waited >= 0))[there]
            says &= ~answered[there] | pulls[there] | (self._pieces.lane[on] != FORWARD)
        told = np.full(len(over_s), -1)
        told[there[says]] = on[says]
        blocked = self._blocked()
        also = np.flatnonzero((told < 0) & (blocked >= 0) & (blocked != waited))
        told[also] = blocked[also]
        self._over_s = over_s.copy()
        for parts, tasks in ((also, blocked), (np.flatnonzero(waited >= 0), waited)):
            self._over_s[parts] = np.minimum(over_s[parts], self._start_s[tasks[parts]])
        return told, waited

    def _need_in_turn(self, waited: Numbers, pulls: Numbers) -> None:
        """Let no pull be needed before those that are asked for first: [Note: pushes to servers].

        One that came early did so at the rate of the recording alone.
        """
        if not len(pulls):
            return
        pushed_s = np.append(self._messages.start_s, -np.inf)[self._pushed()[pulls]]
        number = np.unique(self._messages.iteration[pulls], return_inverse=True)[1]
        order = np.lexsort((-pushed_s, number))
        group = number[order] * (len(self._start_s) + 1)
        latest = np.maximum.accumulate(group + waited[pulls[order]] + 1) - group - 1
        mine = pulls[order]
        later = latest > waited[mine]
        later &= np.append(self._start_s, 0.0)[latest] >= self._over_s[mine]
        waited[mine[later]] = latest[later]

    def _pulled(self) -> Mask:
        """Say which pushes are pulled next: [Note: pushes to servers]."""
        sent = self._messages
        order = np.lexsort((np.arange(len(sent.lane)), sent.lane == PULL, sent.start_s, sent.name))
        pulled = sent.lane[order] == PULL
        follows = np.append((np.diff(sent.name[order]) == 0) & pulled[1:], False)
        found = np.zeros(len(order), bool)
        found[order] = follows
        return found

    def _blocked(self) -> Numbers:
        """Return the task that waited for each push in the midst of computation; -1: none.

        [Note: messages in the midst of computation]
        """
        sent, over_s = self._messages, self._over_s
        at = np.searchsorted(self._start_s, over_s - self._late_s)
        there = np.flatnonzero((sent.lane == PUSH) & (at < len(self._start_s)))
        on, begun_s = at[there], sent.start_s[there]
        waits = self._pieces.iteration[on] == sent.iteration[there]
        waits &= self._hardly_computed(begun_s, on) & (begun_s < self._start_s[on])
        waits &= self._start_s[on] <= over_s[there] + self._channel_s
        found = np.full(len(over_s), -1)
        found[there[waits]] = on[waits]
        return self._mostly(found)

    def _hardly_computed(self, begun_s: Times, on: Numbers) -> Mask:
        """Say whether next to nothing was computed from some moments on until some tasks."""
        lasts_s = np.append(self._pieces.end_s - self._start_s, 0.0)
        before_s = np.cumsum(np.append(0.0, lasts_s))
        at = np.searchsorted(self._start_s, begun_s, "right") - 1
        until_s = np.where(at >= 0, np.append(self._pieces.end_s, 0.0)[at], begun_s)
        computed_s = before_s[on] - before_s[at + 1] + np.maximum(until_s - begun_s, 0.0)
        least_s = _HARDLY * (self._start_s[on] - begun_s)
        return np.asarray(computed_s <= np.maximum(least_s, SEAM_S))

    def _following(self) -> Numbers:
        """Return the message that was over when each began, with nothing in between; -1: none.

        [Note: messages in the midst of computation]
        """
        sent = self._messages
        if not len(sent.start_s):
            return np.zeros(0, np.int64)
        order = np.argsort(self._over_s, kind="stable")
        at_s = np.where(np.isnan(self._known_s), sent.start_s, self._known_s)
        until_s = np.minimum(at_s + self._late_s, sent.start_s + SEAM_S)
        place = np.searchsorted(self._over_s[order], until_s, "right")
        free_s = self._free_s[np.searchsorted(self._start_s, at_s)]
        found = np.full(len(order), -1)
        for before, there in ((order[place - 1], place > 0), (np.append(order, 0)[place], True)):
            begun_s, over_s = sent.start_s[before], self._over_s[before]
            late_s = np.minimum(self._late_s, (at_s - begun_s) / 2)
            follows = (found < 0) & there & (begun_s < at_s) & (free_s <= begun_s + SEAM_S)
            follows &= (at_s - over_s <= self._channel_s) & (over_s <= at_s + late_s)
            found = np.where(follows, before, found)
        return self._mostly(found)

    def _mostly(self, found: Numbers) -> Numbers:
        """Return what is found of three quarters of the messages of a name and channel."""
        sent = self._messages
        key = coded([sent.lane, sent.name, sent.channel])
        mine = np.bincount(key[found >= 0], minlength=int(key.max(initial=-1)) + 1)
        return np.where(mine[key] >= _MOSTLY * np.bincount(key)[key], found, -1)

    def _find_pulled(self, waited: Numbers, parts: Numbers, first: Numbers) -> None:
        """Note which tasks waited for weights of an iteration: of that, and the next."""
        number = self._pieces.iteration
        at = first[parts].copy()
        while len(parts):
            left = at < len(number)
            parts, at = parts[left], at[left]
            of = self._messages.iteration[parts]
            waits = (number[at] >= of) & (number[at] <= of + 1) & self._waits(parts, at)
            waited[parts[waits]] = at[waits]
            left = ~waits & (number[at] <= of + 1)
            parts, at = parts[left], at[left] + 1

    def _find_pushed(self, waited: Numbers, parts: Numbers, first: Numbers, *, pulls: bool) -> None:
        """Note which updates waited for gradients; without one the iteration that follows."""
        number, count = self._pieces.iteration, len(self._start_s)
        numbers = np.unique(np.concatenate([number, self._messages.iteration]))
        updates = np.flatnonzero(self._pieces.lane == UPDATE)
        code = np.searchsorted(numbers, number[updates]) * (count + 1) + updates
        order = np.argsort(code)
        updates, code = updates[order], code[order]
        turn = np.searchsorted(numbers, self._messages.iteration[parts])
        begin = np.searchsorted(code, turn * (count + 1) + first[parts])
        end = np.searchsorted(code, (turn + 1) * (count + 1))
        updated = begin < end
        # An update that began long before a message was over did not wait for it.
        early = np.searchsorted(self._start_s, self._over_s[parts] - self._late_s - _LATE_S)
        reach = np.maximum(first[parts], early)
        begin = np.searchsorted(code, turn * (count + 1) + reach)
        at = np.where(updated, updates[end - 1] if len(updates) else -1, -1)
        seen, opening = np.unique(number, return_index=True)
        after = np.searchsorted(seen, self._messages.iteration[parts] + 1)
        follows = np.isin(self._messages.iteration[parts] + 1, seen) & ~updated
        follows &= np.append(opening, -1)[after] >= first[parts]
        at[follows] = opening[after[follows]]
        alone = np.flatnonzero(follows)
        waits = self._waits(parts[alone], at[alone])
        waited[parts[alone[waits]]] = at[alone[waits]]
        trying = np.flatnonzero(begin < end)
        while len(trying):
            one = updates[begin[trying]]
            waits = self._waits(parts[trying], one)
            waited[parts[trying[waits]]] = one[waits]
            begin[trying] += 1
            trying = trying[~waits & (begin[trying] < end[trying])]
        # Those that need it last waited for it all the same, if it was noted late.
        must = np.flatnonzero((waited[parts] < 0) & (at >= 0) & (updated | (not pulls)))
        part, one = parts[must], at[must]
        late_s = self._over_s[part] - self._start_s[one]
        waits = late_s <= np.maximum(self._late_s, self._beside_s(part, one))
        waited[part[waits]] = one[waits]

    def _waits(self, part: Numbers, at: Numbers) -> Mask:
        """Say which tasks that need a message waited for it: [Note: ends that are late]."""
        late_s = self._over_s[part] - self._start_s[at]
        beside = self._beside_s(part, at) > 0
        return np.asarray((late_s <= 0) | ((late_s <= self._late_s) & beside))

    def _beside_s(self, part: Numbers, at: Numbers) -> Times:
        """Return how long the rank stood still beside a message before a task."""
        since_s = np.maximum(self._free_s[at], self._messages.start_s[part])
        return np.asarray(self._start_s[at] - since_s)

    def _own_gaps_s(self, at: Numbers, part: Numbers) -> Times:
        """Return the gap before each task, less what it waited for."""
        since_s = self._free_s[:-1].copy()
        np.maximum.at(since_s, at, self._over_s[part])
        return np.maximum(self._start_s - since_s, 0.0)

    def _without_waits(self, gaps_s: Times, gates: Numbers, driving: Numbers) -> None:
        """Count gaps as waits by [Note: standing beside an open message]."""
        drives = np.zeros(len(gaps_s) + 1, bool)
        drives[driving] = True  # the last is of none
        before = np.maximum(gates - 1, -1)
        waits = (before >= 0) & ~drives[before]
        waits &= np.append(self._start_s, 0.0)[before] > self._messages.start_s
        beside: dict[int, list[Interval]] = defaultdict(list)
        for part in np.flatnonzero(waits).tolist():
            begun_s, at = float(self._messages.start_s[part]), int(before[part])
            while at >= 0 and not drives[at] and self._start_s[at] > begun_s:
                if gaps_s[at] > 0 and not self._opens[at]:
                    beside[at].append((begun_s, float(self._over_s[part])))
                at -= 1
        for at, where in beside.items():
            start_s = float(self._start_s[at])
            gaps_s[at] -= common_s(union(where), start_s - float(gaps_s[at]), start_s)

    # -- how messages start --------------------------------------------------------------------

    def _parts(self, rank: int, message: Numbers) -> Parts:
        """Return how each message starts; tasks and messages by their places on this rank.

        It waited for its channel where that was free later than computation was over, or just now.
        """
        sent, begun_s = self._messages, self._messages.start_s
        channel = coded([sent.lane, sent.name] if self._run.by_turns else [sent.channel])
        computed_s = self._free_s[np.searchsorted(self._start_s, begun_s, "right")]
        place = np.searchsorted(self._paused_s, begun_s + SEAM_S, "right")
        computed_s = np.maximum(computed_s, np.append(-np.inf, self._paused_s)[place])
        idle_s = begun_s - computed_s
        before, ends_s, ended_by = in_turn(
            begun_s,
            self._over_s,
            channel,
            idle=idle_s > SEAM_S,
            late_s=self._late_s,
            channel_s=self._channel_s,
        )
        own = self._pushed()
        free_s = np.where(before >= 0, np.append(ends_s, 0.0)[before], self._origin_s)
        follows = np.zeros(len(begun_s), bool)
        for other in (self._following(),) if self._run.served else (own, self._following()):
            mine = np.flatnonzero(other >= 0)
            one = other[mine]
            over_s = np.where(ended_by[one] <= mine, ends_s[one], self._over_s[one])
            if other is not own:  # the end was noted late
                over_s = np.minimum(over_s, begun_s[mine])
            late = (over_s <= begun_s[mine]) & ((before[mine] < 0) | (over_s > free_s[mine]))
            before[mine[late]], free_s[mine[late]] = one[late], over_s[late]
            follows[mine[late]] = (channel[one] != channel[mine])[late]
            np.minimum.at(ends_s, one[late], over_s[late])
        self._over_s = ends_s
        held = (before >= 0) & (begun_s - free_s <= np.maximum(self._channel_s, idle_s / 2))
        number = np.where(own >= 0, sent.iteration[own], sent.iteration)
        ready_s = np.where(held, self._held_ready_s(number), begun_s)
        ready_s[held] = np.minimum(ready_s, computed_s)[held]
        known = ~np.isnan(self._known_s)
        ready_s[known] = np.minimum(begun_s, self._known_s)[known]
        at = np.searchsorted(self._start_s, ready_s, "right") - 1
        start_s, end_s = (np.append(of, 0.0)[at] for of in (self._start_s, self._pieces.end_s))
        lasts_s = np.where(end_s > start_s, end_s - start_s, 1.0)
        share = np.where(at >= 0, np.minimum((ready_s - start_s) / lasts_s, 1.0), 0.0)
        delay_s = np.where(at >= 0, np.maximum(ready_s - end_s, 0.0), ready_s - self._origin_s)
        handover_s = np.maximum(begun_s - np.maximum(ready_s, free_s), 0.0)
        queued = held & ~known & ~follows & (sent.lane == PUSH)
        return Parts(
            message, np.full(len(message), rank), sent.iteration, sent.lane.astype(np.int64),
            sent.name.astype(np.int64), begun_s, ends_s, at, share, delay_s, before, handover_s,
            queued,
        )  # fmt: skip

    def _held_ready_s(self, number: Numbers) -> Times:
        """Return when messages were ready that waited for their channel, if nothing says it.

        Args:
            number: the iteration whose gradients each has, or is of.
        """
        begun_s = self._messages.start_s
        numbers, all_there_s = backward_ends_s(self._pieces)
        place = np.minimum(np.searchsorted(numbers, number), max(len(numbers) - 1, 0))
        ready_s = begun_s.copy()
        if len(numbers):
            there = (numbers[place] == number) & ~np.isnan(all_there_s[place])
            ready_s[there] = np.minimum(begun_s, all_there_s[place])[there]
        updated_s = self._pieces.end_s[self._pieces.lane == UPDATE]
        place = np.searchsorted(updated_s, begun_s, "right")
        before_s = np.append(updated_s, 0.0)[place - 1]
        late = (self._messages.lane == PULL) & (place > 0)
        late &= (ready_s == begun_s) | (before_s > ready_s)
        return np.where(late, before_s, ready_s)

    def _pushed(self) -> Numbers:
        """Return the last push of the same name before each pull; -1: none, or it is a push."""
        lane, count = self._messages.lane, len(self._messages.lane)
        own = np.full(count, -1)
        pushes, pulls = np.flatnonzero(lane == PUSH), np.flatnonzero(lane == PULL)
        if not len(pushes) or not len(pulls):
            return own
        code = self._messages.name.astype(np.int64) * count + np.arange(count)
        order = pushes[np.argsort(code[pushes])]
        last = np.searchsorted(code[order], code[pulls]) - 1
        found = order[last]
        same = (last >= 0) & (self._messages.name[found] == self._messages.name[pulls])
        own[pulls[same]] = found[same]
        return own
