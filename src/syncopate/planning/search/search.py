"""Search: planning where the recurrence is not exact, by playing whole iterations.

Three things break the recurrence that ``optimal.py`` solves. With interference, communication slows
the computation that makes later gradients ready. With several channels, start-ups overlap and bytes
share the link. And where weights are pulled, the next forward waits for them. There the planner
plays candidates and keeps the best:

* the partition of ``optimal``, which ignores all three;
* the partition of ``interference.py``, which is exact on one channel wherever overlap pays;
* where weights are pulled, that of ``both_ways.py``, which is exact on one channel with ideal
  overlap, and ramps, whose buckets are small where backward turns into forward;
* the partitions of all other policies of the registry, so that none of them is ever better;
* k buckets of about equal bytes, for several k;
* from the best few of these, what single changes improve: a cut removed, added, or moved by one;
* where weights are pulled, the best of these with its first buckets all-reduced
  (:mod:`syncopate.planning.search.replicated`).

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

from collections.abc import Callable, Sequence

from syncopate.planning.parts import WHOLE, alone, grains
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.policies.threshold import threshold
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.question import Draft, Question
from syncopate.planning.search.both_ways import both_ways
from syncopate.planning.search.changes import PLAYED_MESSAGES, improve, stops_of
from syncopate.planning.search.interference import least_disturbing, overlap_pays
from syncopate.planning.search.player import Player
from syncopate.planning.search.replicated import WORTHWHILE, replicate
from syncopate.planning.search.shapes import EQUAL_BUCKETS, equal, ramps
from syncopate.planning.search.uneven import Uneven, is_uneven

_UNEVEN_CANDIDATES = 8
"""How many of the best candidates are played again where shards are unequal."""

_IMPROVED = 3
"""How many of the best candidates are improved: changes of one cut end where none of them helps."""


Rivals = Sequence[Callable[[Problem], Partition]]
"""Policies whose partitions are played too."""


def searched(question: Question, rivals: Rivals, most: int = PLAYED_MESSAGES) -> Draft:
    """Return the best plan found for one exchange on so many channels.

    Args:
        question: whose first exchange and number of channels count.
        rivals: none of them is better.
        most: messages to play.
    """
    problem = question.problem
    interference = question.workload.interference_on(question.cluster)
    partition, channels = optimal(problem), question.channels[0]
    player = Player(problem, question.workload, interference, channels)
    if problem.pulls is not None or channels > 1 or not interference.is_ideal:
        partition = search(player, partition, rivals, most)
    partition, grain = split(player, partition, most)
    if is_uneven(question):
        partition, grain = search_uneven(question, player, (partition, grain), rivals, most)
        return question.draft(partition, grain)
    partition, first = replicate(player.cut_to(grain), partition, most)
    return question.draft(partition, grain, first)


def search_uneven(
    question: Question, player: Player, found: tuple[Partition, float], rivals: Rivals, most: int
) -> tuple[Partition, float]:
    """Return the best partition and grain found by playing unequal shards.

    Args:
        question: whose shards are unequal.
        player: plays them as if they were equal.
        found: the best partition by that, and the grain of its large tensors; what is returned is
            never worse by the real shards.
        rivals: policies whose partitions are played too.
        most: messages to play, each price worked out counted as ``PRICED_MESSAGES``.
    """
    problem, (partition, grain) = player.problem, found
    stops = stops_of(problem, partition)
    shapes = sorted(dict.fromkeys(_candidates(player, partition, rivals, stops)), key=player.score)
    uneven = player.with_shards(Uneven(question))
    best = uneven.cut_to(grain).score(partition)
    for each in dict.fromkeys((grain, WHOLE)):
        cutting = uneven.cut_to(each)
        again = [partition, *(alone(problem, one, each) for one in shapes[:_UNEVEN_CANDIDATES])]
        ranked = sorted(dict.fromkeys(again), key=cutting.score)
        limit = cutting.played + most // 4
        for one in ranked[:_IMPROVED]:
            improved = improve(one, stops, cutting, limit)
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
    limit_s = (1 - WORTHWHILE) * player.score(partition)[0]
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
        found = improve(found, stops_of(problem, found), chosen, most)
    return found, chosen.grain


def search(
    player: Player, partition: Partition, rivals: Rivals = (), most: int = PLAYED_MESSAGES
) -> Partition:
    """Return the best partition found by playing; never worse than ``partition``.

    Args:
        player: of the problem, the machine and the channels.
        partition: what to start from, the exact optimum with ideal overlap on one channel.
        rivals: policies whose partitions are played too.
        most: messages to play before what has been found has to do; candidates are played anyway.
    """
    problem = player.problem
    stops = stops_of(problem, partition)
    ranked = sorted(dict.fromkeys(_candidates(player, partition, rivals, stops)), key=player.score)
    one_way = problem.pulls is None and player.channels == 1 and overlap_pays(player.interference)
    if one_way and len(stops) == problem.length:
        return ranked[0]
    improved = [improve(one, stops, player, most) for one in ranked[:_IMPROVED]]
    return min(improved, key=player.score)


def _candidates(
    player: Player, partition: Partition, rivals: Rivals, stops: Sequence[int]
) -> list[Partition]:
    """Return what is worth playing, ``partition`` first."""
    problem, workload = player.problem, player.workload
    compute_s = workload.forward_s + workload.backward_s
    exact = least_disturbing(problem, compute_s, player.interference, stops)
    found = [partition, exact, *(rival(problem) for rival in rivals)]
    found += [equal(problem, count) for count in EQUAL_BUCKETS if count < problem.length]
    if problem.pulls is not None:
        ways = dict.fromkeys((1, player.channels))
        found += [both_ways(problem, workload.forward_s, compute_s, stops, c) for c in ways]
        found += ramps(problem)
    return found
