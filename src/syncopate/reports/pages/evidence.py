"""Evidence: what the page of a run is made of, put together by whoever asks for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from syncopate.analysis import Collective, collectives
from syncopate.analysis.causes import Explanation
from syncopate.cluster import Cluster
from syncopate.plan import Plan
from syncopate.timeline import Timeline


class Price(NamedTuple):
    """What one message is expected to take on a cluster, by itself.

    Attributes:
        nbytes: that it carries.
        lasts_s: from the last arrival to the last end.
    """

    nbytes: int
    lasts_s: float


@dataclass(frozen=True)
class Evidence:
    """A run, and what it can be held against.

    Attributes:
        timeline: measured or simulated.
        explanation: what iterations lose time to; None where nothing can be said.
        unexplained: why nothing can be said; empty where something is.
        remarks: what is missing, damaged or uncertain, a sentence each.
        cluster: where it ran; None: not known.
        plan: by which it ran; None: not known.
        best: the best plan for its workload on its cluster; None: not known.
        expected: the plan played on the cluster; None without workload, cluster and plan.
        prices: ``(collective, algorithm)`` -> prices by ascending size, on the cluster.
        against: the run before; None: compared with nothing.
        files: of workload and cluster, where both were given.
    """

    timeline: Timeline
    explanation: Explanation | None = None
    unexplained: str = ""
    remarks: tuple[str, ...] = ()
    cluster: Cluster | None = None
    plan: Plan | None = None
    best: Plan | None = None
    expected: Timeline | None = None
    prices: Mapping[tuple[str, str], tuple[Price, ...]] = field(default_factory=dict)
    against: Timeline | None = None
    files: tuple[str, str] | None = None


def algorithm_of(one: Collective) -> str:
    """Return the algorithm that carried a message; empty where it was not recorded."""
    return one.spans[0].detail


def lasts_s(one: Collective) -> float:
    """Return how long a message took once all its ranks were there."""
    return max(span.end_s for span in one.spans) - one.arrived_s


def alike(timeline: Timeline) -> tuple[tuple[Collective, ...], int, int]:
    """Return the messages of the iterations that exchange what the last whole one exchanges.

    A training that measures plans changes its buckets; a mean over several plans' is of none.

    Returns:
        the messages; how many iterations they are of; how many have any.
    """
    by_iteration: dict[int, list[Collective]] = {}
    for one in collectives(timeline):
        by_iteration.setdefault(one.iteration, []).append(one)
    numbers = sorted(by_iteration)
    # The first pulls nothing, and the last may have been cut off.
    whole = numbers[1:-1] or numbers[-1:]
    if not whole:
        return (), 0, 0
    wanted = _carried(by_iteration[whole[-1]])
    same = [n for n in whole if _carried(by_iteration[n]) == wanted]
    return tuple(one for n in same for one in by_iteration[n]), len(same), len(whole)


def _carried(messages: list[Collective]) -> set[tuple[str, str, int, str]]:
    return {(one.lane, one.name, one.nbytes, algorithm_of(one)) for one in messages}
