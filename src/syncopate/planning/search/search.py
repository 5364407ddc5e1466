"""Search: planning where the recurrence is not exact, by playing whole iterations.

Three things break the recurrence that ``optimal.py`` solves. With interference, communication slows
the computation that makes later gradients ready. With several channels, start-ups overlap and bytes
share the link. And where weights are pulled, the next forward waits for them. There the planner
plays candidates and keeps the best:

* the partition of ``optimal``, which ignores all three;
* the partition of ``interference.py``, which is exact on one channel wherever overlap pays;
* where weights are pulled, that of ``both_ways.py``, which is exact on one channel with ideal
  overlap, and ramps, whose buckets are small where backward turns into forward;
* the partitions of all other policies, so that none of them is ever better;
* k buckets of about equal bytes, for several k;
* from the best few of these, what single changes improve: a cut removed, added, or moved by one;
* where weights are pulled, the best of these with its first buckets all-reduced
  ([Note: what is replicated]).

[Note: what is replicated] What becomes ready first is needed last. Where backward leaves the link
idle at its beginning, an all-reduce of the first buckets costs nothing, and spares forward a pull.
The more of them, the fewer bytes are left for forward, and the more there are for backward: the
best number is found by playing them all, and the buckets are improved once more for it.

The ends of buckets are counted in tensors. A tensor larger than a good message travels in parts
(:mod:`syncopate.planning.parts`) where playing that with the best partition, or with buckets filled
to what a part carries and each large tensor alone, saves time.

All of that counts shards as equal. Where they are not (:mod:`syncopate.planning.search.uneven`),
what was found and the best candidates are then played with the shards that they are going to have,
and improved by that measure, which is the one of the plan's prediction.

Everything is deterministic; at a tie the earlier candidate, then fewer buckets, wins. The number
of messages played is limited, not the time, so that a plan depends on its inputs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise

import numpy as np

from syncopate.cluster import Interference
from syncopate.costs.model.functions import CostFunction, startup_part_s
from syncopate.planning.parts import WHOLE, Message, alone, grains, messages
from syncopate.planning.policies.mg_wfbp import mg_wfbp
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.policies.single import single
from syncopate.planning.policies.threshold import threshold
from syncopate.planning.policies.wfbp import wfbp
from syncopate.planning.problem import Partition, Problem, pull_channels, pull_order
from syncopate.planning.question import Draft, Question
from syncopate.planning.search.both_ways import both_ways
from syncopate.planning.search.interference import least_disturbing, overlap_pays
from syncopate.planning.search.shapes import EQUAL_BUCKETS, equal, ramps
from syncopate.planning.search.uneven import Uneven, is_uneven
from syncopate.simulation.fluid import Collective
from syncopate.simulation.iteration import lasts_s
from syncopate.simulation.traffic import Pull, Traffic
from syncopate.workload import Workload

CUTS = 256
"""Places where the search considers a cut; in longer workloads, the most even ones by bytes."""

PLAYED_MESSAGES = 60_000
"""After so many messages the search keeps what it has."""

_WORTHWHILE = 1e-3
"""Tensors are cut where that is played to save at least such a share of an iteration."""

_WORTH_STATE = 0.01
"""Buckets are all-reduced, with all of their optimizer's state on every rank, where that is played
to save at least such a share of an iteration."""

_SHAPES = (16, 32, 64)
"""Numbers of equal buckets that are played with some of them replicated."""

_REPLICATED = 12
"""How many numbers of replicated gradients are played at a time."""

_UNEVEN_CANDIDATES = 8
"""How many of the best candidates are played again where shards are unequal."""

_PRICED_MESSAGES = 64
"""As many messages are played while one with unequal shards is priced."""

_IMPROVED = 3
"""How many of the best candidates are improved: changes of one cut end where none of them helps."""


_Prices = dict[tuple[int, int, int, int], tuple[float, float]]
"""First gradient, one past the last, part and parts of a message -> what it costs."""


def searched(question: Question, most: int = PLAYED_MESSAGES) -> Draft:
    """Return the best plan found for one exchange on so many channels.

    Args:
        question: whose first exchange and number of channels count.
        most: messages to play.
    """
    problem, interference = question.problem, question.cluster.interference
    partition, channels = optimal(problem), question.channels[0]
    ideal = interference.compute_rate == 1 and interference.collective_stretch == 1
    player = Player(problem, question.workload, interference, channels)
    if problem.pulls is not None or channels > 1 or not ideal:
        partition = search(player, partition, most)
    partition, grain = split(player, partition, most)
    if is_uneven(question):
        partition, grain = search_uneven(question, player, partition, grain, most)
        return question.draft(partition, grain)
    partition, first = replicate(player.cut_to(grain), partition, most)
    return question.draft(partition, grain, first)


def replicate(player: Player, partition: Partition, most: int) -> tuple[Partition, int]:
    """Return a partition, and how many of its first gradients every rank is to update.

    See [Note: what is replicated].

    Args:
        player: plays no bucket as replicated.
        partition: the best one by that.
        most: messages to play before what has been found has to do; a quarter of them here.
    """
    pulls, limit = player.problem.pulls, player.played + most // 4
    if pulls is None or pulls.replicated is None:
        return partition, 0
    best_s = (1 - _WORTH_STATE) * player.score(partition)[0]
    if best_s <= player.workload.compute_s:
        return partition, 0  # computing alone takes as long
    found, first = partition, 0
    shapes = [equal(player.problem, count) for count in _SHAPES if count < player.problem.length]
    shapes = [partition, *(alone(player.problem, one, player.grain) for one in shapes)]
    while player.played <= limit:
        scores_s = {
            (seconds, one, shape)
            for shape in shapes
            for one, seconds in _replicating(player, shape).items()
        }
        least_s = min(scores_s)[0] if scores_s else best_s
        if least_s >= best_s:
            break
        _, first, found = min(
            (each for each in scores_s if each[0] <= (1 + _WORTHWHILE) * least_s),
            key=lambda each: each[1:],
        )
        replicating = player.replicating(first)
        found = _improve(found, _stops(player.problem, found), replicating, limit)
        best_s, player.played = (1 - _WORTHWHILE) * replicating.score(found)[0], replicating.played
        shapes = [found]
    return found, first


def _replicating(player: Player, partition: Partition) -> dict[int, float]:
    """Return the iteration time by the number of gradients replicated, at some ends of buckets.

    First at ends far apart, then at those between the neighbours of the best.
    """
    scores_s: dict[int, float] = {}
    ends = partition[:-1]
    while wanted := [one for one in _spread(ends) if one not in scores_s]:
        for one in wanted:
            replicating = player.replicating(one)
            scores_s[one] = replicating.score(partition)[0]
            player.played = replicating.played
        tried = sorted(scores_s)
        place = tried.index(min(tried, key=lambda one: scores_s[one]))
        low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
        ends = tuple(end for end in partition[:-1] if low <= end <= high)
    return scores_s


def _spread(ends: Sequence[int]) -> list[int]:
    """Return at most ``_REPLICATED`` of some ends, evenly spread."""
    count = min(len(ends), _REPLICATED)
    return [ends[round(i)] for i in np.linspace(0, len(ends) - 1, count)]


def search_uneven(
    question: Question, player: Player, partition: Partition, grain: float, most: int
) -> tuple[Partition, float]:
    """Return the best partition and grain found by playing unequal shards.

    Args:
        question: whose shards are unequal.
        player: plays them as if they were equal.
        partition: the best one by that; what is returned is never worse by the real shards.
        grain: of its large tensors.
        most: messages to play, each price worked out counted as ``_PRICED_MESSAGES``.
    """
    problem = player.problem
    stops = _stops(problem, partition)
    shapes = sorted(dict.fromkeys(_candidates(player, partition, stops)), key=player.score)
    uneven = player.with_shards(Uneven(question))
    best, found = uneven.cut_to(grain).score(partition), (partition, grain)
    for each in dict.fromkeys((grain, WHOLE)):
        cutting = uneven.cut_to(each)
        again = [partition, *(alone(problem, one, each) for one in shapes[:_UNEVEN_CANDIDATES])]
        ranked = sorted(dict.fromkeys(again), key=cutting.score)
        limit = cutting.played + most // 4
        for one in ranked[:_IMPROVED]:
            improved = _improve(one, stops, cutting, limit)
            score = cutting.score(improved)
            if score < best:
                best, found = score, (improved, each)
    return found


def split(
    player: Player, partition: Partition, most: int = PLAYED_MESSAGES
) -> tuple[Partition, float]:
    """Return a partition and the grain of its large tensors; whole ones unless parts pay.

    Args:
        player: of the problem, the machine and the channels.
        partition: the best one with whole tensors.
        most: messages to play before what has been found has to do; one grain is played anyway.
    """
    problem = player.problem
    limit_s = (1 - _WORTHWHILE) * player.score(partition)[0]
    best = (limit_s, 0), partition, player
    for grain in grains(problem):
        cutting = player.cut_to(grain)
        for shape in (partition, threshold(problem, max(1, int(grain)))):
            candidate = alone(problem, shape, grain)
            score = cutting.score(candidate)
            if score < best[0]:
                best = score, candidate, cutting
        player.played = cutting.played
        if player.played > most:
            break
    _, found, chosen = best
    if chosen is not player:
        chosen.played = player.played
        found = _improve(found, _stops(problem, found), chosen, most)
    return found, chosen.grain


def search(player: Player, partition: Partition, most: int = PLAYED_MESSAGES) -> Partition:
    """Return the best partition found by playing; never worse than ``partition``.

    Args:
        player: of the problem, the machine and the channels.
        partition: what to start from, the exact optimum with ideal overlap on one channel.
        most: messages to play before what has been found has to do; candidates are played anyway.
    """
    problem = player.problem
    stops = _stops(problem, partition)
    ranked = sorted(dict.fromkeys(_candidates(player, partition, stops)), key=player.score)
    one_way = problem.pulls is None and player.channels == 1 and overlap_pays(player.interference)
    if one_way and len(stops) == problem.length:
        return ranked[0]
    improved = [_improve(one, stops, player, most) for one in ranked[:_IMPROVED]]
    return min(improved, key=player.score)


def _candidates(player: Player, partition: Partition, stops: Sequence[int]) -> list[Partition]:
    """Return what is worth playing, ``partition`` first."""
    problem, workload = player.problem, player.workload
    compute_s = workload.forward_s + workload.backward_s
    exact = least_disturbing(problem, compute_s, player.interference, stops)
    found = [partition, exact, single(problem), threshold(problem)]
    found += [mg_wfbp(problem), wfbp(problem)]
    found += [equal(problem, count) for count in EQUAL_BUCKETS if count < problem.length]
    if problem.pulls is not None:
        ways = dict.fromkeys((1, player.channels))
        found += [both_ways(problem, workload.forward_s, compute_s, stops, c) for c in ways]
        found += ramps(problem)
    return found


class Player:
    """Plays partitions, and remembers the price of each bucket.

    Args:
        problem: the workload's ready times and sizes, and the costs.
        workload: whose iteration is played.
        interference: what overlap costs.
        channels: buckets take the channels in turn.

    Attributes:
        problem, workload, interference, channels: as given.
        grain: the most that a message carries of a tensor alone in its bucket.
        replicated: the first gradients, whose buckets every rank updates.
        played: how many messages were played so far.
    """

    def __init__(
        self, problem: Problem, workload: Workload, interference: Interference, channels: int
    ) -> None:
        self.problem = problem
        self.workload = workload
        self.interference = interference
        self.channels = channels
        self._pushes: _Prices = {}
        self._pulls: _Prices = {}
        self._replicated: _Prices = {}
        self._uneven: Uneven | None = None
        self._ready_s: list[float] = [0.0, *problem.ready_s.tolist()]
        self._needed_s: dict[tuple[int, int], float] = {}
        self.grain = WHOLE
        self.replicated = 0
        self.played = 0

    def with_shards(self, uneven: Uneven) -> Player:
        """Return a player of messages with the shards that they are going to have."""
        other = Player(self.problem, self.workload, self.interference, self.channels)
        other._uneven = uneven
        return other

    def cut_to(self, grain: float) -> Player:
        """Return a player of messages that carry no more than ``grain`` of a tensor alone."""
        other = copy(self)
        other.grain = grain
        return other

    def replicating(self, first: int) -> Player:
        """Return a player in whose plans every rank updates the first gradients."""
        other = copy(self)
        other.replicated = first
        return other

    def score(self, partition: Partition) -> tuple[float, int]:
        """Return the iteration time and the number of messages each way."""
        traffic = self._traffic(partition)
        self.played += len(traffic.pushes) + len(traffic.pulls)
        iteration_s = lasts_s(self.workload, traffic, self.interference)
        return iteration_s, len(traffic.pushes)

    def _traffic(self, partition: Partition) -> Traffic:
        problem, channels = self.problem, self.channels
        pushes: list[Collective] = []
        pulls: list[Pull | None] = []
        sent = messages(problem, partition, self.grain)
        for index, message in enumerate(sent):
            duration_s, startup_s = self._push_price(message)
            ready_s = self._ready_s[message.stop]
            pushes.append(Collective(ready_s, duration_s, startup_s, index % channels))
        if problem.pulls is None:
            return Traffic(tuple(pushes), (), self.workload.update_s)
        needed_s = [self._needed(one.start, one.stop) for one in sent]
        order = pull_order(needed_s)
        turns = pull_channels([i for i in order if sent[i].stop > self.replicated], channels)
        for index, (message, at_s) in enumerate(zip(sent, needed_s, strict=True)):
            if index not in turns:
                pulls.append(None)
                continue
            duration_s, startup_s = self._price(self._pulls, problem.pulls.cost, message)
            pulls.append(Pull(at_s, duration_s, startup_s, turns[index]))
        update_s = self.workload.update_s * self._update_part(partition)
        return Traffic(tuple(pushes), tuple(pulls) if any(pulls) else (), update_s, order)

    def _push_price(self, message: Message) -> tuple[float, float]:
        pulls = self.problem.pulls
        if message.stop <= self.replicated and pulls is not None and pulls.replicated is not None:
            return self._price(self._replicated, pulls.replicated, message)
        return self._price(self._pushes, self.problem.cost, message)

    def _needed(self, start: int, stop: int) -> float:
        """Return when forward needs the weights of a bucket: the first of them."""
        found = self._needed_s.get((start, stop))
        if found is None:
            assert self.problem.pulls is not None
            found = min(self.problem.pulls.needed_s[start:stop])
            self._needed_s[start, stop] = found
        return found

    def _update_part(self, partition: Partition) -> float:
        """Return the part of all weights that the busiest rank updates."""
        pulls = self.problem.pulls
        assert pulls is not None
        if self._uneven is not None:
            return self._uneven.largest_part
        if not pulls.rooted:
            part = 0.0
            if self.replicated:
                first = max((stop for stop in partition if stop <= self.replicated), default=0)
                filled = self.problem.offsets.sum(axis=0)
                part = float(filled[first]) / (float(filled[-1]) or 1.0)
            return part + (1 - part) / pulls.ranks
        filled = self.problem.offsets.sum(axis=0)
        held: dict[int, float] = {}
        roots = self.problem.roots(partition)
        for root, (start, stop) in zip(roots, pairwise((0, *partition)), strict=True):
            held[root] = held.get(root, 0.0) + float(filled[stop] - filled[start])
        return max(held.values()) / (float(filled[-1]) or 1.0)

    def _price(self, known: _Prices, cost: CostFunction, message: Message) -> tuple[float, float]:
        if self._uneven is not None:
            return self._price_uneven(known, message)
        key = (message.start, message.stop, 0, message.parts)
        if key not in known:
            carrier, sizes, duration_s = self.problem.carrier(
                cost, message.start, message.stop, message.parts
            )
            known[key] = (duration_s, startup_part_s(carrier, sizes, duration_s))
        return known[key]

    def _price_uneven(self, known: _Prices, message: Message) -> tuple[float, float]:
        assert self._uneven is not None
        key = message[1:]
        if key not in known:
            known[key] = self._uneven.price(message, pulled=known is self._pulls)
            self.played += _PRICED_MESSAGES
        return known[key]


def _stops(problem: Problem, partition: Partition) -> tuple[int, ...]:
    if problem.length <= CUTS:
        return tuple(range(1, problem.length + 1))
    # A partition of more buckets than there are cuts keeps its best-spaced ones only.
    chosen = {*equal(problem, CUTS // 2), problem.length}
    known = np.array(partition)
    chosen |= set(known[np.linspace(0, len(known) - 1, CUTS // 2).round().astype(int)].tolist())
    return tuple(sorted(chosen))


def _improve(
    partition: Partition, stops: Sequence[int], player: Player, most: int = PLAYED_MESSAGES
) -> Partition:
    """Take single changes while they improve, and no more than ``most`` messages were played."""
    best, best_score = partition, player.score(partition)
    improved = True
    while improved:
        improved = False
        for candidate in _neighbours(best, stops):
            if player.played > most:
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
