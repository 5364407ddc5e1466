"""Elsewhere: a recorded run played on another network, or with other servers.

What each rank computed in each iteration stays as it was recorded, stragglers included. Of every
message what it took on the way is taken out, and what the same message takes there is put in its
place; waits follow from what waits for what.

[Note: there over here] With the price of a message on the run's own network, its start-up is
replaced and what it took beside that is multiplied by the price of its bytes there over that here.
So what a price leaves out of a run (how well its links are filled, how its ranks differ) stays.
Where nothing is known of its own network the price there takes the place of what was recorded.

With parameter servers, by a plan, messages go by turns (:mod:`syncopate.analysis.replay.served`).

[Note: at the server] In other runs what a pull from servers takes longer than its price with all
ranks at once, from when the pushes are over, is the server's own work, and stays as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from syncopate.analysis import sweep
from syncopate.analysis.collectives import is_served, members
from syncopate.analysis.evidence.clocks import straightened
from syncopate.analysis.evidence.links import RECORDED
from syncopate.analysis.exposure import exposures
from syncopate.analysis.phases import COMMUNICATION, phases
from syncopate.analysis.replay.flows import Played, Player, Program, swept
from syncopate.analysis.replay.links import EqualLinks, Flow
from syncopate.analysis.replay.played import Replay, by_turns
from syncopate.analysis.replay.program import POOL_IN, POOL_OUT, program_of
from syncopate.analysis.replay.rank import PULL
from syncopate.analysis.replay.served import Served
from syncopate.analysis.work import missing, whole
from syncopate.artifacts.timeline import OWN_CLUSTER, Timeline
from syncopate.artifacts.timelines.alike import shared
from syncopate.artifacts.timelines.network import Message, Network, Price
from syncopate.artifacts.timelines.spans import Numbers, Spans, Times
from syncopate.errors import InvalidValueError

REPLAYED = "replayed"
"""What metadata call the network on which a run was played again."""

_TELLING = 0.01
"""A smaller part of a price than this does not say what bytes take: then the whole price does."""

_NOT_COPIED = (RECORDED, OWN_CLUSTER, "clock_error_s")


class Spent(NamedTuple):
    """The parts of an iteration, the mean over ranks and iterations, seconds.

    Attributes:
        computing_s: forward, backward and update.
        transferring_s: nothing is computed while a message is transferred.
        waiting_s: nothing is computed while a message waits for ranks that are to come.
        idle_s: the rest.
    """

    computing_s: float
    transferring_s: float
    waiting_s: float
    idle_s: float


@dataclass(frozen=True)
class Elsewhere:
    """A run, and the same run on another network.

    Attributes:
        recorded: the iterations that were played, by the clocks of the run.
        timeline: the same played there.
        network: its name.
        iterations: that count: the first stands for no other where there are several.
        recorded_s: how long each of them took.
        replayed_s: how long each takes there.
        between: the first and the last iteration that all ranks recorded, one behind the other,
            where there are others; None: all are whole.
        known: whether the run's own network was known, and what messages took on it.
    """

    recorded: Timeline
    timeline: Timeline
    network: str
    iterations: tuple[int, ...]
    recorded_s: tuple[float, ...]
    replayed_s: tuple[float, ...]
    between: tuple[int, int] | None
    known: bool

    @property
    def medians_s(self) -> tuple[float, float]:
        """The median iteration as recorded, and there."""
        return float(np.median(self.recorded_s)), float(np.median(self.replayed_s))

    @property
    def spent(self) -> tuple[Spent, Spent]:
        """The parts of an iteration, recorded and on the other network."""
        both = ((self.recorded, self.recorded_s), (self.timeline, self.replayed_s))
        before, after = (_spent(one, self.iterations, times_s) for one, times_s in both)
        return before, after


def played_on(timeline: Timeline, there: Network, here: Network | None = None) -> Elsewhere:
    """Play a recorded run on another network.

    Args:
        timeline: measured or simulated, of ranks that compute and communicate.
        there: the other network, such as a :class:`~syncopate.costs.model.replayed.ClusterNetwork`.
        here: the run's own; None: not known. See [Note: there over here].

    Returns:
        How long iterations take there beside what they took, and the timeline.

    Raises:
        InvalidValueError: nothing was computed or sent, a rank is missing, a network is for another
            number of ranks, or what waits for what goes round in circles.
        UnknownNameError: a collective that has no price.

    Example:
        >>> found = played_on(timeline, ClusterNetwork(cluster))  # doctest: +SKIP
        >>> found.medians_s  # doctest: +SKIP
        (0.183, 0.124)
    """
    for network in (there, here):
        if network is not None and network.world_size not in (0, timeline.world_size):
            rule = f"that of the run, {timeline.world_size}"
            raise InvalidValueError(f"ranks of {network.name}", network.world_size, rule)
    kept, between = kept_of(timeline)
    kept, _ = straightened(kept)
    run = Replay(kept)
    program = program_of(run)
    known = here is not None
    if by_turns(run.timeline):
        played = Served(run, program, messages_of(run), timeline).played(there, here)
    else:
        known = _price(run, program, there, here)
        played = Player(program, EqualLinks(program.flows, capacity_of(run, there))).play()
    if math.isnan(played.tasks_s.sum() + played.ends_s.sum()):
        rule = "one in which nothing waits for itself: its times contradict each other"
        raise InvalidValueError("timeline", timeline.name, rule)
    spans = _spans(run, program, played)
    alike = timeline.alike
    metadata = {k: v for k, v in timeline.metadata.items() if k not in _NOT_COPIED}
    found: Timeline = replace(
        timeline,
        source="simulated",
        spans=shared(spans, alike, timeline.world_size),
        metadata=metadata | {REPLAYED: there.name},
    )
    recorded_s = (run.tasks.end_s - run.origin_s, run.parts.end_s - run.origin_s)
    tasks_s = played.tasks_s + np.array(program.tasks_s)
    return Elsewhere(
        recorded=replace(kept, spans=shared(kept.columns, alike, timeline.world_size)),
        timeline=found,
        network=there.name,
        iterations=run.iterations,
        recorded_s=tuple(run.between_s(*recorded_s).tolist()),
        replayed_s=tuple(run.between_s(tasks_s, played.ends_s).tolist()),
        between=between,
        known=known,
    )


def kept_of(timeline: Timeline) -> tuple[Timeline, tuple[int, int] | None]:
    """Return what of a run can be played: iterations of all ranks, those of alike ranks once.

    Returns:
        It, and as in :attr:`Elsewhere.between`.

    Raises:
        InvalidValueError: a rank is missing, or nothing was sent.
    """
    if lost := missing(timeline):
        rule = "none, because ranks wait for each other"
        raise InvalidValueError("ranks without a span", lost, rule)
    kept, between = whole(replace(timeline, spans=timeline.kept))
    if not kept.columns.in_lanes(*COMMUNICATION).any():
        rule = "a run whose ranks communicate: no push or pull is recorded"
        raise InvalidValueError("timeline", timeline.name, rule)
    return kept, between


# -- prices ------------------------------------------------------------------------------------


def capacity_of(run: Replay, network: Network) -> dict[int, float]:
    """Return the capacity of links that have another one than a rank's."""
    if not is_served(run.timeline):
        return {}
    return {POOL_IN: network.pool, POOL_OUT: network.pool}


