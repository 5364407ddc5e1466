"""Flows: a replay whose messages share links, one event after the other.

A *flow* is what moves of a message when all of its ranks have started, or what one rank moves of it
by itself where it is over before that. It needs no link for a while, its start-up, and then shares
its links with the other flows there (:mod:`syncopate.analysis.replay.links`). Its parts, one of
each rank, are over when it has come as far as they did in the recording.

[Note: alone] How far a flow had come is not what was recorded: times were, beside other flows. So
the recording is swept once, flows beginning and ending when they did, and progress is summed up at
the rates that links then gave. Played with the same progress at the same rates, all is over when it
was: what a price gets wrong of a network cancels out where a run is played on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from syncopate.analysis.replay.links import EqualLinks, Flow, TurnLinks
from syncopate.artifacts.timelines.spans import Times

_BEGIN, _END, _REACH, _START, _FLOW, _OVER, _MOVED = range(7)
_SLACK_S = 1e-12


@dataclass
class Program:
    """Tasks and flows, and what waits for what.

    Attributes:
        tasks_s: how long each task lasts.
        gaps_s: from when nothing keeps it to its begin.
        tasks_wait: for how many ends each waits.
        after_task: task -> the tasks that wait for its end.
        after_part: part -> the tasks that wait for its end.
        follow: task -> the parts that follow it.
        reached_s: of each part, from the begin of its task, or of the run, to when it is ready.
        handover_s: from then to its start.
        parts_wait: for how many things each part waits.
        next_parts: part -> the parts whose start waits for its end.
        starts: part -> the flows that wait for its start.
        ends: part -> the flows that wait for its end.
        moves: flow -> the flows that wait until it moves.
        flows: all of them.
        groups: flows of one part each whose parts are over together, when all of them are there.
        came_s: when the flow of each part had come as far as it does, as recorded; behind the
            parts of the replay are those that stand for slices of one.
        lags_s: part -> from when its group is there to its end; 0 for others.
    """

    tasks_s: list[float]
    gaps_s: list[float]
    tasks_wait: list[int]
    after_task: dict[int, list[int]]
    after_part: dict[int, list[int]]
    follow: dict[int, list[int]]
    reached_s: list[float]
    handover_s: list[float]
    parts_wait: list[int]
    next_parts: dict[int, list[int]]
    starts: dict[int, list[int]]
    ends: dict[int, list[int]]
    moves: dict[int, list[int]]
    flows: list[Flow]
    groups: list[list[int]]
    came_s: Times
    lags_s: dict[int, float]


@dataclass
class Played:
    """When everything was, from the begin of the run; NaN: it never came to it.

    Attributes:
        tasks_s: when each task began.
        starts_s: when each part started.
        ends_s: when it was over.
    """

    tasks_s: Times
    starts_s: Times
    ends_s: Times


def swept(flows: Sequence[Flow], ends_s: Times, capacity: dict[int, float]) -> list[list[float]]:
    """Return how far each flow had come when its parts were over, by [Note: alone].

    Args:
        flows: with the start-ups that they had.
        ends_s: when each part was over.
        capacity: of each link that has another one than 1.
    """
    events: list[tuple[float, int, int]] = []
    _over, _off, _on = range(3)
    for number, flow in enumerate(flows):
        last_s = float(ends_s[flow.parts[-1]])
        on_s = flow.start_s + flow.startup_s
        for part in flow.parts:
            events.append((float(ends_s[part]), _over, number))
        if on_s < last_s:
            events += [(on_s, _on, number), (last_s, _off, number)]
    events.sort()
    links = EqualLinks(flows, capacity)
    done: dict[int, tuple[float, float, float]] = {}  # flow -> since when, progress, rate
    found: list[list[float]] = [[] for _ in flows]
    for now, kind, number in events:
        if kind == _over:
            if number in done:
                since_s, progress_s, rate = done[number]
                found[number].append(progress_s + (now - since_s) * rate)
            else:
                found[number].append(max(now - flows[number].start_s, 0.0))
            continue
        if kind == _on:
            done[number] = (now, flows[number].startup_s, 1.0)
        for each in links.change(number, kind == _on):
            since_s, progress_s, rate = done[each]
            done[each] = (now, progress_s + (now - since_s) * rate, links.rate(each))
    return found


class Player:
    """Plays a program.

    Args:
        program: the flows with the progress that their parts have to come to.
        links: that its flows share, with none on them yet.
    """

    def __init__(self, program: Program, links: EqualLinks | TurnLinks) -> None:
        self._of = program
        self._links = links
        self._heap: list[tuple[float, int, int, int]] = []
        self._number = 0
        self._tasks_wait, self._parts_wait = program.tasks_wait[:], program.parts_wait[:]
        self._flows_wait = [flow.waits for flow in program.flows]
        self._at: dict[int, tuple[float, float, float]] = {}  # as in ``swept``
        self._sharing: set[int] = set()
        self._group = {flow: n for n, group in enumerate(program.groups) for flow in group}
        self._groups_wait = [len(group) for group in program.groups]
        self._next = [0] * len(program.flows)
        self._version = [0] * len(program.flows)
        self.played = Played(
            np.full(len(program.tasks_s), math.nan),
            np.full(len(program.parts_wait), math.nan),
            np.full(len(program.came_s), math.nan),
        )

    def play(self) -> Played:
        """Return when everything is."""
        for task, waits in enumerate(self._tasks_wait):
            if not waits:
                self._push(self._of.gaps_s[task], _BEGIN, task)
        for part in self._of.follow.get(-1, ()):
            self._push(self._of.reached_s[part], _REACH, part)
        for flow, waits in enumerate(self._flows_wait):
            if not waits:
                self._push(0.0, _FLOW, flow)
        does = (self._begin, self._end, self._reach, self._start, self._move, self._over)
        while self._heap:
            now, _, kind, what = heappop(self._heap)
            if kind < _MOVED:
                does[kind](now, what)
            else:
                self._moved(now, *divmod(what, 1 << 40))
        self.played.ends_s = self.played.ends_s[: len(self._parts_wait)]
        return self.played

    def _push(self, at_s: float, kind: int, what: int) -> None:
        self._number += 1
        heappush(self._heap, (at_s, self._number, kind, what))

    # -- computation -----------------------------------------------------------------------------

    def _begin(self, now: float, task: int) -> None:
        self.played.tasks_s[task] = now
        self._push(now + self._of.tasks_s[task], _END, task)
        for part in self._of.follow.get(task, ()):
            self._push(now + self._of.reached_s[part], _REACH, part)

    def _end(self, now: float, task: int) -> None:
        self._let_tasks(now, self._of.after_task.get(task, ()))

    def _let_tasks(self, now: float, tasks: Iterable[int]) -> None:
        for task in tasks:
            self._tasks_wait[task] -= 1
            if not self._tasks_wait[task]:
                self._push(now + self._of.gaps_s[task], _BEGIN, task)

    # -- messages --------------------------------------------------------------------------------

    def _reach(self, now: float, part: int) -> None:
        self._parts_wait[part] -= 1
        if not self._parts_wait[part]:
            self._push(now + self._of.handover_s[part], _START, part)

    def _start(self, now: float, part: int) -> None:
        self.played.starts_s[part] = now
        self._let_flows(now, self._of.starts.get(part, ()))

    def _let_flows(self, now: float, flows: Iterable[int]) -> None:
        for flow in flows:
            self._flows_wait[flow] -= 1
            if not self._flows_wait[flow]:
                self._push(now, _FLOW, flow)

    def _move(self, now: float, flow: int) -> None:
        self._at[flow] = (now, 0.0, 1.0)
        self._let_flows(now, self._of.moves.get(flow, ()))
        self._go_on(now, flow, 0.0)

    def _go_on(self, now: float, flow: int, done_s: float) -> None:
        """End the parts of a flow that are over, and let it on its links behind its start-up."""
        of, slack_s = self._of.flows[flow], _SLACK_S * max(done_s, 1.0)
        while self._next[flow] < len(of.parts):
            if of.progress_s[self._next[flow]] > done_s + slack_s:
                break
            self._come(now, flow, of.parts[self._next[flow]])
            self._next[flow] += 1
        if self._next[flow] == len(of.parts):
            if flow in self._sharing:
                self._sharing.remove(flow)
                self._shared(now, flow)
            del self._at[flow]
            return
        if flow not in self._sharing and done_s >= of.startup_s:
            self._sharing.add(flow)
            self._shared(now, flow)
        self._await(now, flow)

    def _target_s(self, flow: int) -> float:
        """Return how far a flow comes next: to a part's end, or to the end of its start-up."""
        of = self._of.flows[flow]
        target_s = of.progress_s[self._next[flow]]
        return target_s if flow in self._sharing else min(target_s, of.startup_s)

    def _await(self, now: float, flow: int) -> None:
        since_s, progress_s, rate = self._at[flow]
        self._version[flow] += 1
        left_s = max(self._target_s(flow) - progress_s, 0.0)
        if left_s <= _SLACK_S * max(progress_s, 1.0):
            left_s = 0.0  # the rounding of sums must not let it wait for another turn
        elif not rate:
            return
        at_s = max(since_s + (left_s / rate if left_s else 0.0), now)
        self._push(at_s, _MOVED, (flow << 40) + self._version[flow])

    def _moved(self, now: float, flow: int, version: int) -> None:
        if version != self._version[flow]:
            return
        since_s, progress_s, rate = self._at[flow]
        done_s = max(progress_s + (now - since_s) * rate, self._target_s(flow))
        self._at[flow] = (now, done_s, rate)
        self._go_on(now, flow, done_s)

    def _shared(self, now: float, flow: int) -> None:
        """Put a flow on its links, or take it off, and let all there go on at other rates."""
        for each in self._links.change(flow, flow in self._sharing):
            since_s, progress_s, rate = self._at[each]
            self._at[each] = (now, progress_s + (now - since_s) * rate, self._links.rate(each))
            if each != flow:
                self._await(now, each)

    def _come(self, now: float, flow: int, part: int) -> None:
        """Let a part be over, or those of its group when all of them are there."""
        group = self._group.get(flow)
        if group is None:
            self._over(now, part)
            return
        self._groups_wait[group] -= 1
        if not self._groups_wait[group]:
            for other in self._of.groups[group]:
                own = self._of.flows[other].parts[0]
                self._push(now + self._of.lags_s.get(own, 0.0), _OVER, own)

    def _over(self, now: float, part: int) -> None:
        self.played.ends_s[part] = now
        self._let_tasks(now, self._of.after_part.get(part, ()))
        for other in self._of.next_parts.get(part, ()):
            self._reach(now, other)
        self._let_flows(now, self._of.ends.get(part, ()))
