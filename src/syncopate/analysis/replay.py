"""Replay: a timeline played again, as it was or with something in it faster.

What ranks did becomes tasks with dependencies, with the durations that were recorded:

* a rank's computation follows its computation before; the gap between, less what it waited for
  messages, is kept;
* an update waits for the iteration's pushes that were over when it began, and so does backward for
  the pulls. Whatever began when a message had ended in the gap before waits for that message;
* a message starts on a rank when the rank's computation has come as far as it had, and the one
  before it on its channel is over;
* it moves when all of its ranks have started, and takes on each as long as it did from there;
* with servers that update synchronously a pull moves when all ranks have started to push what it is
  of, and a rank updates when all have ended their backward: they tell each other what it reached.

A message that had to wait for its channel may have been ready long before. Where a timeline does
not say when (``launched_s`` or ``ready_s`` of a span), a push is taken to have been ready at the
end of backward at the latest, so that a gain is rather too small than too large.

[Note: computation keeps its pace] Computation that was slowed by a message beside it stays so.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from msgspec.structs import replace

from syncopate.analysis.collectives import Collective, collectives
from syncopate.analysis.path import CHANNEL_S
from syncopate.analysis.work import computations, steady
from syncopate.errors import InvalidValueError
from syncopate.timeline import SERVERS, SYNCHRONOUS, Span, Timeline


@dataclass(frozen=True)
class Task:
    """A stretch of one rank's computation.

    Attributes:
        span: when and what.
        previous: the rank's task before; -1 for its first.
        gates: messages that it waits for.
        gap_s: from the later of these to its start.
        opens: whether it is the first of its rank in its iteration.
        others: tasks of other ranks that it waits for.
    """

    span: Span
    previous: int
    gates: tuple[int, ...]
    gap_s: float
    opens: bool
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Start:
    """How a message starts on one rank.

    Attributes:
        task: the computation that it follows; -1 where there is none before.
        share: how far that has come.
        delay_s: from there to when the message is ready.
        after: the message before it on its channel; -1 for the first.
        handover_s: from when it is ready and the channel is free to its start.
    """

    task: int
    share: float
    delay_s: float
    after: int
    handover_s: float


@dataclass
class Durations:
    """What can be changed: seconds of each task, of the gap before it, and of each transfer.

    Attributes:
        tasks_s: by task.
        gaps_s: by task.
        transfers_s: by message, and rank: from the last start, or from its own where the rank was
            done before.
        shares: by message, and rank: how far the computation that it follows has come when it is
            ready, in [0, 1].
    """

    tasks_s: list[float]
    gaps_s: list[float]
    transfers_s: list[dict[int, float]]
    shares: list[dict[int, float]]

    def copy(self) -> Durations:
        """Return a copy to change."""
        return Durations(
            list(self.tasks_s),
            list(self.gaps_s),
            [dict(each) for each in self.transfers_s],
            [dict(each) for each in self.shares],
        )


@dataclass
class Replay:
    """A timeline as tasks and messages.

    Args:
        timeline: measured or simulated.

    Attributes:
        messages: its collectives.
        tasks: by rank, then start.
        starts: by message, and rank: how it starts there.
        recorded: the durations as they were.
        iterations: those that count.

    Raises:
        InvalidValueError: nothing was computed, or its times contradict each other.
    """

    timeline: Timeline
    messages: tuple[Collective, ...] = ()
    tasks: list[Task] = field(default_factory=list)
    starts: list[dict[int, Start]] = field(default_factory=list)
    iterations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.messages = tuple(collectives(self.timeline))
        self._origin_s = min((s.start_s for s in self.timeline.spans), default=0.0)
        self.starts = [{} for _ in self.messages]
        self._pushed = _pushed(self.timeline, self.messages)
        self._by_rank: dict[int, list[tuple[Span, int]]] = defaultdict(list)
        for index, one in enumerate(self.messages):
            for span in one.spans:
                self._by_rank[span.rank].append((span, index))
        spans: dict[int, list[Span]] = defaultdict(list)
        for span in self.timeline.spans:
            spans[span.rank].append(span)
        for rank, mine in sorted(spans.items()):
            self._add_rank(rank, _merged(computations(mine)))
        if _synchronous(self.timeline):
            self._meet()
        self.iterations = steady([task.span.iteration for task in self.tasks])
        if not self.iterations:
            rule = "a timeline with computation in at least one iteration"
            raise InvalidValueError(self.timeline.name, f"{len(self.timeline.spans)} spans", rule)
        self.recorded = Durations(
            [task.span.duration_s for task in self.tasks],
            [task.gap_s for task in self.tasks],
            [
                {
                    s.rank: s.end_s - (moves_s if s.end_s >= moves_s else s.start_s)
                    for s in one.spans
                }
                for one, moves_s in zip(self.messages, self._moves_s(), strict=True)
            ],
            [{rank: start.share for rank, start in each.items()} for each in self.starts],
        )
        self._order = self._sorted()

    def iteration_s(self, durations: Durations | None = None) -> float:
        """Return how long an iteration takes when played, in the mean over those that count."""
        return self._mean_s(self._played(durations or self.recorded))

    @property
    def recorded_s(self) -> float:
        """How long an iteration took, likewise."""
        ends: dict[int, float] = defaultdict(float)
        for task in self.tasks:
            ends[task.span.iteration] = max(ends[task.span.iteration], task.span.end_s)
        for one in self.messages:
            if one.lane == "push":
                ended_s = max(span.end_s for span in one.spans)
                ends[one.iteration] = max(ends[one.iteration], ended_s)
        return self._mean_s(ends)

    def _mean_s(self, ends: dict[int, float]) -> float:
        before = [end_s for number, end_s in ends.items() if number < self.iterations[0]]
        begun_s = max(before, default=self._origin_s)
        return (ends[self.iterations[-1]] - begun_s) / len(self.iterations)

    def _played(self, durations: Durations) -> dict[int, float]:
        """Return when each iteration ends: when the last rank has computed and pushed."""
        begins_s, ends_s = [0.0] * len(self.tasks), [0.0] * len(self.tasks)
        starts_s: list[dict[int, float]] = [{} for _ in self.messages]
        done_s: list[dict[int, float]] = [{} for _ in self.messages]
        iterations: dict[int, float] = defaultdict(float)
        for node in self._order:
            if node >= 0:
                task = self.tasks[node]
                rank, since_s = task.span.rank, self._origin_s
                if task.previous >= 0:
                    since_s = ends_s[task.previous]
                for other in task.others:
                    since_s = max(since_s, ends_s[other])
                for gate in task.gates:
                    since_s = max(since_s, done_s[gate][rank])
                begins_s[node] = since_s + durations.gaps_s[node]
                ends_s[node] = begins_s[node] + durations.tasks_s[node]
                number = task.span.iteration
                iterations[number] = max(iterations[number], ends_s[node])
                continue
            index = -1 - node
            message = self.messages[index]
            for rank, start in self.starts[index].items():
                at_s = self._origin_s + start.delay_s
                if start.task >= 0:
                    share = durations.shares[index][rank]
                    at_s = begins_s[start.task] + share * durations.tasks_s[start.task]
                    at_s += start.delay_s
                if start.after >= 0:
                    at_s = max(at_s, done_s[start.after][rank])
                starts_s[index][rank] = at_s + start.handover_s
            moves_s = max(
                max(starts_s[each].values()) for each in (index, *self._pushed.get(index, ()))
            )
            for span in message.spans:
                early = span.end_s < message.arrived_s
                from_s = starts_s[index][span.rank] if early else moves_s
                done_s[index][span.rank] = from_s + durations.transfers_s[index][span.rank]
            if message.lane == "push":
                ended_s = max(done_s[index].values())
                iterations[message.iteration] = max(iterations[message.iteration], ended_s)
        return iterations

    def _meet(self) -> None:
        """Let the first update of each rank in an iteration wait for the backward of all others."""
        ended: dict[int, dict[int, int]] = defaultdict(dict)
        for number, task in enumerate(self.tasks):
            if task.span.lane == "backward":
                ended[task.span.iteration][task.span.rank] = number
        met = set()
        for number, task in enumerate(self.tasks):
            span = task.span
            if span.lane != "update" or (span.rank, span.iteration) in met:
                continue
            met.add((span.rank, span.iteration))
            others = [n for rank, n in ended[span.iteration].items() if rank != span.rank]
            gap_s = span.start_s - max((self.tasks[n].span.end_s for n in others), default=0.0)
            if others and gap_s >= 0:
                gap_s = min(gap_s, task.gap_s)
                self.tasks[number] = dataclasses.replace(task, others=tuple(others), gap_s=gap_s)

    def _moves_s(self) -> Iterator[float]:
        """Yield when each message moved."""
        for index, one in enumerate(self.messages):
            pushes = self._pushed.get(index, ())
            yield max((one.arrived_s, *(self.messages[push].arrived_s for push in pushes)))

    def _sorted(self) -> list[int]:
        """Return tasks and messages, the latter as -1, -2, .., behind what they depend on."""
        graph: dict[int, set[int]] = {}
        for number, task in enumerate(self.tasks):
            graph[number] = {-1 - gate for gate in task.gates}
            graph[number] |= {task.previous} if task.previous >= 0 else set()
            graph[number].update(task.others)
        for index, starts in enumerate(self.starts):
            graph[-1 - index] = {s.task for s in starts.values() if s.task >= 0}
            graph[-1 - index] |= {-1 - s.after for s in starts.values() if s.after >= 0}
            graph[-1 - index] |= {-1 - push for push in self._pushed.get(index, ())}
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError:
            rule = "times that do not contradict each other: the clocks of its ranks are off"
            raise InvalidValueError("timeline", self.timeline.name, rule) from None

    def _add_rank(self, rank: int, spans: Sequence[Span]) -> None:
        """Add a rank's tasks, and how its messages start."""
        base = len(self.tasks)
        ended: dict[int, list[tuple[Span, int]]] = defaultdict(list)
        for message, index in self._by_rank[rank]:
            ended[message.iteration].append((message, index))
        updates = any(span.lane == "update" for span in spans)
        end_s, iteration = self._origin_s, None
        for number, span in enumerate(spans):
            near = (*ended[span.iteration - 1], *ended[span.iteration])
            gates = [
                (message.end_s, index)
                for message, index in near
                if message.end_s <= span.start_s
                and (message.end_s > end_s or _awaited(span, message, updates))
            ]
            waited_s = max((at_s for at_s, _ in gates), default=end_s)
            self.tasks.append(
                Task(
                    span=span,
                    previous=base + number - 1 if number else -1,
                    gates=tuple(index for _, index in gates),
                    gap_s=max(span.start_s - max(end_s, waited_s), 0.0),
                    opens=span.iteration != iteration,
                )
            )
            end_s, iteration = max(end_s, span.end_s), span.iteration
        self._add_starts(rank, base)

    def _add_starts(self, rank: int, base: int) -> None:
        mine = self.tasks[base:]
        begins = [task.span.start_s for task in mine]
        backward_s: dict[int, float] = {}
        for task in mine:
            if task.span.lane == "backward":
                backward_s[task.span.iteration] = task.span.end_s
        on_channel: dict[int, tuple[Span, int]] = {}
        for span, index in sorted(self._by_rank[rank], key=lambda row: row[0].start_s):
            before = on_channel.get(span.channel)
            if before and before[0].end_s > span.start_s:
                before = None  # several at a time: they do not wait for each other
            free_s = before[0].end_s if before else self._origin_s
            ready_s = span.start_s
            if (known_s := _known_s(span)) is not None:
                ready_s = min(ready_s, known_s)
            elif before and span.start_s - free_s <= CHANNEL_S:
                ready_s = min(ready_s, _ready_s(span, backward_s, mine))
            place = bisect_right(begins, ready_s) - 1
            share = delay_s = 0.0
            if place >= 0:
                under = mine[place].span
                share = min((ready_s - under.start_s) / (under.duration_s or 1.0), 1.0)
                delay_s = max(ready_s - under.end_s, 0.0)
            else:
                delay_s = ready_s - self._origin_s
            self.starts[index][rank] = Start(
                task=base + place if place >= 0 else -1,
                share=share,
                delay_s=delay_s,
                after=before[1] if before else -1,
                handover_s=max(span.start_s - max(ready_s, free_s), 0.0),
            )
            on_channel[span.channel] = (span, index)


