"""Causes: what an iteration would gain, were one thing about it different.

Every cause is a counterfactual (:mod:`syncopate.analysis.replay`): the recorded iterations are
played again with it removed, and what that saves is the answer.

    compute         a rank computes as fast as the median of the other ranks
    input           nobody waits for input; of one rank: no longer than the median of the others
    pause           no iteration of a rank takes unusually long, by the rank's own median
    (by name)       a recorded pause did not happen
    link            the hosts whose links are slow by what the kernels counted have links like the
                    others; or, where nothing was counted, a rank whose messages usually end later
                    after the last arrival than those of the others has them when the others have
    congestion      no iteration has transfers 1.5 times as long as usual
    transfers       other transfers than these take no time: the most that any plan can give
    server          the same of messages to and from parameter servers, their work included
    slow server     a server has a worker's slices there when the others, in their median, have as
                    many bytes (:mod:`syncopate.analysis.evidence.servers`)

Where several ranks are slow, to mend one of them alone gains little; then they are one cause.

Nobody is blamed for what differs from iteration to iteration by itself
(:mod:`syncopate.analysis.evidence.noise`): a rank is slow by more than the error of the medians,
and pauses without a recorded reason are some rank's own or everybody's at once. What they cost
where they are anywhere is said apart, as noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.counterfactuals import WORTH, Counterfactuals, SlowLinks, free
from syncopate.analysis.evidence.links import conclusive, recorded, slow_links
from syncopate.analysis.evidence.noise import exceeds
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.replay import Durations, Replay
from syncopate.analysis.stragglers import COMPUTE, LINK, PAUSE, SERVER
from syncopate.analysis.trips import Trip
from syncopate.analysis.work import INPUT, SEVERAL, whole
from syncopate.cluster import Cluster
from syncopate.plan import SERVED
from syncopate.spans import Spans, coded
from syncopate.timeline import PAUSES, Timeline

CONGESTION, TRANSFERS, PLAN = "congestion", "transfers", "plan"
SLOW_SERVER = "slow server"
"""Kinds of causes beside those of a straggler."""

TRUSTED = 0.1
"""A replay that is further from the recorded iteration than this part explains nothing."""

_TIMES = {PAUSE: 2.0}
"""Kinds of which this many times :data:`WORTH` has to be at stake: any rank pauses once."""

_SHARED = (CONGESTION, TRANSFERS, SERVER, INPUT)
"""Kinds that blame no rank."""

_MANY = 50
"""Iterations whose medians tell what is usual on machines that others use."""

_ALONE, _MOST = 0.8, 8
"""A rank is a cause by itself with this part of the gain of all; as many are tried."""


@dataclass(frozen=True)
class Cause:
    """One thing that costs time.

    Attributes:
        kind: see the module.
        ranks: whose; empty for all. Of a slow server, its rank among servers.
        gain_s: what an iteration would be shorter by without it.
        iterations: where it happened once; empty where it is usual.
        lane: of a rank that computes longer, where most of that is; of a slow server, the stage of
            :data:`~syncopate.analysis.trips.STAGES`.
        own: how many seconds it usually computes there in an iteration, or a slice is in that
            stage; of a slow link, how many bytes per second it carries. 0: not known.
        others: the same of the median of the others; of links, what is expected of them.
    """

    kind: str
    ranks: tuple[int, ...]
    gain_s: float
    iterations: tuple[int, ...] = ()
    lane: str = ""
    own: float = 0.0
    others: float = 0.0


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
    played_s, recorded_s = replay.iteration_s(), replay.recorded_s
    lacks = tuple(_lacks(timeline, replay, played_s, recorded_s))
    slow = _slow_hosts(timeline, cluster)
    counterfactuals = Counterfactuals(replay, slow, Servers(trips, replay))
    trial = _Trial(replay, counterfactuals)
    # Where ranks hardly wait for each other, an earlier begin alone can make the mean longer.
    even_s = min(replay.iteration_s(counterfactuals.even()), played_s)
    bound_s = min(replay.iteration_s(counterfactuals.even(transfers=False)), even_s)
    computing = [counterfactuals.usual_s(rank) for rank in counterfactuals.ranks]
    least_s = max(WORTH * played_s, float(timeline.metadata.get("clock_error_s", 0.0)))
    causes = [] if lacks else trial.causes(played_s)
    causes = [one for one in causes if one.gain_s > least_s * _TIMES.get(one.kind, 1.0)]
    noise_s = trial.noise_s(played_s)
    if not lacks and noise_s > TRUSTED * recorded_s and all(c.kind in _SHARED for c in causes):
        lacks, causes = (_noisy(noise_s / recorded_s, len(replay.iterations)),), []
    return Explanation(
        iterations=len(replay.iterations),
        iteration_s=recorded_s,
        replayed_s=played_s,
        even_s=even_s,
        bound_s=bound_s,
        compute_s=statistics.median(computing),
        causes=tuple(sorted(causes, key=lambda cause: -cause.gain_s)),
        abstains=lacks,
        noise_s=noise_s,
        between=between,
        pull_period=_pull_period(timeline.columns),
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
    there = {span.rank for span in timeline.spans}
    if missing := [str(rank) for rank in range(timeline.world_size) if rank not in there]:
        yield f"nothing is recorded of ranks {', '.join(missing)}: record all ranks"
    if timeline.world_size > 1 and not replay.messages:
        yield "no push or pull is recorded: record a training that exchanges gradients"
    if abs(played_s - recorded_s) > TRUSTED * recorded_s:
        yield (
            f"played again without a change, an iteration takes {played_s / recorded_s:.2f}x as "
            "long as recorded: computation of a rank overlaps itself, or a clock jumped; record "
            "one training of one model"
        )


_Change = Callable[[Durations, int], None]
"""Changes durations for one rank."""


class _Trial:
    """Tries what an iteration would take without each cause.

    Args:
        replay: of a timeline.
        without: the changes.
    """

    def __init__(self, replay: Replay, without: Counterfactuals) -> None:
        self._replay, self._without = replay, without

    def causes(self, played_s: float) -> list[Cause]:
        """Return every cause with its gain; an iteration takes ``played_s`` now."""
        found: list[Cause] = []
        others = {r: [o for o in self._without.ranks if o != r] for r in self._without.ranks}
        slow = [
            r
            for r in self._without.ranks
            if others[r]
            and self._without.usual_s(r)
            > (1 + WORTH / 2) * statistics.median(map(self._without.usual_s, others[r]))
            and exceeds(self._without.computing(r), map(self._without.computing, others[r]))
        ]
        found += self._of_ranks(COMPUTE, slow, self._without.as_fast, played_s)
        found += self._of_input(played_s)
        for name in PAUSES:
            if name != INPUT:
                had = [r for r in self._without.ranks if self._without.paused(r, name)]

                def removed(durations: Durations, rank: int, name: str = name) -> None:
                    self._without.without_pause(durations, rank, name)

                found += self._of_ranks(name, had, removed, played_s)
        found += self._of_ranks(
            PAUSE, self._without.pausing_ranks() or (), self._without.as_usual, played_s
        )
        if (slow_links := self._without.slow).ranks:
            changed = self._replay.recorded.copy()
            self._without.with_good_links(changed)
            rates = slow_links.bytes_per_s, slow_links.expected_bytes_per_s
            gain_s = self._gain_s(changed, played_s)
            found.append(Cause(LINK, slow_links.ranks, gain_s, (), "", *rates))
        else:
            found += self._of_ranks(LINK, self._without.linked(), self._without.on_time, played_s)
        servers = self._without.servers
        found += self._of_ranks(SLOW_SERVER, servers.slow, servers.like_others, played_s)
        changed = self._replay.recorded.copy()
        where = self._without.flowing(changed)
        if (
            self._without.pausing_ranks() is not None
        ):  # else it is noise, and the network has its part
            found.append(Cause(CONGESTION, (), self._gain_s(changed, played_s), where))
        self._without.with_good_links(changed)
        self._without.with_good_servers(changed)
        flowing_s = self._replay.iteration_s(changed)
        free(changed)
        served = self._replay.timeline.metadata.get(EXCHANGE) == SERVED
        found.append(Cause(SERVER if served else TRANSFERS, (), self._gain_s(changed, flowing_s)))
        return found

    def noise_s(self, played_s: float) -> float:
        """Return the gain without pauses and congestion that come and go on any rank."""
        if self._without.pausing_ranks() is not None:
            return 0.0
        changed = self._replay.recorded.copy()
        for rank in self._without.ranks:
            self._without.as_usual(changed, rank)
        self._without.flowing(changed)
        return self._gain_s(changed, played_s)

    def _gain_s(self, changed: Durations, played_s: float) -> float:
        return played_s - self._replay.iteration_s(changed)

    def _of_ranks(
        self, kind: str, ranks: Sequence[int], change: _Change, played_s: float
    ) -> list[Cause]:
        """Return a cause of each of some ranks, or one of all of them where one alone is not."""
        together = self._replay.recorded.copy()
        for rank in ranks:
            change(together, rank)
        whole_s = self._gain_s(together, played_s) if ranks else 0.0
        if whole_s <= 0:
            return []
        alone = []
        # The slowest are tried by themselves, not all of a thousand.
        for rank in sorted(ranks, key=lambda rank: -self._without.usual_s(rank))[:_MOST]:
            changed = self._replay.recorded.copy()
            change(changed, rank)
            alone.append(self._cause(kind, (rank,), self._gain_s(changed, played_s)))
        if max(cause.gain_s for cause in alone) >= _ALONE * whole_s:
            return alone
        return [self._cause(kind, tuple(ranks), whole_s)]

    def _cause(self, kind: str, ranks: tuple[int, ...], gain_s: float) -> Cause:
        where: tuple[int, ...] = ()
        if kind == PAUSE:
            where = tuple(sorted({i for rank in ranks for i, _ in self._without.unusual(rank)}))
        elif kind in PAUSES and kind != INPUT:
            where = tuple(sorted({i for rank in ranks for i in self._without.paused(rank, kind)}))
        elif kind == COMPUTE:
            return Cause(kind, ranks, gain_s, where, *self._without.longest(ranks[0]))
        elif kind == SLOW_SERVER:
            return Cause(kind, ranks, gain_s, where, *self._without.servers.stage(ranks[0]))
        return Cause(kind, ranks, gain_s, where)

    def _of_input(self, played_s: float) -> list[Cause]:
        nobody = self._replay.recorded.copy()
        for rank in self._without.ranks:
            self._without.without_input(nobody, rank)
        whole = Cause(INPUT, (), self._gain_s(nobody, played_s))
        late = self._of_ranks(INPUT, list(self._without.ranks), self._without.like_others, played_s)
        best_s = max((cause.gain_s for cause in late), default=0.0)
        return late if best_s >= _ALONE * whole.gain_s else [whole]
