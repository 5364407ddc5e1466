"""Program: a replay as tasks and flows, on links.

Where messages go to and come from parameter servers, each worker has a link in each direction, and
all servers together have one; a push or pull is on both. Elsewhere each rank has one link, and a
message is on those of its ranks: of ranks that always communicate together one stands for all.

A pull from servers goes on when the pushes that it waits for are over: all ranks' where servers
wait for all of them, else the rank's own. What it takes from there is the server's work and the way
back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from syncopate.analysis.collectives import is_served
from syncopate.analysis.replay.flows import Program
from syncopate.analysis.replay.links import Flow
from syncopate.analysis.replay.played import Replay, is_synchronous, own_pushes, pushes_of
from syncopate.analysis.replay.rank import PULL, PUSH
from syncopate.artifacts.timeline import AFTER_PUSHES, ANSWERS, PULLS, SERVER_COUNT, TOGETHER
from syncopate.artifacts.timelines.spans import Numbers, Times, coded
from syncopate.units import MIB

POOL_IN, POOL_OUT = -1, -2
"""The links of all servers together: into them, and out of them."""


SLICE_BYTES = 4 * MIB
"""What is longer is cut, unless a job is told otherwise."""

MOST_SLICES = 4
"""Of one bucket; more cost time, and change little."""


def program_of(replay: Replay) -> Program:
    """Return a replay as a program, with flows that have not come anywhere yet."""
    tasks, parts, recorded = replay.tasks, replay.parts, replay.recorded
    count = len(parts.rank)
    waits = np.zeros(len(tasks.rank), np.int64)
    after_task: dict[int, list[int]] = defaultdict(list)
    there = np.flatnonzero(tasks.previous >= 0)
    for before, task in zip(tasks.previous[there].tolist(), there.tolist(), strict=True):
        after_task[before].append(task)
        waits[task] += 1
    for task, other in replay.others.tolist():
        after_task[other].append(task)
        waits[task] += 1
    after_part: dict[int, list[int]] = defaultdict(list)
    for task, part in replay.gates.tolist():
        after_part[part].append(task)
        waits[task] += 1
    lasts_s = np.append(recorded.tasks_s, 0.0)[parts.task]
    groups, came_s, lags_s = _answered(replay)
    own = own_pushes(replay.parts) if is_served(replay.timeline) else {}
    made = _Flows(replay, came_s, own)
    behind, push = _behind(replay)
    follows, after, handover_s = parts.task.copy(), parts.after.copy(), parts.handover_s.copy()
    reached_s = recorded.shares * lasts_s + recorded.delays_s
    follows[behind], reached_s[behind], after[behind] = -1, 0.0, push
    handover_s[behind] = parts.start_s[behind] - parts.end_s[push]
    _asked(replay, own, reached_s, handover_s)
    later = after >= 0
    return Program(
        tasks_s=recorded.tasks_s.tolist(),
        gaps_s=recorded.gaps_s.tolist(),
        tasks_wait=waits.tolist(),
        after_task=after_task,
        after_part=after_part,
        follow=_by(follows, range(count)),
        reached_s=reached_s.tolist(),
        handover_s=handover_s.tolist(),
        parts_wait=(1 + later.astype(np.int64)).tolist(),
        next_parts=_by(after[later], np.flatnonzero(later).tolist()),
        starts=made.starts,
        ends=made.ends,
        moves=made.moves,
        flows=made.flows,
        groups=groups,
        came_s=made.came_s,
        lags_s=lags_s,
    )


def _asked(replay: Replay, own: Mapping[int, int], reached_s: Times, handover_s: Times) -> None:
    """Let pulls be asked for at once that began late because their push was still under way."""
    parts = replay.parts
    if PULLS in replay.timeline.metadata:
        return
    for pull, push in own.items():
        late_s = float(parts.delay_s[pull] + parts.handover_s[pull])
        if parts.end_s[push] > parts.start_s[pull] - late_s:
            reached_s[pull] -= parts.delay_s[pull]
            handover_s[pull] = 0.0


def _behind(replay: Replay) -> tuple[Numbers, Numbers]:
    """Return the pulls that are asked for when their push was answered, and these pushes."""
    parts = replay.parts
    if replay.timeline.metadata.get(PULLS) != AFTER_PUSHES:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    key = coded([parts.rank, parts.iteration, parts.name])
    push = np.full(int(key.max(initial=-1)) + 1, -1)
    pushes = np.flatnonzero(parts.lane == PUSH)
    push[key[pushes]] = pushes
    pulls = np.flatnonzero((parts.lane == PULL) & (push[key] >= 0))
    pulls = pulls[parts.end_s[push[key[pulls]]] <= parts.start_s[pulls]]
    return pulls, push[key[pulls]]


class _Flows:
    """The flows of a replay, and what they wait for.

    The first are of the messages, by their numbers; behind them are those of parts that are over
    before their message moves, and those of slices that go before the last one of their pull.

    Args:
        replay: of a timeline.
        came_s: when each part had come, as recorded.
        own: pull from servers -> the push of its rank whose weights it brings.

    Attributes:
        flows: all of them.
        starts: part -> the flows that wait for its start.
        ends: part, or slice behind the parts -> the flows that wait for its end.
        moves: flow -> the flows that wait until it moves.
        came_s: as given, and behind that of slices.
    """

    def __init__(self, replay: Replay, came_s: Times, own: Mapping[int, int]) -> None:
        self._replay = replay
        self.starts: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, list[int]] = defaultdict(list)
        self.moves: dict[int, list[int]] = defaultdict(list)
        self.flows: list[Flow] = []
        self._came = came_s.tolist()
        self._slices: dict[int, list[int]] = {}
        self._moved: dict[int, list[int]] = defaultdict(list)
        served = is_served(replay.timeline)
        links = _served_links(replay) if served else _links(replay)
        gated = _gated(replay, own) if served else {}
        self._add_messages(links, gated)
        self._add_early(links)
        if served:
            self._cut(gated)
        self.came_s = np.array(self._came)

    def _add_messages(
        self, links: Sequence[tuple[int, ...]], gated: Mapping[int, Sequence[int]]
    ) -> None:
        replay, found = self._replay, self._replay.messages
        move_s = (found.arrived_s - replay.origin_s).tolist()
        for pull, push in replay.pushed.tolist():
            self._moved[pull].append(push)
        first = found.first.tolist()
        for message, size in enumerate(found.sizes.tolist()):
            rows = range(first[message], first[message] + size)
            own = sorted((row for row in rows if not replay.early[row]), key=self._came.__getitem__)
            for part in rows:
                self.starts[part].append(message)
            begin_s = move_s[message]
            for push in self._moved[message]:
                self.moves[push].append(message)
                begin_s = max(begin_s, move_s[push])
            for part in gated.get(message, ()):
                self.ends[part].append(message)
                begin_s = max(begin_s, self._came[part])
            waits = size + len(self._moved[message]) + len(gated.get(message, ()))
            self.flows.append(Flow(own, links[message], waits, begin_s, message))

    def _add_early(self, links: Sequence[tuple[int, ...]]) -> None:
        replay = self._replay
        for part in np.flatnonzero(replay.early).tolist():
            message = int(replay.parts.message[part])
            self.starts[part].append(len(self.flows))
            begin_s = float(replay.parts.start_s[part]) - replay.origin_s
            self.flows.append(Flow([part], links[message], 1, begin_s, message))

    # -- slices --------------------------------------------------------------------------------

    def _cut(self, gated: Mapping[int, Sequence[int]]) -> None:
        """Let a pull begin with what its pushes have brought of it, by [Note: slices]."""
        replay = self._replay
        nbytes = replay.messages.most(replay.messages.spans.nbytes).tolist()
        if PULLS in replay.timeline.metadata:
            return
        text = replay.timeline.metadata.get(SERVER_COUNT, "")
        servers = int(text) if text.isdecimal() and int(text) else 1
        for message, pushes in gated.items():
            count = min(-(-nbytes[message] // (servers * SLICE_BYTES)), MOST_SLICES)
            if count > 1 and pushes:
                self._cut_one(message, pushes, count)

    def _cut_one(self, message: int, pushes: Sequence[int], count: int) -> None:
        """Cut a pull into slices that follow one another, each behind the same of the pushes."""
        last = self.flows[message]
        part = last.parts[-1]
        own = self._replay.parts
        asked_s = float(own.start_s[part]) - self._replay.origin_s
        of_pushes = [self._sliced(push, count) for push in pushes]
        there_s = [max(self._came[one[at]] for one in of_pushes) for at in range(count)]
        there_s[0] = max(there_s[0], asked_s)
        end_s = self._came[part]
        each_s = min((end_s - at_s) / (count - at) for at, at_s in enumerate(there_s))
        each_s = max(each_s, 0.0)
        waits, before_s, before = last.waits - len(pushes), asked_s, -1
        for at in range(count):
            begin_s = max(before_s, there_s[at])
            before_s = end_s if at == count - 1 else min(begin_s + each_s, end_s)
            if at == count - 1:
                flow, number = last, message
                last.waits, last.start_s, last.share = len(pushes) + 1, begin_s, 1 / count
            else:
                number = len(self.flows)
                own_waits = len(pushes) + (waits if at == 0 else 1)
                flow = Flow([self._new(before_s)], last.links, own_waits, begin_s, message)
                flow.share = 1 / count
                self.flows.append(flow)
                for one in of_pushes:
                    self.ends[one[at]].append(number)
            if at == 0:
                self._moved_to(message, part, number)
            else:
                self.ends[before].append(number)
            before = flow.parts[-1]

    def _moved_to(self, message: int, part: int, number: int) -> None:
        """Let the first slice of a pull wait for what all of it waited for."""
        self.starts[part] = [number if flow == message else flow for flow in self.starts[part]]
        for push in self._moved[message]:
            waiting = self.moves[push]
            waiting[waiting.index(message)] = number

    def _sliced(self, push: int, count: int) -> list[int]:
        """Return the slices of a push, the last of which is its part itself."""
        if push not in self._slices:
            own = self._replay.parts
            begin_s = float(own.start_s[push]) - self._replay.origin_s
            lasts_s = max(self._came[push] - begin_s, 0.0)
            made = [self._new(begin_s + lasts_s * at / count) for at in range(1, count)]
            self._slices[push] = [*made, push]
            self.flows[int(own.message[push])].parts[:] = self._slices[push]
        return self._slices[push]

    def _new(self, came_s: float) -> int:
        self._came.append(came_s)
        return len(self._came) - 1


def _answered(replay: Replay) -> tuple[list[list[int]], Times, dict[int, float]]:
    """Return which pushes are answered together, when each had come, and what answers take longer.

    Servers answer when they have those of all ranks, so that of the last one says how long a push
    is under way, and the others' are taken to have been no longer. One that was answered before
    another one began did not wait for it.

    Returns:
        Groups of messages; of each part when it had come, as far as it is a push; and of parts of
        the groups from when all had come to the answer.
    """
    parts, came_s = replay.parts, replay.parts.end_s - replay.origin_s
    groups: list[list[int]] = []
    lags_s: dict[int, float] = {}
    if replay.timeline.metadata.get(ANSWERS) != TOGETHER:
        return groups, came_s, lags_s
    first = replay.messages.first.tolist()
    for messages in pushes_of(replay.messages, parts).values():
        pushes = [(message, first[message]) for message in messages]
        last_s = max(float(parts.start_s[part]) for _, part in pushes)
        waiting = [(message, part) for message, part in pushes if parts.end_s[part] >= last_s]
        if len(waiting) < 2:
            continue
        lasts_s = min(float(parts.end_s[part] - parts.start_s[part]) for _, part in waiting)
        last_s = max(float(parts.start_s[part]) for _, part in waiting)
        groups.append([message for message, _ in waiting])
        for _, part in waiting:
            came_s[part] = parts.start_s[part] + lasts_s - replay.origin_s
            lags_s[part] = max(float(parts.end_s[part]) - last_s - lasts_s, 0.0)
    return groups, came_s, lags_s


def _gated(replay: Replay, own: Mapping[int, int]) -> dict[int, list[int]]:
    """Return of each pull from servers the parts of pushes that are over before it is.

    Those of the iteration of its rank's own push: where servers wait for all ranks, of all.
    """
    parts, found = replay.parts, replay.messages
    if not is_synchronous(replay.timeline):
        pairs = {int(parts.message[pull]): [push] for pull, push in own.items()}
    else:
        pushes = pushes_of(found, parts)
        pairs = {
            int(parts.message[pull]): found.first[
                pushes[int(parts.iteration[push]), int(parts.name[push])]
            ].tolist()
            for pull, push in own.items()
        }
    over_s = parts.end_s[found.first]
    return {
        message: [push for push in pushes if parts.end_s[push] <= over_s[message]]
        for message, pushes in pairs.items()
    }


def _served_links(replay: Replay) -> list[tuple[int, ...]]:
    first = replay.messages.first
    ranks, lanes = replay.parts.rank[first].tolist(), replay.parts.lane[first].tolist()
    return [
        (2 * rank + (lane == PULL), POOL_OUT if lane == PULL else POOL_IN)
        for rank, lane in zip(ranks, lanes, strict=True)
    ]


def _links(replay: Replay) -> list[tuple[int, ...]]:
    """Return the links of each collective: of ranks that are in the same ones, the first's."""
    parts, found = replay.parts, replay.messages
    first, sizes = found.first.tolist(), found.sizes.tolist()
    teams: dict[tuple[int, ...], int] = {}
    team = [
        teams.setdefault(tuple(parts.rank[begin : begin + size].tolist()), len(teams))
        for begin, size in zip(first, sizes, strict=True)
    ]
    within: dict[int, list[int]] = defaultdict(list)
    for ranks, number in teams.items():
        for rank in ranks:
            within[rank].append(number)
    stands: dict[tuple[int, ...], int] = {}
    for rank, numbers in sorted(within.items()):
        stands.setdefault(tuple(numbers), rank)
    links = [tuple(dict.fromkeys(stands[tuple(within[rank])] for rank in ranks)) for ranks in teams]
    return [links[number] for number in team]


def _by(keys: Numbers, values: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for key, value in zip(keys.tolist(), values, strict=True):
        found[key].append(value)
    return found
