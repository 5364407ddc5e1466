"""Causes: what an iteration would gain, were some things about it different.

Every cause is a counterfactual (:mod:`syncopate.analysis.replay`): the recorded iterations are
played again with it removed, and what that saves is the answer.

    compute         a rank computes no longer than the others, in the median
    input           nobody waits for input as long as all do; of one rank: no longer than the others
    pause           no iteration of a rank takes unusually long, by the rank's own median
    (by name)       a recorded pause did not happen
    batches         in each iteration all ranks have as much to compute as they have in the mean
    link            the hosts whose links are slow by what the kernels counted have links like the
                    others; or, where nothing was counted, a rank whose messages usually end later
                    after the last arrival than those of the others has them when the others have
    congestion      no iteration has transfers 1.5 times as long as usual
    slow server     a server has a worker's slices there when the others, in their median, have as
                    many bytes (:mod:`syncopate.analysis.evidence.servers`)
    transfers       what is left of transfers takes no time: the most that any plan can give
    server          the same of messages to and from parameter servers, their work included

[Note: several causes] Causes hide each other: of two ranks that are late by as much, to mend one
gains nothing. So each is removed alone, and last, when all others are gone; what it gains of what
all gain together is the mean of the two, scaled so that the causes add up. Of two that hide each
other each has half. Ranks of one kind are causes of their own where, with all else mended, one of
them gives most of what all of them give; otherwise they are one cause, of those that matter.

Nobody is blamed for what differs from iteration to iteration by itself
(:mod:`syncopate.analysis.evidence.noise`): a rank is slow by more than the error of the mean,
and pauses without a recorded reason are some rank's own or everybody's at once. What they cost
where they are anywhere is said apart, as noise.

[Note: self-check] Nothing is explained where the recorded iterations, played again without a
change, do not last as long as they did; where ranks wait for each other much longer than causes
and noise explain; or where more idle time is left without a cause than the causes explain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.counterfactuals import (
    WORTH,
    Changed,
    Counterfactuals,
    SlowLinks,
    free,
)
from syncopate.analysis.evidence.links import conclusive, recorded, slow_links
from syncopate.analysis.evidence.noise import interval_s
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.exposure import exposures
from syncopate.analysis.replay import Replay
from syncopate.analysis.stragglers import COMPUTE, LINK, PAUSE, SERVER
from syncopate.analysis.trips import Trip
from syncopate.analysis.work import INPUT, SEVERAL, whole
from syncopate.cluster import Cluster
from syncopate.plan import SERVED
from syncopate.spans import Spans, Times, coded
from syncopate.timeline import PAUSES, Timeline

BATCHES, CONGESTION, TRANSFERS, PLAN = "batches", "congestion", "transfers", "plan"
SLOW_SERVER = "slow server"
"""Kinds of causes beside those of a straggler."""

TRUSTED = 0.1
"""A replay that is further from the recorded iteration than this part explains nothing; nor one
with more idle time than this that no cause explains."""

_EXPLAINED = 1 / 3
"""Causes and noise explain at least this part of what ranks wait for each other."""

_TIMES = {PAUSE: 2.0}
"""Kinds of which this many times :data:`WORTH` has to be at stake: any rank pauses once."""

_SHARED = (BATCHES, CONGESTION, TRANSFERS, SERVER, INPUT)
"""Kinds that blame no rank."""

_MANY = 50
"""Iterations whose medians tell what is usual on machines that others use."""

_ALONE, _TRIED = 0.8, 16
"""A rank is a cause by itself with this part of the gain of all; as many are tried one by one."""


@dataclass(frozen=True)
class Cause:
    """One thing that costs time.

    Attributes:
        kind: see the module.
        ranks: whose; empty for all. Of a slow server, its rank among servers.
        gain_s: what an iteration would be shorter by without it: its part of what all causes gain
            together. [Note: several causes]
        iterations: where it happened once; empty where it is usual.
        lane: of a rank that computes longer, where most of that is; of a slow server, the stage of
            :data:`~syncopate.analysis.trips.STAGES`.
        own: how many seconds it usually computes there in an iteration, or a slice is in that
            stage; of a slow link, how many bytes per second it carries; of batches, by which part
            of them they usually differ. 0: not known.
        others: the same of the median of the others; of links, what is expected of them.
        alone_s: what an iteration would be shorter by without it, all other causes left.
        low_s: the 95% interval of ``gain_s``, by how iterations vary; from here
        high_s: to here.
    """

    kind: str
    ranks: tuple[int, ...]
    gain_s: float
    iterations: tuple[int, ...] = ()
    lane: str = ""
    own: float = 0.0
    others: float = 0.0
    alone_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0


@dataclass(frozen=True)
class Explanation:
    """Why iterations take as long as they do.

    Attributes:
        iterations: how many were looked at.
        iteration_s: how long one took, in the mean.
        replayed_s: how long it takes when played again without a change.
        even_s: with all causes removed but transfers: what plans can be compared with.
        bound_s: with all causes removed: what computing alone takes.
        compute_s: what the median rank computes, in the median over iterations.
        causes: those worth a word, the greatest gain first.
        abstains: why nothing is explained, and what to record; empty where it is.
        noise_s: what an iteration would be shorter by without pauses that nobody can be blamed for.
        between: the first and the last iteration that all ranks recorded, one behind the other,
            where there are others; None: all are whole.
        pull_period: from one pull of the same weights to the next, in iterations, as in most
            iterations: a short warm-up counts little; 1 also where nothing is pulled twice.
        together_s: what an iteration would be shorter by without all of the causes but transfers.
        left_s: idle time of an iteration that is left without them and without transfers.
    """

    iterations: int
    iteration_s: float
    replayed_s: float
    even_s: float
    bound_s: float
    compute_s: float
    causes: tuple[Cause, ...]
    abstains: tuple[str, ...]
    noise_s: float = 0.0
    between: tuple[int, int] | None = None
    pull_period: int = 1
    together_s: float = 0.0
    left_s: float = 0.0

    @property
    def error(self) -> float:
        """By how much the replay is off, relative to the recorded iteration."""
        return abs(self.replayed_s / self.iteration_s - 1) if self.iteration_s > 0 else 0.0

    @property
    def of_bound(self) -> float:
        """The bound relative to the iteration, in [0, 1]."""
        return min(self.bound_s / self.iteration_s, 1.0) if self.iteration_s > 0 else 1.0


def explanation(
    timeline: Timeline, cluster: Cluster | None = None, trips: Sequence[Trip] = ()
) -> Explanation:
    """Return what iterations lose time to, by counterfactual replay.

    Args:
        timeline: measured or simulated.
        cluster: what links are judged by, where it is known; by each other otherwise.
        trips: of slices to parameter servers and back, by the clock of the timeline.

    Raises:
        InvalidValueError: nothing was computed, or times contradict each other.
    """
    timeline, between = whole(timeline)
    replay = Replay(timeline)
    recorded_s = replay.recorded_s
    slow = _slow_hosts(timeline, cluster)
    trial = _Trial(replay, Counterfactuals(replay, slow, Servers(trips, replay)))
    lacks = tuple(_lacks(timeline, replay, trial.played_s, recorded_s))
    causes = () if lacks else trial.causes()
    noise_s = trial.noise_s()
    if not lacks and noise_s > TRUSTED * recorded_s and all(c.kind in _SHARED for c in causes):
        lacks = (_noisy(noise_s / recorded_s, len(replay.iterations)),)
    gained_s = sum(cause.gain_s for cause in causes if cause.kind not in (TRANSFERS, SERVER))
    lacks = lacks or tuple(_contradicted(replay, gained_s, noise_s, trial.left_s))
    causes = () if lacks else causes
    return Explanation(
        iterations=len(replay.iterations),
        iteration_s=recorded_s,
        replayed_s=trial.played_s,
        even_s=trial.even_s,
        bound_s=trial.bound_s,
        compute_s=trial.computing_s,
        causes=causes,
        abstains=lacks,
        noise_s=noise_s,
        between=between,
        pull_period=_pull_period(timeline.columns),
        together_s=gained_s if causes else 0.0,
        left_s=trial.left_s,
    )


def _contradicted(replay: Replay, gained_s: float, noise_s: float, left_s: float) -> Iterator[str]:
    """Yield what the causes leave open, by [Note: self-check]."""
    limit_s = TRUSTED * replay.recorded_s
    found = exposures(replay.timeline)
    counted = np.isin(found.spans.iteration, replay.iterations)
    turns = len(replay.iterations) * replay.timeline.world_size
    waited_s = float(found.waiting_s[counted].sum()) / turns
    if waited_s > limit_s and gained_s + noise_s < _EXPLAINED * waited_s:
        yield (
            f"ranks wait {waited_s / replay.recorded_s:.0%} of an iteration for each other, and "
            f"the causes found explain {(gained_s + noise_s) / replay.recorded_s:.0%}: the clocks "
            "of ranks differ, or what they do meanwhile is not recorded"
        )
    if left_s > max(limit_s, gained_s):
        yield (
            f"{left_s / replay.recorded_s:.0%} of an iteration is idle on the ranks that others "
            "wait for, and nothing recorded says why: record all that they compute, or name what "
            "they do with syncopate.pause"
        )


def _pull_period(spans: Spans) -> int:
    pulls = spans.take(spans.in_lanes("pull"))
    whose = coded([pulls.name, pulls.rank])
    order = np.lexsort((pulls.iteration, whose))
    apart = np.diff(pulls.iteration[order])[np.diff(whose[order]) == 0]
    apart = apart[apart > 0]
    # Each iteration counts, not each pull: in a warm-up there are many.
    return int(np.median(np.repeat(apart, apart))) if len(apart) else 1


def _noisy(share: float, count: int) -> str:
    return (
        f"{share:.0%} of an iteration goes to pauses now on one rank and now on another, without a "
        "recorded reason: see what else runs on these machines (`top`), and record again without "
        f"it; where it cannot be stopped, record {max(_MANY, 4 * count)} iterations: a rank or a "
        "link that is always slow stands out from pauses then"
    )


def _slow_hosts(timeline: Timeline, cluster: Cluster | None) -> SlowLinks:
    """Return the ranks whose links are slow by what the kernels counted."""
    links, hosts = recorded(timeline)
    if cluster is not None and cluster.world_size != len(hosts):
        cluster = None
    found = slow_links(links, hosts, cluster) if conclusive(links) else None
    if found is None or not found.hosts:
        return SlowLinks()
    rate = sum(link.nbytes for link in found.links) / sum(link.busy_s for link in found.links)
    ranks = tuple(rank for rank, host in sorted(hosts.items()) if host in found.hosts)
    return SlowLinks(ranks, rate, max(found.expected_bytes_per_s, rate))


def _lacks(timeline: Timeline, replay: Replay, played_s: float, recorded_s: float) -> Iterable[str]:
    """Yield what the evidence lacks."""
    count = len(replay.iterations)
    if timeline.source == "measured" and count < SEVERAL:
        yield (
            f"{count} iterations do not tell what is usual from what happened once: "
            f"record at least {SEVERAL + 1}, of which the first does not count"
        )
    there = set(np.unique(timeline.columns.rank).tolist())
    if missing := [str(rank) for rank in range(timeline.world_size) if rank not in there]:
        yield f"nothing is recorded of ranks {', '.join(missing)}: record all ranks"
    if timeline.world_size > 1 and not replay.messages:
        yield "no push or pull is recorded: record a training that exchanges gradients"
    elif timeline.world_size > 1 and (silent := sorted(there - set(replay.parts.rank.tolist()))):
        ranks = ", ".join(map(str, silent))
        yield f"no push or pull is recorded of ranks {ranks}: what they waited for is not known"
    if replay.clocks_differ_s > TRUSTED * recorded_s:
        yield (
            "collectives are over on some ranks before others begin them: their clocks differ by "
            f"{replay.clocks_differ_s / recorded_s:.0%} of an iteration at least; compare the "
            "clocks of the hosts, or record by `syncopate.trace`, which does"
        )
    if abs(played_s - recorded_s) > TRUSTED * recorded_s:
        yield (
            f"played again without a change, an iteration takes {played_s / recorded_s:.2f}x as "
            "long as recorded: computation of a rank overlaps itself, or a clock jumped; record "
            "one training of one model"
        )


class _Part(NamedTuple):
    """Something that can be removed.

    Attributes:
        kind: of cause that it is, or is a part of.
        ranks: whose; empty: of all.
        change: removes it.
    """

    kind: str
    ranks: tuple[int, ...]
    change: Callable[[Changed], object]


class _Trial:
    """Tries what an iteration would take without causes, by [Note: several causes].

    Args:
        replay: of a timeline.
        without: the changes.

    Attributes:
        played_s: what an iteration takes.
        even_s: the same with all removed but transfers.
        bound_s: also without these.
        left_s: what of that is idle.
        computing_s: what the median rank computes.
    """

    def __init__(self, replay: Replay, without: Counterfactuals) -> None:
        self._replay, self._without = replay, without
        self.computing_s = without.computing_s
        self._parts = list(self._found())
        noise = [
            _Part(PAUSE, (rank,), partial(without.as_usual, rank=rank))
            for rank in without.ranks
            if without.unusual(rank)
        ]
        named = {one.ranks for one in self._parts if one.kind == PAUSE}
        self._noise = [one for one in noise if one.ranks not in named]
        self._flow = _Part(CONGESTION, (), without.flowing)
        all_but = [*self._noise, *self._parts, self._flow]
        freed = _Part(TRANSFERS, (), free)
        self._rows = self._lasting([(), all_but, (*all_but, freed), (freed,)])
        idle = without.durations(self._changed((*all_but, freed)), gaps=False)
        played_s, even_s, bound_s, self._freed_s = self._rows.mean(axis=1).tolist()
        # Where ranks hardly wait for each other, an earlier begin alone can make the mean longer.
        self.played_s, self.even_s = played_s, min(even_s, played_s)
        self.bound_s = min(bound_s, self.even_s)
        self.left_s = max(self.bound_s - replay.iteration_s(idle), 0.0)

    def _found(self) -> Iterator[_Part]:
        """Yield what differs, in the order in which it is removed."""
        without = self._without
        if without.uneven:
            yield _Part(BATCHES, (), without.balanced)
        for rank in without.pausing or ():
            yield _Part(PAUSE, (rank,), partial(without.as_usual, rank=rank))
        for at in sorted(without.slower):
            rank = without.ranks[at]
            yield _Part(COMPUTE, (rank,), partial(without.as_fast, rank=rank))
        for at in without.starved:
            rank = without.ranks[at]
            yield _Part(INPUT, (rank,), partial(without.like_others, rank=rank))
        yield _Part(INPUT, (), without.without_input)
        for name in PAUSES:
            for rank in without.ranks if name != INPUT else ():
                if without.paused(rank, name):
                    yield _Part(name, (rank,), partial(without.without_pause, rank=rank, name=name))
        for server in without.servers.slow:
            yield _Part(SLOW_SERVER, (server,), partial(without.with_good_server, server=server))
        if without.slow.ranks:
            yield _Part(LINK, without.slow.ranks, without.with_good_links)
        else:
            for rank in without.linked:
                yield _Part(LINK, (rank,), partial(without.on_time, rank=rank))
        if without.pausing is not None:  # else it is noise, and the network has its part
            yield _Part(CONGESTION, (), without.flowing)

    def causes(self) -> tuple[Cause, ...]:
        """Return the causes that are worth a word, the greatest gain first."""
        clocks_s = float(self._replay.timeline.metadata.get("clock_error_s", 0.0))
        least_s = max(WORTH * self.played_s, clocks_s)
        groups = self._groups()
        while True:
            found = self._shared_out(groups)
            kept = [
                group
                for group, cause in zip(groups, found, strict=True)
                if cause.gain_s > least_s * _TIMES.get(cause.kind, 1.0)
                and (cause.kind != BATCHES or cause.low_s > 0)
            ]
            if len(kept) == len(groups):
                break
            groups = kept
        transfers = self._transfers()
        found += [transfers] if transfers.gain_s > least_s else []
        return tuple(sorted(found, key=lambda cause: -cause.gain_s))

    def noise_s(self) -> float:
        """Return the gain without pauses and congestion that come and go on any rank."""
        if self._without.pausing is not None:
            return 0.0
        lasting_s = self._lasting([(*self._noise, self._flow)])
        return float(self.played_s - lasting_s.mean())

    def _changed(self, removed: Iterable[_Part]) -> Changed:
        changed = self._without.begin()
        for one in removed:
            one.change(changed)
        return changed

    def _lasting(self, several: Iterable[Iterable[_Part]]) -> Times:
        """Return how long iterations take without some things; a row for each."""
        return self._replay.lasting_s(
            self._without.durations(self._changed(removed)) for removed in several
        )

    def _but(self, left: Sequence[_Part], of: Sequence[_Part]) -> list[_Part]:
        there = set(map(id, left))
        return [one for one in of if id(one) not in there]

    def _groups(self) -> list[tuple[_Part, ...]]:
        """Return what is one cause each: ranks by themselves, or those of one kind together."""
        kinds: dict[tuple[str, bool, str], list[_Part]] = defaultdict(list)
        for one in self._parts:
            lane = self._without.longest(one.ranks[0])[0] if one.kind == COMPUTE else ""
            kinds[one.kind, bool(one.ranks), lane].append(one)
        found: list[tuple[_Part, ...]] = []
        (all_s,) = self._lasting([self._parts]).mean(axis=1).tolist()
        for same in kinds.values():
            if len(same) == 1 or len(same) > _TRIED:
                found.append(tuple(same))
                continue
            rest = self._but(same, self._parts)
            rows = [rest]
            rows += [self._but(self._but([one], same), self._parts) for one in same]
            rows += [self._but([one], self._parts) for one in same]
            none_s, *others_s = self._lasting(rows).mean(axis=1).tolist()
            alone_s, last_s = others_s[: len(same)], others_s[len(same) :]
            if max(none_s - one_s for one_s in alone_s) >= _ALONE * (none_s - all_s):
                found += [(one,) for one in same]
                continue
            least_s = WORTH / 2 * self.played_s
            matter = [one for one, s in zip(same, last_s, strict=True) if s - all_s >= least_s]
            found.append(tuple(matter or same))
        return found

    def _shared_out(self, groups: Sequence[tuple[_Part, ...]]) -> list[Cause]:
        """Return causes with their parts of what they gain together."""
        if not groups:
            return []
        every = [one for one in self._parts if any(one in group for group in groups)]
        rows = [every, *groups, *(self._but(group, every) for group in groups)]
        lasting_s = self._lasting(rows)
        none_s, all_s = self._rows[0], lasting_s[0]
        alone_s = none_s - lasting_s[1 : 1 + len(groups)]
        last_s = lasting_s[1 + len(groups) :] - all_s
        both_s = (alone_s + last_s) / 2
        sums_s = np.maximum(both_s.mean(axis=1), 0.0)
        together_s = max(float((none_s - all_s).mean()), 0.0)
        scale = together_s / float(sums_s.sum()) if sums_s.sum() > 0 else 0.0
        found = []
        for group, each_s, gain_s, by_itself_s in zip(
            groups, both_s * scale, sums_s * scale, alone_s.mean(axis=1), strict=True
        ):
            low_s, high_s = interval_s(each_s.tolist())
            cause = self._cause(group, float(gain_s))
            found.append(replace(cause, alone_s=float(by_itself_s), low_s=low_s, high_s=high_s))
        return found

    def _transfers(self) -> Cause:
        served = self._replay.timeline.metadata.get(EXCHANGE) == SERVED
        low_s, high_s = interval_s((self._rows[1] - self._rows[2]).tolist())
        return Cause(
            SERVER if served else TRANSFERS,
            (),
            self.even_s - self.bound_s,
            alone_s=self.played_s - self._freed_s,
            low_s=low_s,
            high_s=high_s,
        )

    def _cause(self, group: Sequence[_Part], gain_s: float) -> Cause:
        """Return a cause with what is known of it."""
        kind, without = group[0].kind, self._without
        ranks = tuple(rank for one in group for rank in one.ranks)
        where: set[int] = set()
        figures: tuple[str, float, float] = ("", 0.0, 0.0)
        if kind == PAUSE:
            where = {i for rank in ranks for i, _ in without.unusual(rank)}
        elif kind in PAUSES and kind != INPUT:
            where = {i for rank in ranks for i in without.paused(rank, kind)}
        elif kind == CONGESTION:
            where = set(without.flowing(without.begin()))
        elif kind == BATCHES:
            figures = ("", without.apart, 0.0)
        elif kind == COMPUTE:
            figures = max(map(without.longest, ranks), key=lambda row: row[1] - row[2])
        elif kind == SLOW_SERVER:
            figures = without.servers.stage(ranks[0])
        elif kind == LINK and without.slow.ranks:
            figures = ("", without.slow.bytes_per_s, without.slow.expected_bytes_per_s)
        return Cause(kind, ranks, gain_s, tuple(sorted(where)), *figures)
