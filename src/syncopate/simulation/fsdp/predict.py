"""Predict: what an iteration of a plan of units is expected to cost, and the least it can.

All weights are gathered once, those that do not stay gathered twice, and all gradients
reduce-scattered, over the links within a group of ranks; between groups all gradients are
all-reduced over other links:

    bound = max(compute, (G(n) + G(n of the units gathered again) + R(n)) / line, A(n) / outer line)

with the least bytes that each collective needs (:mod:`syncopate.costs.model.bound`).
"""

from __future__ import annotations

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, FSDP, Plan, Prediction
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import require_possible, wire_s
from syncopate.costs.model.functions import Costs
from syncopate.simulation.fsdp.traffic import groups_of, unit_traffic
from syncopate.simulation.iteration import play_traffic


def predict_units(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> Prediction:
    """Return what a plan of units is expected to cost in one iteration.

    Arguments and errors as in :func:`~syncopate.planning.question.predict`, which asks this for
    every plan with a sharding.
    """
    traffic = unit_traffic(workload, plan, cluster, costs)
    interference = workload.interference_on(cluster)
    played = play_traffic(workload, traffic, interference)
    bound_s = unit_bound_s(plan, cluster, played.compute_s)
    require_possible(played.iteration_s, bound_s, f"a plan for {workload.model!r}")
    iteration_s = max(played.iteration_s + interference.unexplained_s, bound_s)
    return Prediction(
        iteration_s=iteration_s,
        compute_s=played.compute_s,
        communication_s=played.communication_s,
        exposed_s=max(iteration_s - played.compute_s, 0.0),
        bound_s=bound_s,
    )


def unit_bound_s(plan: Plan, cluster: Cluster, compute_s: float) -> float:
    """Return the physical bound of an iteration by a plan of units; see the module.

    Args:
        plan: of the ``fsdp`` exchange.
        cluster: the machines.
        compute_s: forward, backward and update alone.

    Raises:
        InvalidValueError: the cluster has no such groups of ranks.
    """
    assert plan.sharding is not None
    inner, outer = groups_of(cluster, plan.sharding.ranks)
    kind, sizes = EXCHANGES[FSDP], [bucket.nbytes for bucket in plan.buckets]
    again = sum(sizes[unit] for unit in plan.sharding.again(len(sizes)))
    sent_s = wire_s(inner, sum(sizes) + again, kind.pull) + wire_s(inner, sum(sizes), kind.push)
    across_s = wire_s(outer, sum(sizes)) if outer is not None else 0.0
    return max(compute_s, sent_s, across_s)
