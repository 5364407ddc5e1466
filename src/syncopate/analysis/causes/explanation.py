"""Causes: what an iteration would gain if single things about it were different.

Every cause is a counterfactual (:mod:`syncopate.analysis.replay`): the recorded iterations are
played again with it removed, and what that saves is the answer.

    compute         a rank computes no longer than the others, in the median; of a pipeline, than
                    those of its stage
    input           no rank waits for input longer than the others; the wait of all is gone
    pause           no iteration of a rank takes unusually long, by the rank's own median
    (by name)       a recorded pause did not happen
    batches         in each iteration all ranks have as much to compute as they have in the mean
    link            the hosts whose links are slow by what the kernels counted have links like the
                    others; or, where nothing was counted, a rank whose messages usually end later
                    after the last arrival than those of the others has them when the others have;
                    or messages of a group take as long as those of groups like it
                    (:mod:`syncopate.analysis.evidence.groups`)
    congestion      no iteration has transfers 1.5 times as long as usual
    slow server     a server has a worker's slices there when the others, in their median, have as
                    many bytes (:mod:`syncopate.analysis.evidence.servers`)
    stages          the stages of a pipeline usually compute equally long
    pipeline        equally long stages wait for each other no longer: the most that more
                    micro-batches can give
    transfers       what is left of transfers takes no time: the most that any plan can give
    server          the same of messages to and from parameter servers, their work included

No rank is blamed for random differences between iterations
(:mod:`syncopate.analysis.evidence.noise`): a rank is slow by more than the error of the mean, and
pauses without a recorded reason belong to some ranks, or to all of them at once. Pauses on changing
ranks are noise; where that is much, and a rank is to blame beside it, it is a pause of no rank.

[Note: self-check] Nothing is explained where the recorded iterations, played again without a
change, do not last as long as they did; where ranks wait much longer than causes and noise explain
for others that are in no message themselves; or where more idle time is left without a cause than
the causes explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from syncopate.analysis.causes.counterfactuals import Counterfactuals
from syncopate.analysis.causes.trial import (
    PIPELINE,
    SLOW_SERVER,
    TRANSFERS,
    TRUSTED,
    Cause,
    Trial,
)
from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.evidence.clocks import straightened
from syncopate.analysis.evidence.links import SlowLinks, conclusive, recorded, slow_links
from syncopate.analysis.evidence.queues import in_queues
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.exposure import exposures
from syncopate.analysis.ranks.arrivals import clock_error_s
from syncopate.analysis.ranks.stragglers import PAUSE, SERVER
from syncopate.analysis.replay import Replay
from syncopate.analysis.work import SEVERAL, missing, whole
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.artifacts.timelines.spans import Spans, coded

_EXPLAINED = 1 / 3
"""Causes and noise explain at least this part of what ranks wait for each other."""

_BOUNDS = (TRANSFERS, SERVER, PIPELINE)
"""Kinds of which a gain is the most that could be, with all others gone."""

_MANY = 50
"""Iterations whose medians tell what is usual on machines that others use."""


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
        noise_s: what an iteration would be shorter by without pauses that belong to no cause.
        between: the first and the last iteration that all ranks recorded, one behind the other,
            where there are others; None: all are whole.
        pull_period: from one pull of the same weights to the next, in iterations, as in most
            iterations: a short warm-up counts little; 1 also where nothing is pulled twice.
        together_s: what an iteration would be shorter by without all of the causes but transfers
            and what a pipeline loses.
        left_s: idle time of an iteration that is left without them and without transfers.
        drifts: ranks whose clocks run faster than the median of all, and by which part; negative
            where slower. Their times count without that.
        exchange: of the training, where its timeline says it.
        sized: whether it says how many bytes messages carry.
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
    drifts: dict[int, float] = field(default_factory=dict)
    exchange: str = ""
    sized: bool = True

    @property
    def error(self) -> float:
        """By how much the replay is off, relative to the recorded iteration."""
        return abs(self.replayed_s / self.iteration_s - 1) if self.iteration_s > 0 else 0.0

    @property
    def of_bound(self) -> float:
        """The bound relative to the iteration, in [0, 1]."""
        return min(self.bound_s / self.iteration_s, 1.0) if self.iteration_s > 0 else 1.0


def explanation(
    timeline: Timeline,
    cluster: Cluster | None = None,
    trips: Sequence[RoundTrip] = (),
    ranks: Sequence[int] | None = None,
) -> Explanation:
    """Return the causes that cost iterations time, by counterfactual replay.

    Args:
        timeline: measured or simulated.
        cluster: what links are judged by, where it is known; by each other otherwise.
        trips: of slices to parameter servers and back, by the clock of the timeline.
        ranks: what its ranks are called, where that is not their numbers.

    Raises:
        InvalidValueError: nothing was computed, or times contradict each other.
    """
    timeline, between = whole(timeline)
    timeline, drifts = straightened(timeline)
    timeline = in_queues(timeline)
    replay = Replay(timeline)
    recorded_s = replay.recorded_s
    called = range(timeline.world_size) if ranks is None else ranks
    slow = _slow_hosts(timeline, cluster)
    trial = Trial(replay, Counterfactuals(replay, slow, Servers(trips, replay)))
    lacks = tuple(_lacks(replay, trial.played_s, called))
    causes = () if lacks else trial.causes()
    noise_s = trial.noise_s()
    if not lacks and noise_s > TRUSTED * recorded_s and not any(c.ranks for c in causes):
        lacks = (_noisy(noise_s / recorded_s, len(replay.iterations)),)
    gained_s = sum(cause.gain_s for cause in causes if cause.kind not in _BOUNDS)
    told_s = gained_s + trial.bubble_s
    clocks_s = clock_error_s(timeline)
    if not lacks and not causes and clocks_s > TRUSTED * recorded_s:
        lacks = (_unknown_clocks(clocks_s, recorded_s),)
    if not any(cause.kind == PAUSE and not cause.ranks for cause in causes):
        told_s += noise_s
    lacks = lacks or tuple(_contradicted(replay, gained_s + trial.bubble_s, told_s, trial.left_s))
    causes = () if lacks else causes
    return Explanation(
        iterations=len(replay.iterations),
        iteration_s=recorded_s,
        replayed_s=trial.played_s,
        even_s=trial.even_s,
        bound_s=trial.bound_s,
        compute_s=trial.computing_s,
        causes=tuple(_called(cause, called) for cause in causes),
        abstains=lacks,
        noise_s=noise_s,
        between=between,
        pull_period=_pull_period(timeline.columns),
        together_s=gained_s if causes else 0.0,
        left_s=trial.left_s,
        drifts={called[rank]: drift for rank, drift in drifts.items()},
        exchange=timeline.metadata.get(EXCHANGE, ""),
        sized=bool((timeline.columns.nbytes > 0).any()),
    )


def _called(cause: Cause, ranks: Sequence[int]) -> Cause:
    if cause.kind == SLOW_SERVER:  # its rank is among servers
        return cause
    return replace(cause, ranks=tuple(ranks[rank] for rank in cause.ranks))


def _contradicted(replay: Replay, gained_s: float, told_s: float, left_s: float) -> Iterator[str]:
    """Yield what the causes leave open, by [Note: self-check].

    Args:
        replay: of a timeline.
        gained_s: what an iteration gains without the causes and the bubbles of a pipeline.
        told_s: the same without noise as well.
        left_s: what is left idle.
    """
    limit_s = TRUSTED * replay.recorded_s
    found = exposures(replay.timeline)
    counted = np.flatnonzero(np.isin(found.spans.iteration, replay.iterations))
    turns = len(replay.iterations) * replay.timeline.ranks_in_columns
    least_s = max(limit_s, told_s / _EXPLAINED)
    waited_s = float(found.waiting_s[counted].sum()) / turns
    if waited_s > least_s:  # whom all waited for is more to find out
        waited_s = found.waited_outside_s(counted) / turns
    if waited_s > least_s:
        yield (
            f"ranks wait {waited_s / replay.recorded_s:.0%} of an iteration for each other, and "
            f"the causes found explain {told_s / replay.recorded_s:.0%}: the clocks "
            "of ranks differ, or what they do meanwhile is not recorded"
        )
    if left_s > max(limit_s, gained_s):
        yield (
            f"{left_s / replay.recorded_s:.0%} of an iteration is idle on the ranks that others "
            "wait for, and nothing recorded says why: record all that they compute, or name what "
            "they do with syncopate.pause"
        )


def _unknown_clocks(clocks_s: float, recorded_s: float) -> str:
    said = "nothing says how far the clocks of hosts are apart"
    if math.isfinite(clocks_s):
        said = (
            f"the clocks of hosts agree to {clocks_s / recorded_s:.0%} of an iteration, and "
            "nothing that costs more stands out"
        )
    return f"{said}: set them by NTP or PTP, or record by `syncopate.trace`, which compares them"


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


def _lacks(replay: Replay, played_s: float, called: Sequence[int]) -> Iterable[str]:
    """Yield what the evidence lacks; ranks as they are called."""
    timeline, recorded_s, count = replay.timeline, replay.recorded_s, len(replay.iterations)
    if recorded_s <= 0:
        yield "iterations last no time by what is recorded: its times contradict each other"
        return
    if timeline.source == "measured" and count < SEVERAL:
        yield (
            f"{count} iterations do not tell what is usual from what happened once: "
            f"record at least {SEVERAL + 1}, of which the first does not count"
        )
    if lost := missing(timeline):
        ranks = ", ".join(str(called[rank]) for rank in lost)
        yield f"nothing is recorded of ranks {ranks}: record all ranks"
    if timeline.world_size > 1 and not replay.messages:
        yield "no push or pull is recorded: record a training that exchanges gradients"
    elif timeline.world_size > 1:
        silent = np.setdiff1d(timeline.columns.rank, replay.parts.rank).tolist()
        if silent:
            ranks = ", ".join(str(called[rank]) for rank in silent)
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