def _price(run: Replay, program: Program, there: Network, here: Network | None) -> bool:
    """Let flows come as far as they do there, by [Note: there over here].

    Returns:
        Whether what messages took was scaled; else their prices are in its place.
    """
    messages = messages_of(run)
    known: dict[Message, tuple[Price, Price | None]] = {}
    for message in dict.fromkeys(messages):
        known[message] = there.price(message), None if here is None else here.price(message)
    prices = [known[messages[flow.message]] for flow in program.flows]
    pulls = is_served(run.timeline) & (run.parts.lane[run.messages.first] == PULL)
    fixed_s = [0.0] * len(prices)
    for number, (flow, (_, own)) in enumerate(zip(program.flows, prices, strict=True)):
        if own is None:
            continue
        lasts_s = max(float(program.came_s[flow.parts[-1]]) - flow.start_s, 0.0)
        if pulls[flow.message]:
            crowded_s = (own.startup_s + own.crowded_s) * flow.share
            fixed_s[number] = max(lasts_s - crowded_s, 0.0)
        left_s, alone_s = lasts_s - fixed_s[number], own.alone_s * flow.share
        # What was faster than its price was so from the beginning.
        startup_s = own.startup_s * flow.share
        startup_s *= min(left_s / alone_s, 1.0) if alone_s > 0 else 0.0
        flow.startup_s = fixed_s[number] + startup_s
    came_s = swept(program.flows, program.came_s, capacity_of(run, here or there))
    if here is not None and not any(map(any, came_s)):  # when messages ended is not known
        return _price(run, program, there, None)
    for flow, price, progress_s, kept_s in zip(program.flows, prices, came_s, fixed_s, strict=True):
        _carry(flow, progress_s, kept_s, *price)
    return here is not None


def _carry(
    flow: Flow, progress_s: list[float], fixed_s: float, there: Price, here: Price | None
) -> None:
    """Let a flow have another start-up, and come as far as another network asks.

    Args:
        flow: with the start-up that it had.
        progress_s: how far it had come when its parts were over.
        fixed_s: what of its start-up stays as it was.
        there: its price on the other network.
        here: on its own; None: not known.
    """
    most_s = progress_s[-1] if progress_s else 0.0
    if here is None:
        flow.startup_s = there.startup_s * flow.share
        whole_s = there.alone_s * flow.share
        flow.progress_s = [whole_s * (one / most_s if most_s > 0 else 1.0) for one in progress_s]
        return
    had_s, own_s = flow.startup_s, flow.startup_s - fixed_s
    if here.startup_s > 0:
        flow.startup_s = fixed_s + there.startup_s * own_s / here.startup_s
    else:
        flow.startup_s += there.startup_s * flow.share
    early = flow.startup_s / had_s if had_s > 0 else 1.0
    if here.bytes_s > _TELLING * here.alone_s:
        later = there.bytes_s / here.bytes_s
    else:
        later = there.alone_s / here.alone_s if here.alone_s > 0 else 1.0
    flow.progress_s = [
        one * early if one < had_s else flow.startup_s + (one - had_s) * later for one in progress_s
    ]


