"""Search: planning where the recurrence is not exact, by playing whole iterations.

Two things break the recurrence that ``optimal.py`` solves. With interference, communication slows
the computation that makes later gradients ready. With several channels, start-ups overlap and bytes
share the link. There the planner plays candidates and keeps the best:

* the partition of ``optimal``, which ignores both;
* the partition of ``interference.py``, which is exact on one channel wherever overlap pays;
* the partitions of all other policies, so that none of them is ever better;
* k buckets of about equal bytes, for several k;
* from the best of these, what single changes improve: a cut removed, added, or moved by one.

Everything is deterministic; at a tie the earlier candidate, then fewer buckets, wins. The number
of collectives played is limited, not the time, so that a plan depends on its inputs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from syncopate.cluster import Interference
from syncopate.costs.functions import Envelope, startup_part_s
from syncopate.planning.interference import least_disturbing, overlap_pays
from syncopate.planning.mg_wfbp import mg_wfbp
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.single import single
from syncopate.planning.threshold import threshold
from syncopate.planning.wfbp import wfbp
from syncopate.simulation.fluid import Collective
from syncopate.simulation.iteration import play_collectives
from syncopate.workload import Workload

CUTS = 256
"""Places where the search considers a cut; in longer workloads, the most even ones by bytes."""

_EQUAL_BUCKETS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_PLAYED_COLLECTIVES = 60_000


def search(
    problem: Problem,
    partition: Partition,
    workload: Workload,
    interference: Interference,
    channels: int,
) -> Partition:
    """Return the best partition found by playing; never worse than ``partition``.

    Args:
        problem: the workload's ready times and sizes, and the costs.
        partition: what to start from, the exact optimum with ideal overlap on one channel.
        workload: whose iteration is played.
        interference: what overlap costs.
        channels: buckets take the channels in turn.
    """
    player = Player(problem, workload, interference, channels)
    stops = _stops(problem, partition)
    compute_s = workload.forward_s + workload.backward_s
    exact = least_disturbing(problem, compute_s, interference, stops)
    candidates = [partition, exact, single(problem), threshold(problem)]
    candidates += [mg_wfbp(problem), wfbp(problem)]
    candidates += [_equal(problem, count) for count in _EQUAL_BUCKETS if count < problem.length]
    best = min(dict.fromkeys(candidates), key=player.score)
    if channels == 1 and overlap_pays(interference) and len(stops) == problem.length:
        return best
    return _improve(best, stops, player)


class Player:
    """Plays partitions, and remembers the price of each bucket.

    Args:
        problem: the workload's ready times and sizes, and the costs.
        workload: whose iteration is played.
        interference: what overlap costs.
        channels: buckets take the channels in turn.

    Attributes:
        played: how many collectives were played so far.
    """

    def __init__(
        self, problem: Problem, workload: Workload, interference: Interference, channels: int
    ) -> None:
        self._problem = problem
        self._workload = workload
        self._interference = interference
        self._channels = channels
        self._prices: dict[tuple[int, int], tuple[float, float]] = {}
        self.played = 0

    def score(self, partition: Partition) -> tuple[float, int]:
        """Return the iteration time and the number of buckets."""
        collectives = []
        for index, (start, stop) in enumerate(pairwise((0, *partition))):
            duration_s, startup_s = self._price(start, stop)
            ready_s = float(self._problem.ready_s[stop - 1])
            channel = index % self._channels
            collectives.append(Collective(ready_s, duration_s, startup_s, channel))
        self.played += len(partition)
        played = play_collectives(self._workload, collectives, self._interference)
        return played.iteration_s, len(partition)

    def _price(self, start: int, stop: int) -> tuple[float, float]:
        key = (start, stop)
        if key not in self._prices:
            cost = self._problem.cost
            sizes = (self._problem.offsets[:, stop] - self._problem.offsets[:, start]).tolist()
            duration_s = self._problem.bucket_s(start, stop)
            if isinstance(cost, Envelope):
                contract = cost.bucket(sizes)
                cost = cost.of(contract.algorithm).fixed(contract.options)
            self._prices[key] = (duration_s, startup_part_s(cost, sizes, duration_s))
        return self._prices[key]


def _stops(problem: Problem, partition: Partition) -> tuple[int, ...]:
    if problem.length <= CUTS:
        return tuple(range(1, problem.length + 1))
    # A partition of more buckets than there are cuts keeps its best-spaced ones only.
    chosen = {*_equal(problem, CUTS // 2), problem.length}
    known = np.array(partition)
    chosen |= set(known[np.linspace(0, len(known) - 1, CUTS // 2).round().astype(int)].tolist())
    return tuple(sorted(chosen))


def _equal(problem: Problem, count: int) -> Partition:
    """Return ``count`` buckets of about equal bytes, or fewer where one gradient fills several."""
    filled = problem.offsets.sum(axis=0)
    targets = filled[-1] * np.arange(1, count) / count
    cuts = np.searchsorted(filled, targets, side="left")
    inner = {int(cut) for cut in cuts if 0 < cut < problem.length}
    return (*sorted(inner), problem.length)


def _improve(partition: Partition, stops: Sequence[int], player: Player) -> Partition:
    """Take single changes while they improve, within the budget of played collectives."""
    best, best_score = partition, player.score(partition)
    improved = True
    while improved:
        improved = False
        for candidate in _neighbours(best, stops):
            if player.played > _PLAYED_COLLECTIVES:
                return best
            score = player.score(candidate)
            if score < best_score:
                best, best_score, improved = candidate, score, True
                break
    return best


def _neighbours(partition: Partition, stops: Sequence[int]) -> Iterator[Partition]:
    """Yield every partition one cut away: merges, then moves, then splits."""
    cuts, last = partition[:-1], partition[-1]
    for index in range(len(cuts)):
        yield (*cuts[:index], *cuts[index + 1 :], last)
    held = set(cuts)
    position = {stop: index for index, stop in enumerate(stops)}
    for index, cut in enumerate(cuts):
        at = position.get(cut)
        for step in (-1, 1):
            if at is None or not 0 <= at + step < len(stops) - 1:
                continue
            moved = stops[at + step]
            if moved not in held:
                yield (*sorted((*cuts[:index], moved, *cuts[index + 1 :])), last)
    for stop in stops[:-1]:
        if stop not in held:
            yield (*sorted((*cuts, stop)), last)
