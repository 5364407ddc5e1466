"""Rails: collectives by levels where the units of outer levels are unequal, one rail of many.

Stages at the inner levels, whose units are equal, have a formula: in every round all ranks do the
same. What is left is one stage among groups of ranks, hosts say, that stand in units of unequal
size. In it every rank of a group exchanges data with one rank of each other group, and all of them
do so at the same time: that makes as many *rails* as a group has ranks, which carry the same over
the same links, each with an equal share of them. So one rail is played, on links of that share.
Groups begin the stage together, and one that is through goes on by itself, so times add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.model.pieces import Pieces, summed
from syncopate.costs.papers.levels import Links, inner_stages
from syncopate.costs.schedule.price import price_pieces
from syncopate.recipe import ORDER
from syncopate.schedules.compose import topology_order
from syncopate.schedules.factors import cluster_factors
from syncopate.schedules.registry import build

RAILED = {
    ("all_reduce", "blueconnect"): (True, True),
    ("reduce_scatter", "hierarchical"): (True, False),
    ("all_gather", "hierarchical"): (False, False),
}
"""Collectives by levels: whether they add, and whether they go back as well."""


def rail_pieces(
    cluster: Cluster,
    collective: str,
    algorithm: str,
    options: Mapping[str, Any],
    rival: Pieces | None = None,
) -> Pieces | None:
    """Return the price of a collective by levels, of which outer ones have unequal units.

    Args:
        cluster: the machines.
        collective: its name.
        algorithm: one that works by levels.
        options: ``factors``, ``stages``, ``pipelines`` and ``order``, as the registry has checked
            them.
        rival: as for :func:`~syncopate.costs.schedule.price.price_pieces`.

    Returns:
        None for another algorithm, where units of all levels or of the innermost are so, where
        options do not fit the levels, and where ranks are not in their order.
    """
    links = Links(cluster)
    factors = cluster_factors(cluster)
    near = tuple(options.get(ORDER) or range(links.ranks)) == topology_order(cluster)
    fits = tuple(options.get("factors") or ()) == factors and options.get("pipelines", 1) == 1
    if (collective, algorithm) not in RAILED or links.equal or not links.sizes:
        return None
    stages = tuple(options.get("stages") or ("recursive",) * len(factors))
    if not (near and fits) or not set(stages) <= {"ring", "recursive"}:
        return None
    adds, back = RAILED[collective, algorithm]
    inside = inner_stages(links, stages, adds=adds, back=back)
    group = links.ranks // factors[-1]
    schedule = build(collective, algorithm, factors[-1], factors=factors[-1:], stages=stages[-1:])
    rail = price_pieces(schedule, _rail(links), None if rival is None else rival.of_share(group))
    line = Pieces.of([float("inf")], [inside.start], [inside.per_byte])
    return summed([(1.0, rail.of_share(1 / group)), (1.0, line)])


def _rail(links: Links) -> Cluster:
    """Return the groups with the share of each link that one rank of a group has."""
    inner = len(links.sizes)
    group = links.units[-1] * links.sizes[-1]
    narrowest = min(
        level.bandwidth_bytes_per_s / unit
        for level, unit in zip(links.levels[:inner], links.units, strict=True)
    )
    first, *others = (
        replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / group)
        for level in links.levels[inner:]
    )
    # All that leaves a group passes its inner links too, which no other group uses.
    rate = min(first.bandwidth_bytes_per_s, narrowest)
    levels = (replace(first, bandwidth_bytes_per_s=rate), *others)
    return Cluster(name="a rail", levels=levels, reduction_s_per_byte=links.gamma)