def _synchronous(timeline: Timeline) -> bool:
    """Say whether servers update when the pushes of all ranks are there."""
    return timeline.metadata.get(SERVERS) == SYNCHRONOUS


def _pushed(timeline: Timeline, messages: Sequence[Collective]) -> dict[int, list[int]]:
    """Return the pushes of all ranks that a pull from synchronous servers waits for.

    Where weights came before, they were others than these pushes made, and it waits for none.
    """
    if not _synchronous(timeline):
        return {}
    pushes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index, one in enumerate(messages):
        if one.lane == "push":
            pushes[one.iteration, one.name].append(index)
    found = {}
    for index, one in enumerate(messages):
        if one.lane == "pull":
            mine = pushes.get((one.iteration, one.name), [])
            ends_s = one.spans[0].end_s
            if all(messages[push].arrived_s <= ends_s for push in mine):
                found[index] = mine
    return found


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return computation without cuts between what follows at once in one lane and iteration."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if last and (last.lane, last.iteration, last.end_s) == (
            span.lane,
            span.iteration,
            span.start_s,
        ):
            found[-1] = replace(last, end_s=span.end_s)
        else:
            found.append(span)
    return found


def _awaited(span: Span, message: Span, updates: bool) -> bool:
    """Return whether computation waits for a message that was over when it began, by its nature."""
    if message.lane == "push":
        if updates:
            return span.lane == "update" and span.iteration == message.iteration
        return span.lane == "forward" and span.iteration == message.iteration + 1
    return span.lane == "backward" and 0 <= span.iteration - message.iteration <= 1


def _known_s(span: Span) -> float | None:
    """Return when a message was ready for its channel, where a timeline says so."""
    return span.ready_s if span.launched_s is None else span.launched_s


def _ready_s(span: Span, backward_s: dict[int, float], tasks: Sequence[Task]) -> float:
    """Return when a message was ready at the latest that waited for its channel."""
    if span.lane == "push":
        return backward_s.get(span.iteration, span.start_s)
    ends = [t.span.end_s for t in tasks if t.span.lane == "update"]
    place = bisect_left(ends, span.start_s)
    return ends[place - 1] if place else span.start_s
