"""Ranks that differ: how fast each computes, and what all do where some are slower than others.

In a synchronous exchange a collective begins when the slowest rank has come to it, and every rank
waits for its end. A rank's *pace* in an iteration is the factor by which it computes for longer
than the workload says, forward, backward and update alike. Collectives are those of the event
kernel in ``fluid.py``; beside them many threads compute in place of one, kept as arrays.

With parameter servers too a push begins with the slowest rank. Servers that get the other ranks'
gradients earlier are then free for those of the slowest: an iteration is predicted that may be too
long, by no more than what the pushes of the other ranks take.

[Note: one clock of progress] All ranks that compute do so at the same rate, which changes with what
interferes. So one clock of progress serves all: a piece that began when it stood at v is done when
it stands at v plus its length. It is converted to time where the rate last changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.pieces import FloatArray
from syncopate.costs.schedule.links import Machines
from syncopate.delay import Delay
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.simulation.fluid import Collective, Machine, Piece, Run
from syncopate.simulation.iteration import Iteration, Program, program
from syncopate.simulation.layout import Closing
from syncopate.simulation.traffic import Traffic

MOST_JITTER = 1.0
"""Of a standard deviation, as a share of the mean: more is no jitter."""


@dataclass(frozen=True)
class Variation:
    """How ranks differ from the workload, and from each other.

    A rank's pace in an iteration is the product of what is given here. Equal seeds give equal
    paces, to the last bit.

    Attributes:
        slow_ranks: rank -> factor on its computation, in all iterations.
        slow_hosts: host -> factor on the computation of its ranks. A host goes by its name where
            the cluster has names, else by its number, such as ``"0"``.
        jitter: the standard deviation of a factor of mean 1 that is drawn for each rank and
            iteration, from a log-normal distribution; 0.05 is 5%.
        rank_factors: factors of which one is drawn for each rank, in all iterations; empty: none.
        step_factors: factors of which one is drawn for each rank and iteration; empty: none. Both
            come from a measured timeline by :func:`syncopate.analysis.ranks.variation.spread`.
        seed: of what is drawn.

    Raises:
        InvalidValueError: a factor that is not a finite number > 0, or a jitter not in [0, 1].
    """

    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    slow_hosts: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.0
    rank_factors: Sequence[float] = ()
    step_factors: Sequence[float] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        named = {f"factor of rank {r}": f for r, f in self.slow_ranks.items()}
        named |= {f"factor of host {h}": f for h, f in self.slow_hosts.items()}
        drawn = [("factor", f) for f in (*self.rank_factors, *self.step_factors)]
        for what, factor in (*named.items(), *drawn):
            if not (math.isfinite(factor) and factor > 0):
                raise InvalidValueError(
                    what, factor, "a finite number > 0; 1.5 computes for longer"
                )
        if not 0 <= self.jitter <= MOST_JITTER:
            rule = f"a number in [0, {MOST_JITTER:g}]: a standard deviation as a share of the mean"
            raise InvalidValueError("jitter", self.jitter, rule)
        if self.seed < 0:
            raise InvalidValueError("seed", self.seed, "an integer >= 0")

    def __str__(self) -> str:
        said = [f"rank {rank} x{factor:g}" for rank, factor in self.slow_ranks.items()]
        said += [f"host {host} x{factor:g}" for host, factor in self.slow_hosts.items()]
        drawn = [f"jitter {self.jitter:g}"] if self.jitter else []
        if self.rank_factors or self.step_factors:
            drawn.append("as measured")
        return ", ".join([*said, *drawn, *([f"seed {self.seed}"] if drawn else [])])

    def paces(self, cluster: Cluster, iterations: int) -> FloatArray:
        """Return the pace of each rank (row) in each iteration (column).

        Raises:
            InvalidValueError: a rank that the cluster does not have.
            UnknownNameError: a host that it does not have.
        """
        shape = cluster.world_size, iterations
        paces = np.ones(shape)
        for rank, factor in self.slow_ranks.items():
            if not 0 <= rank < cluster.world_size:
                raise InvalidValueError("slow rank", rank, f"in 0..{cluster.world_size - 1}")
            paces[rank] *= factor
        if self.slow_hosts:
            hosts = hosts_of(cluster)
            for host, factor in self.slow_hosts.items():
                if host not in hosts:
                    raise UnknownNameError("host", host, _some(hosts), cluster.name)
                paces[[at for at, own in enumerate(hosts) if own == host]] *= factor
        chance = np.random.default_rng(self.seed)
        if self.rank_factors:
            paces *= chance.choice(np.array(self.rank_factors), shape[0])[:, None]
        if self.step_factors:
            paces *= chance.choice(np.array(self.step_factors), shape)
        if self.jitter:
            variance = math.log1p(self.jitter**2)
            paces *= chance.lognormal(-variance / 2, math.sqrt(variance), shape)
        return paces


def hosts_of(cluster: Cluster) -> tuple[str, ...]:
    """Return the host of each rank: by name where hosts have names, else ``"0"``, ``"1"``, .."""
    if cluster.hosts:
        return cluster.hosts
    host = Machines.of(cluster).units()[cluster.first_outer]
    return tuple(map(str, host.tolist()))


def _some(hosts: Sequence[str]) -> list[str]:
    there = list(dict.fromkeys(hosts))
    return there if len(there) <= 8 else [*there[:3], "..", there[-1]]


@dataclass(frozen=True)
class Runs:
    """The times of ranks, in seconds from the start; rows are ranks.

    Attributes:
        arrives_s: when each rank came to each collective: it was ready, and its channel was free.
        ends_s: when each collective ended, on all ranks.
        begins_s: when each piece of computation began, its waits over.
        finishes_s: when it was done.
        paces: of each piece.
        anchors: ``(time, progress, rate)`` from which on ranks computed at another rate.
    """

    arrives_s: FloatArray
    ends_s: FloatArray
    begins_s: FloatArray
    finishes_s: FloatArray
    paces: FloatArray
    anchors: FloatArray

    def of(self, rank: int) -> Run:
        """Return what one of them did; progress counts in the seconds of the workload."""
        begins_s, finishes_s = self.begins_s[rank].tolist(), self.finishes_s[rank].tolist()
        progress = []
        times_s, clock, _ = self.anchors.T
        for place, (begin_s, finish_s) in enumerate(zip(begins_s, finishes_s, strict=True)):
            points = [(begin_s, 0.0)]
            if len(times_s) > 1:
                inside = (times_s > begin_s) & (times_s < finish_s)
                since = _clock(self.anchors, np.array([begin_s]))[0]
                done = np.maximum(clock[inside] - since, 0.0) / self.paces[rank, place]
                points += zip(times_s[inside].tolist(), done.tolist(), strict=True)
            progress.append(tuple(points))
        return Run(
            starts_s=tuple(self.arrives_s[rank].tolist()),
            ends_s=tuple(self.ends_s.tolist()),
            begins_s=tuple(begins_s),
            finishes_s=tuple(finishes_s),
            progress=tuple(progress),
        )


@dataclass(frozen=True)
class OfRank:
    """The times of one rank in one iteration.

    Attributes:
        origin_s: when it began its forward, from the start of the training.
        played: what it did; times count from then on.
        closings: when it came to each collective of each closing and when that ended, likewise.
    """

    origin_s: float
    played: Iteration
    closings: tuple[tuple[tuple[float, float], ...], ...] = ()


def play_ranks(
    workload: Workload,
    traffic: Traffic,
    interference: Interference,
    paces: FloatArray,
    *,
    delay: Delay | None = None,
    closings: Sequence[Sequence[Closing]] = (),
) -> Iterator[tuple[OfRank, ...]]:
    """Play the first iterations of a training whose ranks differ; yield those of each rank.

    As :func:`play_several` does it, collectives beginning with the slowest rank.

    Args:
        workload: what is computed, at a pace of 1.
        traffic: the messages.
        interference: what overlap costs.
        paces: the pace of each rank (row) in each iteration (column).
        delay: when weights are pulled every so many iterations.
        closings: of each iteration, what ends it, one after the other.
    """
    count = paces.shape[1]
    played = program(workload, traffic, count, pulls_first=False, delay=delay, closings=closings)
    # What closes an iteration is no computation, and has the pace of any.
    stops = [layout.pieces.stop for layout in played.layouts]
    numbers = np.searchsorted(stops, np.arange(len(played.pieces)), "right")
    of_piece = np.minimum(numbers, count - 1)
    runs = run_ranks(played.pieces, played.collectives, interference, paces[:, of_piece])
    for rank in range(len(paces)):
        own = runs.of(rank)
        yield tuple(_of_rank(played, own, at, paces[rank, at]) for at in range(count))


def _of_rank(of: Program, result: Run, index: int, pace: float) -> OfRank:
    layout = of.layouts[index]
    first, update = layout.pieces[0], layout.pieces[-1]
    origin_s = result.finishes_s[first - 1] if first else 0.0
    played = of.iteration(result, layout)
    played = replace(
        played,
        compute_s=played.compute_s * pace,
        update_s=result.finishes_s[update] - result.begins_s[update],
    )
    closings = (
        tuple((result.starts_s[at] - origin_s, result.ends_s[at] - origin_s) for at in places)
        for places in of.closings[index]
    )
    return OfRank(origin_s, played, tuple(closings))


def run_ranks(
    pieces: Sequence[Piece],
    collectives: Sequence[Collective],
    interference: Interference,
    paces: FloatArray,
) -> Runs:
    """Run the computation of several ranks beside their collectives.

    Args:
        pieces: computation, the same on all ranks.
        collectives: in launch order per channel; each begins when the last rank has come to it.
        interference: see [Note: interference] in ``iteration.py``. A rank is slowed while a
            collective is under way, and a collective while any rank computes.
        paces: of each rank (row) in each piece (column).
    """
    ranks = _Ranks(pieces, paces)
    machine = Machine(ranks, collectives, interference)
    ranks.ends_s = machine.ends
    machine.play()
    assert ranks.index == len(pieces), "a piece waits for what can never start"
    anchors = np.array(ranks.anchors)
    ends_s = np.array(machine.ends)
    return Runs(
        arrives_s=_arrivals(collectives, ranks, anchors, ends_s),
        ends_s=ends_s,
        begins_s=ranks.begins_s,
        finishes_s=ranks.finishes_s,
        paces=paces,
        anchors=anchors,
    )


class _Ranks:
    """The threads that compute, one of each rank; see :class:`~...fluid.Computation`."""

    def __init__(self, pieces: Sequence[Piece], paces: FloatArray) -> None:
        ranks = len(paces)
        self.pieces, self.paces = pieces, paces
        self.lasts = paces * np.array([piece.duration_s for piece in pieces])
        self.at = np.zeros(ranks, np.int64)
        self.waits = np.ones(ranks, bool)
        self.free_s = np.zeros(ranks)  # when the piece before was done
        self.end = np.zeros(ranks)  # on the clock of progress, of the present piece
        self.begins = np.zeros(paces.shape)  # on the clock of progress
        self.begins_s, self.finishes_s = np.zeros(paces.shape), np.zeros(paces.shape)
        self.anchors = [(0.0, 0.0, 1.0)]
        self.reached = 0.0
        self.ends_s: Sequence[float] = ()

    @property
    def index(self) -> int:
        return int(self.at.min())

    @property
    def _computing(self) -> NDArray[np.bool_]:
        return ~self.waits & (self.at < len(self.pieces))

    @property
    def runs(self) -> bool:
        return bool(self._computing.any())

    @property
    def next_s(self) -> float:
        computing = self._computing
        if not computing.any():
            return math.inf
        last = computing & (self.at == self.at.min())
        # When no rank computes any more, and when the last rank has left its piece.
        event = self._time(self.end[computing].max())
        return min(event, self._time(self.end[last].max())) if last.any() else event

    def advance(self, now: float, ended: Sequence[bool]) -> bool:
        advanced = False
        while True:
            done = np.flatnonzero(self._computing)
            if len(done):
                ends_s = self._times(self.end[done])
                over = ends_s <= now
                done, ends_s = done[over], ends_s[over]
                self.finishes_s[done, self.at[done]] = self.free_s[done] = ends_s
                self.at[done] += 1
                self.waits[done] = True
            begun = self._begin(now, ended)
            advanced |= begun or len(done) > 0
            if not begun and not len(done):
                return advanced

    def _begin(self, now: float, ended: Sequence[bool]) -> bool:
        begun = False
        waiting = self.waits & (self.at < len(self.pieces))
        for place in np.unique(self.at[waiting]).tolist():
            after = self.pieces[place].after
            if not all(ended[index] for index in after):
                continue
            gate_s = max((self.ends_s[index] for index in after), default=0.0)
            mine = np.flatnonzero(waiting & (self.at == place))
            at_s = np.maximum(self.free_s[mine], gate_s)
            since_s, progress, rate = self.anchors[-1]
            # What went on without a wait goes on to the last bit.
            clock = np.where(
                (place > 0) & (at_s <= self.free_s[mine]),
                self.end[mine],
                progress + (at_s - since_s) * rate,
            )
            self.begins_s[mine, place], self.begins[mine, place] = at_s, clock
            self.end[mine] = clock + self.lasts[mine, place]
            self.waits[mine] = False
            begun = True
        return begun

    def when(self, collective: Collective) -> float:
        place = collective.piece
        if (self.at < place).any():
            return math.inf
        here = self.at == place
        if not here.any():
            return -math.inf
        if self.waits[here].any():
            return math.inf
        return self._time(self._ready(collective, here))

    def _ready(self, collective: Collective, here: NDArray[np.bool_]) -> float:
        place = collective.piece
        paced = self.begins[here, place] + self.paces[here, place] * collective.ready_s
        return float(paced.max())

    def reach(self, collective: Collective) -> None:
        if (here := self.at == collective.piece).any():
            self.reached = max(self.reached, self._ready(collective, here))

    def set_rate(self, now: float, rate: float) -> None:
        since_s, progress, before = self.anchors[-1]
        if rate != before:
            # What is known to be done is not undone by rounding, as in ``fluid.py``.
            done = max(progress + (now - since_s) * before, self.reached)
            self.anchors.append((now, done, rate))

    def _time(self, clock: float) -> float:
        since_s, progress, rate = self.anchors[-1]
        if clock <= progress:
            return since_s
        return since_s + (clock - progress) / rate if rate > 0 else math.inf

    def _times(self, clock: FloatArray) -> FloatArray:
        since_s, progress, rate = self.anchors[-1]
        ahead = np.maximum(clock - progress, 0.0)
        if rate > 0:
            return np.asarray(since_s + ahead / rate)
        return np.where(ahead > 0, math.inf, since_s)


def _clock(anchors: FloatArray, at_s: FloatArray) -> FloatArray:
    """Return how far the clock of progress was at some times."""
    place = np.maximum(np.searchsorted(anchors[:, 0], at_s, "right") - 1, 0)
    since_s, progress, rate = anchors[place].T
    return np.asarray(progress + (at_s - since_s) * rate)


def _times(anchors: FloatArray, clock: FloatArray) -> FloatArray:
    """Return when the clock of progress first was as far."""
    place = np.maximum(np.searchsorted(anchors[:, 1], clock, "left") - 1, 0)
    since_s, progress, rate = anchors[place].T
    ahead = np.maximum(clock - progress, 0.0)
    return np.asarray(since_s + np.where(ahead > 0, ahead / np.where(rate > 0, rate, 1.0), 0.0))


def _arrivals(
    collectives: Sequence[Collective], ranks: _Ranks, anchors: FloatArray, ends_s: FloatArray
) -> FloatArray:
    """Return when each rank came to each collective, its channel free."""
    found = np.zeros((len(ranks.at), len(collectives)))
    before: dict[int, int] = {}
    for index, one in enumerate(collectives):
        if one.piece >= 0:
            into_s = min(one.ready_s, ranks.pieces[one.piece].duration_s)
            own = ranks.begins[:, one.piece] + ranks.paces[:, one.piece] * into_s
            found[:, index] = _times(anchors, own)
        waits = [*one.after, *([before[one.channel]] if one.channel in before else [])]
        for other in waits:
            np.maximum(found[:, index], ends_s[other], out=found[:, index])
        np.minimum(found[:, index], ends_s[index], out=found[:, index])
        before[one.channel] = index
    return found
