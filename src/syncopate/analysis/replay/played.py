"""A timeline as tasks and messages with the durations that were recorded, to be played again.

* A task waits for the rank's task before, and for messages by kind
  (:mod:`syncopate.analysis.replay.rank`).
* A message starts on a rank when the rank's computation has come as far as it had, and the one
  before it on its channel is over; a pull also waits for the rank's own push of the same name.
* It moves when all of its ranks have started, and takes on each as long as it did from there.
* With servers that update synchronously a pull moves when all ranks have started to push what it is
  of, and a rank updates when all have ended their backward: they tell each other what it reached.

[Note: ready before its turn] A message that had to wait for its channel may have been ready long
before. Where a timeline does not say when (``launched_s`` or ``ready_s`` of a span), a push is
taken to have been ready as far into backward as pushes like it are that did not have to wait, on
other ranks or in other iterations: a rank that others wait for finds its channel free. Where there
are none, it was ready at the end of backward at the latest, so that a gain is rather too small than
too large.

[Note: computation keeps its pace] Computation that was slowed by a message beside it stays so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from syncopate.analysis import sweep
from syncopate.analysis.collectives import Collectives, collectives, is_served
from syncopate.analysis.ranks.arrivals import arrivals, clock_error_s
from syncopate.analysis.replay.events import Events
from syncopate.analysis.replay.rank import BACKWARD, PULL, PUSH, UPDATE, Parts, Rank, Run, Tasks
from syncopate.analysis.work import steady
from syncopate.artifacts.timeline import PULLS, SERVERS, SYNCHRONOUS, Timeline
from syncopate.artifacts.timelines.spans import Numbers, Times, coded
from syncopate.errors import InvalidValueError

_PLANNED = "policy"
"""What metadata say of runs by a plan alone."""

_AT_ONCE = 1 << 24
"""Numbers that are held at once while changes are tried."""


@dataclass
class Durations:
    """The changeable durations: of each task, of the gap before it, and of each transfer.

    Attributes:
        tasks_s: by task.
        gaps_s: by task.
        transfers_s: by part: from the last start, or from its own where the rank was done before.
        shares: by part: how far the computation that it follows has come when it is ready, in
            [0, 1].
        delays_s: by part: from there to when it is ready.
    """

    tasks_s: Times
    gaps_s: Times
    transfers_s: Times
    shares: Times
    delays_s: Times

    def copy(self) -> Durations:
        """Return a copy to change."""
        return Durations(**{name: own.copy() for name, own in vars(self).items()})


class Changed:
    """A replay of which something is being removed.

    Args:
        parts_s: seconds by rank, iteration and part.
        durations: as recorded.

    Attributes:
        parts_s: what is left.
        without: names of pauses, and the places of ranks that no longer have them.
        even_tasks: whether the tasks of a rank and lane in an iteration are equally long.
        shaped: place of a rank and a part -> ranks; its tasks have the shape that theirs have.
        durations: transfers and shares are changed here; tasks and gaps follow from the rest.
    """

    def __init__(self, parts_s: Times, durations: Durations) -> None:
        self.parts_s, self.durations = parts_s.copy(), durations.copy()
        self.even_tasks = False
        self.shaped: dict[tuple[int, int], list[int]] = {}
        self.without: dict[str, set[int]] = defaultdict(set)


class Replay:
    """A timeline as tasks and messages.

    Args:
        timeline: measured or simulated.

    Attributes:
        messages: its collectives.
        tasks: of all ranks.
        parts: of the messages, on each rank, as the collectives have their rows.
        recorded: the durations as they were.
        iterations: those that count.
        clocks_off_s: by how much clocks may be wrong, by what is known of them.
        clocks_differ_s: by how much at least they usually do.
        gates: which task waits for which part, a pair in each row.
        others: which task waits for which task of another rank, likewise.
        pushed: which pull waits until which push moves, by their messages, likewise.
        early: which parts are over before their message moves.
        origin_s: when the timeline begins.

    Raises:
        InvalidValueError: nothing was computed, or its times contradict each other.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, spans = timeline, timeline.columns
        self.messages = found = collectives(timeline)
        # No rank is done with these before the last has come, but by clocks that differ.
        before_s = (found.arrived_s - found.least(spans.end_s))[found.together]
        self.clocks_differ_s = max(float(np.median(before_s)), 0.0) if len(before_s) else 0.0
        said_s = clock_error_s(timeline)
        known_s = said_s if np.isfinite(said_s) else 0.0
        self.clocks_off_s = max(known_s, arrivals(timeline).clocks_off_s, self.clocks_differ_s)
        self.origin_s = float(spans.start_s.min(initial=np.inf)) if len(spans) else 0.0
        run = Run(self.origin_s, self.clocks_off_s, is_served(timeline), by_turns(timeline))
        rows = dict(sweep.groups(spans.rank[found.rows]))
        ranks: list[Rank] = []
        base = 0
        for number, own in sweep.groups(spans.rank):
            mine = rows.get(number, np.zeros(0, np.int64))
            ranks.append(Rank(number, own, mine, found, run, base=base))
            base += len(ranks[-1].tasks.rank)
        if not base:
            rule = "a timeline with computation in at least one iteration"
            raise InvalidValueError(timeline.name, f"{len(spans)} spans", rule)
        tasks = zip(*(rank.tasks for rank in ranks), strict=True)
        self.tasks = Tasks(*map(np.concatenate, tasks))
        self.iterations = steady(np.unique(self.tasks.iteration).tolist())
        order = np.argsort(np.concatenate([rank.rows for rank in ranks]))
        parts = zip(*(rank.parts for rank in ranks), strict=True)
        self.parts = Parts(*(np.concatenate(column)[order] for column in parts))
        _ready_before(self.tasks, self.parts, found.spans.channel[found.rows].astype(np.int64))
        self.gates = np.concatenate([rank.gates for rank in ranks])
        del ranks
        meetings = list(self._meetings()) if is_synchronous(timeline) else []
        pushed = _pushed(timeline, found, self.parts)
        self.others, self.pushed = map(_pairs, (meetings, pushed))
        moves_s = np.array(found.arrived_s, copy=True)
        for pull, push in pushed:
            moves_s[pull] = max(moves_s[pull], found.arrived_s[push])
        self.early = ~found.together[found.of] & (self.parts.end_s < found.arrived_s[found.of])
        begun_s = np.where(self.early, self.parts.start_s, moves_s[found.of])
        self.recorded = Durations(
            self.tasks.end_s - self.tasks.start_s,
            self.tasks.gap_s,
            self.parts.end_s - begun_s,
            self.parts.share,
            self.parts.delay_s,
        )
        self._events = Events(*self._edges(), self._about_s(), timeline.name)

    # -- what it takes -------------------------------------------------------------------------

    def iteration_s(self, durations: Durations | None = None) -> float:
        """Return how long an iteration takes when played, in the mean over those that count."""
        return float(self.lasting_s([durations or self.recorded]).mean())

    def lasting_s(self, several: Iterable[Durations]) -> Times:
        """Return how long each iteration that counts takes when played; a row for each change."""
        size = max(_AT_ONCE // self._events.numbers, 1)
        left, rows = iter(several), []
        while some := list(islice(left, size)):
            rows.append(self._lasting_s(self._played(some)))
        return np.concatenate(rows)

    @property
    def pulls(self) -> bool:
        """Whether ranks wait for weights, or gradients, that are pulled."""
        return bool((self.parts.lane == PULL).any())

    @property
    def recorded_s(self) -> float:
        """How long an iteration took, likewise."""
        ends_s = (self.tasks.end_s - self.origin_s, self.parts.end_s - self.origin_s)
        return float(self.between_s(*ends_s).mean())

    def between_s(self, tasks_s: Times, parts_s: Times) -> Times:
        """Return how long each iteration that counts takes, by when tasks and parts end.

        Args:
            tasks_s: of each task, from the origin.
            parts_s: of each part, likewise.
        """
        pushes = self.parts.lane == PUSH
        numbers = np.concatenate([self.tasks.iteration, self.parts.iteration[pushes]])
        ends_s = np.concatenate([tasks_s, parts_s[pushes]])
        return np.asarray(self._lasting_s((numbers, ends_s[:, None]))[0])

    def _lasting_s(self, ends: tuple[Numbers, Times]) -> Times:
        order = np.argsort(ends[0], kind="stable")
        begins = sweep.runs(ends[0][order])
        numbers = ends[0][order[begins]]
        last_s = np.maximum.reduceat(ends[1][order], begins, axis=0)
        first = int(np.searchsorted(numbers, self.iterations[0]))
        begun_s = last_s[:first].max(axis=0, initial=0.0)
        counted = last_s[np.searchsorted(numbers, self.iterations)]
        return np.diff(counted, axis=0, prepend=begun_s[None]).T

    def _played(self, several: Sequence[Durations]) -> tuple[Numbers, Times]:
        """Return the iteration of each task and push, and when each ends, by change."""
        at_s = self._events.played(np.stack([self._weights(one) for one in several], axis=1))
        pushes = self.parts.lane == PUSH
        tasks_s = np.stack([one.tasks_s for one in several], axis=1)
        moved_s = np.stack([one.transfers_s[pushes] for one in several], axis=1)
        numbers = np.concatenate([self.tasks.iteration, self.parts.iteration[pushes]])
        done_s = at_s[self._done[pushes]] + moved_s
        return numbers, np.concatenate([at_s[: len(tasks_s)] + tasks_s, done_s])

    # -- events and edges ----------------------------------------------------------------------

    def _edges(self) -> tuple[Numbers, Numbers]:
        """Return from and to which event each edge goes, in the order of the weights.

        [Note: events and edges] Events are the begins of tasks, the moves of messages, the starts
        of parts that are over before their message moves, and the origin, in this order.
        """
        tasks, parts, first = self.tasks, self.parts, len(self.tasks.rank)
        early = np.flatnonzero(self.early)
        self._done = first + parts.message
        self._done[early] = first + len(self.messages) + np.arange(len(early))
        starts = self._done  # a part starts where it is done from
        origin = first + len(self.messages) + len(early)
        self._later = np.flatnonzero(parts.after >= 0)
        gates, others, pushed = self.gates, self.others, self.pushed + first
        follows = np.where(parts.task >= 0, parts.task, origin)
        source = (
            np.where(tasks.previous >= 0, tasks.previous, origin),
            self._done[gates[:, 1]],
            others[:, 1],
            follows,
            self._done[parts.after[self._later]],
            self._done[early],
            pushed[:, 1],
        )
        target = (
            np.arange(first),
            gates[:, 0],
            others[:, 0],
            starts,
            starts[self._later],
            first + parts.message[early],
            pushed[:, 0],
        )
        self._plain = len(early) + len(pushed)
        return np.concatenate(source), np.concatenate(target)

    def _about_s(self) -> Times:
        """Return when each event was recorded."""
        early_s = self.parts.start_s[self.early]
        at_s = (self.tasks.start_s, self.messages.arrived_s, early_s, [self.origin_s])
        return np.concatenate(at_s) - self.origin_s

    def _weights(self, of: Durations) -> Times:
        tasks, parts, gates, others = self.tasks, self.parts, self.gates, self.others
        lasts_s = np.append(of.tasks_s, 0.0)  # a missing task takes no time
        return np.concatenate(
            (
                lasts_s[tasks.previous] + of.gaps_s,
                of.transfers_s[gates[:, 1]] + of.gaps_s[gates[:, 0]],
                of.tasks_s[others[:, 1]] + of.gaps_s[others[:, 0]],
                of.shares * lasts_s[parts.task] + of.delays_s + parts.handover_s,
                of.transfers_s[parts.after[self._later]] + parts.handover_s[self._later],
                np.zeros(self._plain),
            )
        )

    def _meetings(self) -> Iterator[tuple[int, int]]:
        """Let the first update of each rank in an iteration wait for the backward of all others."""
        ended: dict[int, dict[int, int]] = defaultdict(dict)
        updates: dict[tuple[int, int], int] = {}
        columns = (self.tasks.iteration, self.tasks.rank, self.tasks.lane)
        for number, (iteration, rank, lane) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            if lane == BACKWARD:
                ended[iteration][rank] = number
            elif lane == UPDATE:
                updates.setdefault((iteration, rank), number)
        for (iteration, rank), number in updates.items():
            others = [n for other, n in ended[iteration].items() if other != rank]
            gap_s = self.tasks.start_s[number] - self.tasks.end_s[others].max(initial=0.0)
            if others and gap_s >= 0:
                self.tasks.gap_s[number] = min(gap_s, self.tasks.gap_s[number])
                yield from ((number, other) for other in others)


def by_turns(timeline: Timeline) -> bool:
    """Say whether they are sent side by side, and by priority: a plan has it so."""
    metadata = timeline.metadata
    return is_served(timeline) and _PLANNED in metadata and PULLS not in metadata


def _ready_before(tasks: Tasks, parts: Parts, channel: Numbers) -> None:
    """Let pushes be ready when those like them are, by [Note: ready before its turn]."""
    backward = np.flatnonzero(tasks.lane == BACKWARD)
    if not len(backward) or not parts.queued.any():
        return
    turns = coded([tasks.rank, tasks.iteration])
    count = np.bincount(turns[backward], minlength=turns.max() + 1)
    order = backward[np.argsort(turns[backward], kind="stable")]
    first = np.cumsum(count) - count
    place = np.full(len(turns), -1)  # among the backwards of an iteration
    place[order] = np.arange(len(order)) - first[turns[order]]
    there = (parts.task >= 0) & (parts.lane == PUSH) & (place[parts.task] >= 0)
    turn = turns[parts.task]  # of those that follow no task it does not count
    reached = place[parts.task] + parts.share
    alike = coded([parts.name, channel, count[turn]])
    free = np.flatnonzero(there & ~parts.queued & (parts.delay_s == 0))
    usual = np.full(alike.max() + 1, np.inf)
    for kind, places in sweep.groups(alike[free]):
        usual[kind] = np.median(reached[free[places]])
    rows = np.flatnonzero(there & parts.queued & (usual[alike] < reached))
    usual_at = usual[alike[rows]]
    nth = np.minimum(usual_at.astype(np.int64), count[turn[rows]] - 1)
    at, share = order[first[turn[rows]] + nth], usual_at - nth
    ready_s = tasks.start_s[at] + share * (tasks.end_s[at] - tasks.start_s[at])
    before = ready_s <= parts.start_s[rows]
    rows, at, share, ready_s = (one[before] for one in (rows, at, share, ready_s))
    free_s = parts.end_s[parts.after[rows]]
    parts.task[rows], parts.share[rows], parts.delay_s[rows] = at, share, 0.0
    parts.handover_s[rows] = np.maximum(parts.start_s[rows] - np.maximum(ready_s, free_s), 0.0)


def _pairs(found: Sequence[tuple[int, int]]) -> Numbers:
    return np.array(found, np.int64).reshape(-1, 2)


def is_synchronous(timeline: Timeline) -> bool:
    """Say whether servers update when the pushes of all ranks are there."""
    return timeline.metadata.get(SERVERS) == SYNCHRONOUS


def _pushed(timeline: Timeline, found: Collectives, parts: Parts) -> list[tuple[int, int]]:
    """Return the pulls from synchronous servers, and the pushes of all ranks that each waits for.

    Where weights came before, they were others than these pushes made, and it waits for none.
    """
    if not is_synchronous(timeline):
        return []
    pushes, own = pushes_of(found, parts), own_pushes(parts)
    rows: list[tuple[int, int]] = []
    for index, row in enumerate(found.first.tolist()):
        if row not in own:
            continue
        mine = pushes[int(parts.iteration[own[row]]), int(parts.name[row])]
        if (found.arrived_s[mine] <= parts.end_s[row]).all():
            rows += [(index, push) for push in mine]
    return rows


def pushes_of(found: Collectives, parts: Parts) -> dict[tuple[int, int], list[int]]:
    """Return iteration and name -> the messages that are pushed, of all ranks."""
    pushes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message, part in enumerate(found.first.tolist()):
        if parts.lane[part] == PUSH:
            pushes[int(parts.iteration[part]), int(parts.name[part])].append(message)
    return pushes


def own_pushes(parts: Parts) -> dict[int, int]:
    """Return of each pull the last push of its name that its rank had begun."""
    begun: dict[tuple[int, int], int] = {}
    found: dict[int, int] = {}
    for part in np.lexsort((parts.lane == PULL, parts.start_s)).tolist():
        whose = int(parts.rank[part]), int(parts.name[part])
        if parts.lane[part] == PUSH:
            begun[whose] = part
        elif parts.lane[part] == PULL and whose in begun:
            found[part] = begun[whose]
    return found
