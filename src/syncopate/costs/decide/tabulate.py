"""Tabulate: the decisions for a cluster as a table, with the runners-up of every range."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.decision_table import (
    Candidate,
    CollectiveDecisions,
    DecisionTable,
    SizeRange,
)
from syncopate.costs.decide.decisions import Decision, decisions, tied
from syncopate.costs.model.collective import collective_costs
from syncopate.costs.model.functions import CostFunction, CurveCost
from syncopate.output import Progress, say
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import collectives

_SMALLEST_BYTES = 4
_UNLIMITED_BYTES = 1 << 30
_UNLIMITED = 16
"""A range without limit is taken for one that ends at a gibibyte, or this many times above its
beginning."""


def decision_table(
    cluster: Cluster,
    wanted: Iterable[str] = (),
    among: Mapping[str, Collection[str]] | None = None,
    progress: Progress | None = None,
) -> DecisionTable:
    """Return which algorithm carries which sizes on ``cluster``.

    Args:
        cluster: the machines.
        wanted: collectives; all that have an algorithm when empty.
        among: the algorithms to choose from by collective, such as those that another library has
            too; a collective for which none of them has a cost here is left out. None for all.
        progress: called before every collective; those of a thousand ranks take seconds each.

    Raises:
        UnknownNameError: no such collective.
    """
    names = dict.fromkeys(tuple(wanted) or collectives())
    for name in names:
        conditions(name)
    choices = {
        name: None if among is None else _with_costs(cluster, name, among.get(name, ()))
        for name in names
    }
    return DecisionTable(
        cluster=cluster.name,
        world_size=cluster.world_size,
        hosts=cluster.host_count,
        probed=bool(cluster.probes),
        collectives=tuple(
            _decisions(cluster, name, choices[name])
            for name in _told(progress, [name for name in choices if choices[name] != ()])
        ),
    )


def _told(progress: Progress | None, names: Sequence[str]) -> Iterator[str]:
    """Yield the names, each told before the work on it begins."""
    for index, name in enumerate(names):
        say(progress, name, index / len(names))
        yield name
    say(progress, "", 1.0)


def _with_costs(cluster: Cluster, collective: str, names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in collective_costs(cluster, collective).costs if name in names)


def _decisions(
    cluster: Cluster, collective: str, among: tuple[str, ...] | None
) -> CollectiveDecisions:
    found = decisions(cluster, collective, among)
    # Runners-up are named, so that their prices are right however far behind they are.
    names = among or tuple(collective_costs(cluster, collective).costs)
    costs = collective_costs(cluster, collective, names).costs
    sizes = {p.nbytes for c in cluster.curves if c.collective == collective for p in c.points}
    return CollectiveDecisions(
        collective=collective,
        basis=found[0].basis,
        measured_bytes=(min(sizes), max(sizes)) if sizes else None,
        ranges=tuple(_range(each, costs, sizes) for each in found),
    )


def _range(
    decision: Decision, costs: Mapping[str, CostFunction], sizes: Collection[int]
) -> SizeRange:
    recipe, at = decision.recipe, _middle(decision, sizes)
    known = costs[recipe.algorithm].fixed(recipe.options)
    chosen = Candidate(
        algorithm=recipe.algorithm, options=recipe.options, expected_s=float(known(at))
    )
    others = [
        Candidate(
            algorithm=name,
            options=dict(cost.options(at)),
            expected_s=float(cost(at)),
            tied=tied(known, cost, at),
        )
        for name, cost in costs.items()
        if name != recipe.algorithm and _known(cost, at)
    ]
    return SizeRange(
        min_bytes=decision.min_bytes,
        max_bytes=decision.max_bytes,
        at_bytes=at,
        chosen=chosen,
        others=tuple(sorted(others, key=lambda other: other.expected_s)),
    )


def _middle(decision: Decision, sizes: Collection[int]) -> int:
    """Return the size that stands for a range: the middle one measured, or the middle by ratio."""
    last = math.inf if decision.max_bytes is None else decision.max_bytes
    inside = sorted(size for size in sizes if decision.min_bytes <= size <= last)
    if inside:
        return inside[len(inside) // 2]
    first = max(decision.min_bytes, min(_SMALLEST_BYTES, last))
    upper = max(first * _UNLIMITED, _UNLIMITED_BYTES) if last == math.inf else last
    return int(min(max(round(math.sqrt(first * upper)), first), last))


def _known(cost: CostFunction, nbytes: int) -> bool:
    """Say whether a cost was measured about ``nbytes``; a price is good at every size."""
    return not isinstance(cost, CurveCost) or cost.sizes[0] <= nbytes <= cost.sizes[-1]
