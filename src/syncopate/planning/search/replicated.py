"""Replicated: how many of the first buckets every rank updates, where weights are pulled.

What becomes ready first is needed last. Where backward leaves the link idle at its beginning, an
all-reduce of the first buckets costs nothing, and spares forward a pull. The more of them, the
fewer bytes are left for forward, and the more there are for backward: the best number is found by
playing them all, and the buckets are improved once more for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncopate.planning.parts import alone
from syncopate.planning.problem import Partition
from syncopate.planning.search.changes import improve, stops_of
from syncopate.planning.search.player import Player
from syncopate.planning.search.shapes import equal

WORTHWHILE = 1e-3
"""A plan is changed where that is played to save at least such a share of an iteration."""

_WORTH_STATE = 0.01
"""Buckets are all-reduced, with all of their optimizer's state on every rank, where that is played
to save at least such a share of an iteration."""

_SHAPES = (16, 32, 64)
"""Numbers of equal buckets that are played with some of them replicated."""

_REPLICATED = 12
"""How many numbers of replicated gradients are played at a time."""


def replicate(player: Player, partition: Partition, most: int) -> tuple[Partition, int]:
    """Return a partition, and how many of its first gradients every rank is to update.

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
        tried = {
            (seconds, one, shape)
            for shape in shapes
            for one, seconds in _replicating(player, shape).items()
        }
        least_s = min(tried)[0] if tried else best_s
        if least_s >= best_s:
            break
        _, first, found = min(
            (each for each in tried if each[0] <= (1 + WORTHWHILE) * least_s),
            key=lambda each: each[1:],
        )
        replicating = player.replicating(first)
        found = improve(found, stops_of(player.problem, found), replicating, limit)
        best_s, player.played = (1 - WORTHWHILE) * replicating.score(found)[0], replicating.played
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
