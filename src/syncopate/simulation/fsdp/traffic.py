"""Traffic of units: gathers and reduce-scatters, priced on the ranks that share the weights.

[Note: groups] With groups of ranks (HSDP) a unit is gathered and reduce-scattered within a group,
over the inner levels of the cluster. Then every rank all-reduces its shard with those of the other
groups, all of them at once; together they send what one all-reduce of the whole unit between the
groups would, over the outer levels. What was measured was measured on all ranks, so that on groups
the prices of schedules count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import sizes_text
from syncopate.artifacts.plan import FSDP, Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs, startup_part_s
from syncopate.costs.model.remembered import remembered
from syncopate.costs.model.training import exchange_costs, plan_costs, training_costs
from syncopate.errors import InvalidValueError
from syncopate.simulation.fluid import Collective
from syncopate.simulation.traffic import Gathers, Traffic, traffic_of

GATHERS, SCATTERS = 0, 1
"""The channels of a plan of units."""

_ACROSS = "all_reduce"
_ACROSS_CHANNEL = 2


class Groups(NamedTuple):
    """The machines as units see them.

    Attributes:
        inner: those of a group of ranks that share all weights.
        outer: of the groups, each of which is one rank there; None where all ranks are one group.
    """

    inner: Cluster
    outer: Cluster | None = None


@remembered
def groups_of(cluster: Cluster, ranks: int) -> Groups:
    """Return the machines within a group of so many ranks, and between the groups.

    Args:
        cluster: the machines.
        ranks: those that share all weights; 0 for all.

    Raises:
        InvalidValueError: they are not what some of the inner levels join.
    """
    if ranks in (0, cluster.world_size):
        return Groups(cluster)
    joined, possible = 1, []
    for place, level in enumerate(cluster.levels[:-1], start=1):
        if level.equal_size is None or cluster.placement:
            break
        joined *= level.equal_size
        if joined == ranks:
            apart = {"curves": (), "probes": (), "hosts": (), "warnings": ()}
            inner = structs.replace(cluster, levels=cluster.levels[:place], **apart)
            # Each of a group's ranks adds up its own share of what comes from the other groups.
            shared = cluster.reduction_s_per_byte / ranks
            outer = structs.replace(
                cluster, levels=cluster.levels[place:], reduction_s_per_byte=shared, **apart
            )
            return Groups(inner, outer)
        possible += [joined] if joined > 1 else []
    known = ", ".join(map(str, possible)) or "none"
    rule = f"0 for all {cluster.world_size} ranks, or as many as inner levels join ({known} of "
    rule += f"levels of {sizes_text(cluster.levels)})"
    raise InvalidValueError("ranks of sharding", ranks, rule)


def unit_costs(
    cluster: Cluster, nbytes: int, ranks: int = 0, names: tuple[str, ...] | None = None
) -> Costs:
    """Return what the collectives of units cost within a group.

    Args:
        cluster: the machines.
        nbytes: of all weights together.
        ranks: those that share all weights; 0 for all.
        names: the algorithms wanted; by default the best.

    Raises:
        UnknownNameError: an algorithm that was neither measured nor can be priced.
        InvalidValueError: there are no such groups.
    """
    return exchange_costs(groups_of(cluster, ranks).inner, nbytes, FSDP, names)


def unit_traffic(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> Traffic:
    """Return the messages of a plan of units.

    Args:
        workload: the model's gradients and times.
        plan: of the ``fsdp`` exchange.
        cluster: the machines.
        costs: of the collectives within a group; by default those of the cluster in training.

    Raises:
        PlanError: the buckets do not hold the workload's gradients.
        UnknownNameError: a bucket's algorithm has no cost on this cluster.
        InvalidValueError: the cluster has no such groups of ranks.
    """
    sharding = plan.sharding
    assert sharding is not None
    inner, outer = groups_of(cluster, sharding.ranks)
    if costs is None:
        costs = plan_costs(inner, workload.nbytes, plan)
    # ``fully_shard`` cuts every tensor, also those that an optimizer looks at whole.
    cut = structs.replace(workload, whole=())
    ranks = inner.world_size
    found = traffic_of(cut, plan.buckets, costs, plan.order, world_size=ranks)
    across: list[Collective] = []
    if outer is not None:
        cost = training_costs(outer, workload.nbytes, None, _ACROSS)
        for bucket in plan.buckets:
            best = cost.bucket([bucket.nbytes])
            startup_s = startup_part_s(cost.of(best.algorithm), [bucket.nbytes], best.seconds)
            across.append(Collective(0.0, best.seconds, startup_s, _ACROSS_CHANNEL))
    behind = 0 if workload.metadata.get("device") == "cpu" else 1
    again = sharding.again(len(plan.buckets))
    gathers = Gathers(again, sharding.prefetch, behind, tuple(across))
    return replace(found, gathers=gathers)
