"""Variation: how the computation of ranks differs, from rank to rank and from step to step.

A rank computes for its computation's seconds in an iteration (:mod:`syncopate.analysis.phases`). Of
these, a rank's own factor is its median over the median of all ranks; a step's factor is what the
rank took in it over the rank's median. The first iteration does not count where several are left.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import NamedTuple

from syncopate.analysis.phases import phases
from syncopate.analysis.work import steady
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import InvalidValueError


class Spread(NamedTuple):
    """How computation differs.

    Attributes:
        ranks: a factor of each rank that computed, by rank; 1 is usual.
        steps: a factor of each of their iterations that count; 1 is usual for its rank.
    """

    ranks: tuple[float, ...]
    steps: tuple[float, ...]


def spread(timeline: Timeline) -> Spread:
    """Return how the computation of a timeline's ranks differs.

    Raises:
        InvalidValueError: nothing was computed.
    """
    found = [phase for phase in phases(timeline) if phase.computation_s > 0]
    counted = set(steady([phase.iteration for phase in found]))
    by_rank: dict[int, list[float]] = defaultdict(list)
    for phase in found:
        if phase.iteration in counted:
            by_rank[phase.rank].append(phase.computation_s)
    if not by_rank:
        rule = "a timeline of ranks that compute"
        raise InvalidValueError(timeline.name, f"{len(timeline.spans)} spans", rule)
    usual_s = {rank: statistics.median(took) for rank, took in sorted(by_rank.items())}
    of_all_s = statistics.median(usual_s.values())
    return Spread(
        ranks=tuple(own_s / of_all_s for own_s in usual_s.values()),
        steps=tuple(s / own_s for rank, own_s in usual_s.items() for s in by_rank[rank]),
    )
