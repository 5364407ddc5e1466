"""Changes: single changes of a partition, taken while they improve what playing it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from syncopate.planning.problem import Partition, Problem
from syncopate.planning.search.shapes import equal

CUTS = 256
"""Places where the search considers a cut; in longer workloads, the most even ones by bytes."""

PLAYED_MESSAGES = 60_000
"""After so many messages the search keeps what it has."""


def stops_of(problem: Problem, partition: Partition) -> tuple[int, ...]:
    """Return the places where buckets may end, those of ``partition`` among them.

    Of a longer workload than ``CUTS``: half of them the partition's, half evenly spaced by bytes.
    """
    if problem.length <= CUTS:
        return tuple(range(1, problem.length + 1))
    # A partition of more buckets than there are cuts keeps its best-spaced ones only.
    chosen = {*equal(problem, CUTS // 2), problem.length}
    known = np.array(partition)
    chosen |= set(known[np.linspace(0, len(known) - 1, CUTS // 2).round().astype(int)].tolist())
    return tuple(sorted(chosen))


class Plays(Protocol):
    """What plays partitions, and counts how much it has played."""

    played: int

    def score(self, partition: Partition) -> Any:
        """Return what a partition takes; less is better."""


def improve(
    partition: Partition, stops: Sequence[int], player: Plays, most: int = PLAYED_MESSAGES
) -> Partition:
    """Take single changes while they improve, and no more than ``most`` was played."""
    best, best_score = partition, player.score(partition)
    improved = True
    while improved:
        improved = False
        for candidate in neighbours(best, stops):
            if player.played > most:
                return best
            score = player.score(candidate)
            if score < best_score:
                best, best_score, improved = candidate, score, True
                break
    return best


def neighbours(partition: Partition, stops: Sequence[int]) -> Iterator[Partition]:
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
