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
from collections.abc import Iterable

import numpy as np

from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.replay.flows import Flow, Program
from syncopate.analysis.replay.played import Replay
from syncopate.analysis.replay.rank import PULL, PUSH
from syncopate.artifacts.plan import SERVED
from syncopate.artifacts.spans import Numbers, Times, coded
from syncopate.artifacts.timeline import AFTER_PUSHES, ANSWERS, PULLS, TOGETHER

POOL_IN, POOL_OUT = -1, -2
"""The links of all servers together: into them, and out of them."""


def is_served(replay: Replay) -> bool:
    """Say whether messages go to and come from parameter servers."""
    return replay.timeline.metadata.get(EXCHANGE) == SERVED


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
    flows, starts, ends, moves = _flows(replay)
    groups, came_s, lags_s = _answered(replay)
    behind, push = _behind(replay)
    follows, after, handover_s = parts.task.copy(), parts.after.copy(), parts.handover_s.copy()
    reached_s = recorded.shares * lasts_s + recorded.delays_s
    follows[behind], reached_s[behind], after[behind] = -1, 0.0, push
    handover_s[behind] = parts.start_s[behind] - parts.end_s[push]
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
        starts=starts,
        ends=ends,
        moves=moves,
        flows=flows,
        groups=groups,
        came_s=came_s,
        lags_s=lags_s,
    )


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


_Waiting = dict[int, list[int]]


def _flows(replay: Replay) -> tuple[list[Flow], _Waiting, _Waiting, _Waiting]:
    """Return the flows, and which of them wait for starts and ends of parts, and moves of flows.

    The first are of the messages, by their numbers; behind them are those of parts that are over
    before their message moves.
    """
    parts, found = replay.parts, replay.messages
    starts: _Waiting = defaultdict(list)
    ends: _Waiting = defaultdict(list)
    moves: _Waiting = defaultdict(list)
    flows: list[Flow] = []
    early = replay.early
    over_s, start_s = parts.end_s - replay.origin_s, parts.start_s - replay.origin_s
    served = is_served(replay)
    links = _served_links(replay) if served else _links(replay)
    move_s = (found.arrived_s - replay.origin_s).tolist()
    gated = _gated(replay) if served else {}
    moved = defaultdict(list)
    for pull, push in replay.pushed.tolist():
        moved[pull].append(push)
    first = found.first.tolist()
    for message, size in enumerate(found.sizes.tolist()):
        rows = np.arange(first[message], first[message] + size)
        own = rows[~early[rows]]
        own = own[np.argsort(over_s[own], kind="stable")].tolist()
        for part in rows.tolist():
            starts[part].append(message)
        begin_s = move_s[message]
        for push in moved[message]:
            moves[push].append(message)
            begin_s = max(begin_s, move_s[push])
        for part in gated.get(message, ()):
            ends[part].append(message)
            begin_s = max(begin_s, float(over_s[part]))
        waits = size + sum(len(each.get(message, ())) for each in (moved, gated))
        flows.append(Flow(own, links[message], waits, begin_s))
    for part in np.flatnonzero(early).tolist():
        starts[part].append(len(flows))
        links_of = links[int(parts.message[part])]
        flows.append(Flow([part], links_of, 1, float(start_s[part])))
    return flows, starts, ends, moves


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
    same: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for message, part in enumerate(replay.messages.first.tolist()):
        if parts.lane[part] == PUSH:
            same[int(parts.iteration[part]), int(parts.name[part])].append((message, part))
    for pushes in same.values():
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


def _gated(replay: Replay) -> dict[int, list[int]]:
    """Return of each pull from servers the parts of pushes that are over before it is."""
    parts, found = replay.parts, replay.messages
    pushes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    together = len(replay.pushed) > 0
    first = found.first.tolist()

    def key(part: int) -> tuple[int, ...]:
        whose = () if together else (int(parts.rank[part]),)
        return (int(parts.iteration[part]), int(parts.name[part]), *whose)

    for part in first:
        if parts.lane[part] == PUSH:
            pushes[key(part)].append(part)
    return {
        message: [push for push in pushes[key(part)] if parts.end_s[push] <= parts.end_s[part]]
        for message, part in enumerate(first)
        if parts.lane[part] == PULL and key(part) in pushes
    }


def _served_links(replay: Replay) -> list[tuple[int, ...]]:
    """Return the links of each message to or from servers."""
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