def messages_of(run: Replay) -> list[Message]:
    """Return the kind of each message of a replay."""
    found, timeline = run.messages, run.timeline
    spans = found.spans
    nbytes = found.most(spans.nbytes).tolist() if len(found) else []
    at = found.rows[found.first]
    details = [spans.texts[place] for place in spans.detail[at].tolist()]
    algorithms = [detail.partition("(")[0].strip() for detail in details]
    names = [found.names[kind] for kind in found.kinds.tolist()]
    ranks: list[tuple[int, ...]] = [()] * len(names)
    if timeline.groups:
        sizes, channels = members(timeline).tolist(), spans.channel[at].tolist()
        for message, (size, channel) in enumerate(zip(sizes, channels, strict=True)):
            if 0 <= channel < len(timeline.groups) and size < timeline.world_size:
                group = timeline.groups[channel].ranks
                first, count = found.first[message], found.sizes[message]
                own = run.parts.rank[first : first + count].tolist()
                ranks[message] = tuple(own if len(own) == 2 or not group else group)
    return [Message(*fields) for fields in zip(names, algorithms, nbytes, ranks, strict=True)]


# -- the timeline ------------------------------------------------------------------------------


def _spans(run: Replay, program: Program, played: Played) -> Spans:
    """Return the spans of a run by the times at which they are when it is played.

    Those of messages are where these are; what lies between begins and ends of tasks moves along.
    """
    columns = run.timeline.columns
    fields = {name: getattr(columns, name).copy() for name in ("start_s", "end_s")}
    known = {name: getattr(columns, name).copy() for name in ("launched_s", "ready_s")}
    begun_s = played.tasks_s + run.origin_s
    ended_s = begun_s + np.array(program.tasks_s)
    tasks, none = dict(sweep.groups(run.tasks.rank)), np.zeros(0, np.int64)
    for rank, mine in sweep.groups(columns.rank):
        was_s, is_s = _anchors(run, tasks.get(rank, none), begun_s, ended_s)
        for times_s in (*fields.values(), *known.values()):
            times_s[mine] = _moved(times_s[mine], was_s, is_s)
    rows = run.messages.rows
    fields["start_s"][rows] = played.starts_s + run.origin_s
    fields["end_s"][rows] = np.maximum(played.ends_s, played.starts_s) + run.origin_s
    for times_s in known.values():
        times_s[rows] = np.minimum(times_s[rows], fields["start_s"][rows])
    fields["end_s"] = np.maximum(fields["end_s"], fields["start_s"])
    return columns.changed(**fields, **known)


def _anchors(run: Replay, own: Numbers, begun_s: Times, ended_s: Times) -> tuple[Times, Times]:
    """Return when tasks of one rank began and ended as recorded, rising, and what that became."""
    tasks = run.tasks
    was_s = np.stack([tasks.start_s[own], tasks.end_s[own]], axis=1).ravel()
    is_s = np.stack([begun_s[own], ended_s[own]], axis=1).ravel()
    origin_s = np.array([run.origin_s])
    was_s = np.maximum.accumulate(np.concatenate([origin_s, was_s]))
    return was_s, np.maximum.accumulate(np.concatenate([origin_s, is_s]))


def _moved(times_s: Times, was_s: Times, is_s: Times) -> Times:
    """Return times moved with the anchors between which they lie."""
    found = np.interp(times_s, was_s, is_s)
    found += np.maximum(times_s - was_s[-1], 0.0)
    return np.where(np.isnan(times_s), times_s, found)


def _spent(timeline: Timeline, iterations: tuple[int, ...], lasts_s: tuple[float, ...]) -> Spent:
    counted = [one for one in phases(timeline) if one.iteration in set(iterations)]
    ranks = len({one.rank for one in counted}) or 1
    turns = ranks * len(iterations)
    found = exposures(timeline)
    mine = np.isin(found.spans.iteration, iterations)
    computing_s = sum(one.computation_s for one in counted) / turns
    moving_s = float(found.transferring_s[mine].sum()) / turns
    waiting_s = float(found.waiting_s[mine].sum()) / turns
    mean_s = sum(lasts_s) / len(lasts_s)
    rest_s = max(mean_s - computing_s - moving_s - waiting_s, 0.0)
    return Spent(computing_s, moving_s, waiting_s, rest_s)
