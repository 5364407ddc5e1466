"""Evidence: what the page of a run is made of, put together by the caller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from syncopate.analysis.causes.explanation import Explanation
from syncopate.analysis.collectives import collectives
from syncopate.analysis.memoized import memoized
from syncopate.analysis.sweep import runs
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.artifacts.timelines.spans import LANES, Numbers, coded


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
        prices: ``(collective, algorithm)`` -> size, ascending -> what one message takes alone on
            the cluster, from the last arrival to the last end.
        against: the runs before; empty: compared with nothing.
        files: of workload and cluster, where both were given.
        trips: ways of slices to parameter servers and back.
    """

    timeline: Timeline
    explanation: Explanation | None = None
    unexplained: str = ""
    remarks: tuple[str, ...] = ()
    cluster: Cluster | None = None
    plan: Plan | None = None
    best: Plan | None = None
    expected: Timeline | None = None
    prices: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    against: tuple[Timeline, ...] = ()
    files: tuple[str, str] | None = None
    trips: tuple[RoundTrip, ...] = ()


class Message(NamedTuple):
    """One collective, or one message to or from a server.

    Attributes:
        iteration: that it belongs to.
        lane: ``"push"`` or ``"pull"``.
        name: what it carries, such as ``"bucket 3"``.
        collective: such as ``"all_reduce"``.
        algorithm: that carried it; empty where it was not recorded.
        nbytes: that it carried.
        arrived_s: when its last rank arrived.
        ends_s: when its last rank had it.
    """

    iteration: int
    lane: str
    name: str
    collective: str
    algorithm: str
    nbytes: int
    arrived_s: float
    ends_s: float

    @property
    def lasts_s(self) -> float:
        """How long it took once all its ranks were there."""
        return self.ends_s - self.arrived_s


@memoized
def messages(timeline: Timeline) -> tuple[Message, ...]:
    """Return every message of a timeline, in the order in which their last ranks arrived."""
    found = collectives(timeline)
    spans = found.spans
    one = found.rows[found.first]
    columns = (
        spans.iteration[one],
        spans.lane[one],
        spans.name[one],
        found.kinds,
        spans.detail[one],
        found.most(spans.nbytes),
        found.arrived_s,
        found.most(spans.end_s),
    )
    return tuple(
        Message(
            number,
            LANES[lane],
            spans.texts[name],
            found.names[kind],
            spans.texts[detail],
            nbytes,
            arrived_s,
            ends_s,
        )
        for number, lane, name, kind, detail, nbytes, arrived_s, ends_s in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )


@memoized
def alike(timeline: Timeline) -> tuple[tuple[Message, ...], int, int]:
    """Return the messages of the iterations that exchange what the last whole one exchanges.

    A training that measures plans changes its buckets; a mean over several plans' is of none. With
    a delay not every iteration pulls: those count alike that push the same, and pull, where they
    pull, the same.

    Returns:
        the messages; how many iterations they are of; how many have any.
    """
    sent, carried = messages(timeline), _carried(timeline)
    numbers = sorted(carried)
    # The first pulls nothing, and the last may have been cut off.
    whole = numbers[1:-1] or numbers[-1:]
    known: dict[tuple[str, str], set[tuple[str, str, int]]] = {}
    seen: dict[bytes, bool] = {}
    same: set[int] = set()
    for number in reversed(whole):
        exchanged = carried[number].tobytes()
        if exchanged not in seen:
            seen[exchanged] = _joins([sent[place] for place in carried[number].tolist()], known)
        if seen[exchanged]:
            same.add(number)
    return (
        tuple(one for one in sent if one.iteration in same),
        len(same),
        len(whole),
    )


def _carried(timeline: Timeline) -> dict[int, Numbers]:
    """Return iteration -> what was exchanged in it; for each, the first message that is like it."""
    found = collectives(timeline)
    spans, one = found.spans, found.rows[found.first]
    if not len(one):
        return {}
    columns = (spans.lane[one], spans.name[one], found.kinds, spans.detail[one])
    _, place, alike = np.unique(
        coded([*columns, found.most(spans.nbytes)]), return_index=True, return_inverse=True
    )
    number = spans.iteration[one]
    _, at = np.unique(coded([number, alike]), return_index=True)
    first = runs(number[at])
    each = np.split(place[alike[at]], first[1:])
    return dict(zip(number[at[first]].tolist(), each, strict=True))


def _joins(
    exchanged: Iterable[Message],
    known: dict[tuple[str, str], set[tuple[str, str, int]]],
) -> bool:
    """Say whether an iteration exchanges what others do, and add what it pulls to what they do."""
    mine: dict[tuple[str, str], set[tuple[str, str, int]]] = defaultdict(set)
    for one in exchanged:
        mine[one.lane, one.name].add((one.collective, one.algorithm, one.nbytes))
    pushes = {key for key in mine if key[0] == "push"}
    if known and pushes != {key for key in known if key[0] == "push"}:
        return False
    if not all(known.get(key, how) == how for key, how in mine.items()):
        return False
    known |= mine
    return True
