"""Delay: what a plan of the sharded exchange takes where weights are pulled every k-th step.

Buckets stay as they were planned for synchronous training: their pushes decide, and pulls have a
whole iteration to hide behind. What a k does to accuracy nobody predicts; so the smallest is
proposed whose prediction is within noise of the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from syncopate.cluster import Cluster
from syncopate.costs.decide.decisions import NOISE
from syncopate.costs.model.bound import plan_bound_s, require_possible, wire_s
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.training import beside_s, exchange_costs, on_the_wire
from syncopate.delay import GLU, Delay
from syncopate.plan import EXCHANGES, SHARDED, Plan, Prediction
from syncopate.recipe import wire_share
from syncopate.simulation.iteration import play_period
from syncopate.simulation.traffic import bytes_by_dtype, traffic_of
from syncopate.units import format_seconds
from syncopate.workload import Workload

MOST_STEPS = 8
"""The largest k that is considered."""


def predict_delayed(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> Prediction:
    """Return what an iteration of a plan with a delay is expected to cost after its warm-up.

    In the mean over the k iterations from one pull to the next. The local update is taken to last
    as long as a whole update of all weights.

    Args:
        workload: what is computed and made ready.
        plan: with a delay.
        cluster: the machines, as many ranks as the plan is for.
        costs: by collective and bytes on the wire; by default those of the cluster in training.

    Raises:
        PlanError: the buckets do not hold the workload's gradients.
        UnknownNameError: a bucket's algorithm has no cost on this cluster.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    assert plan.delay is not None
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    traffic = traffic_of(
        workload,
        plan.buckets,
        on_the_wire(costs or exchange_costs(cluster, workload.nbytes, plan.exchange), share),
        plan.order,
        world_size=cluster.world_size,
        pull_order=plan.pull_order,
        cluster=cluster,
    )
    k = plan.delay.k
    period = play_period(workload, traffic, plan.delay, cluster.interference)
    played_s = math.fsum(one.iteration_s for one in period) / k
    compute_s = period[0].compute_s
    beside_nbytes = workload.beside_nbytes(cluster.world_size)
    bound_s = plan_bound_s(cluster, plan.buckets, compute_s, share, beside_nbytes, pull_period=k)
    more_s = beside_s(cluster, workload, plan.exchange, share)
    played_s += more_s
    require_possible(played_s, bound_s, f"a plan for {workload.model!r}")
    iteration_s = max(played_s + cluster.interference.unexplained_s, bound_s)
    return Prediction(
        iteration_s=iteration_s,
        compute_s=compute_s,
        communication_s=math.fsum(one.communication_s for one in period) / k + more_s,
        exposed_s=max(iteration_s - compute_s, 0.0),
        bound_s=bound_s,
    )


def with_delay(
    plan: Plan, delay: Delay, workload: Workload, cluster: Cluster, costs: Costs | None = None
) -> Plan:
    """Return ``plan`` with a delay, and what it is then expected to cost.

    Args and errors are those of :func:`predict_delayed`.

    Raises:
        InvalidValueError: the plan is of another exchange than ``sharded``.
    """
    changed = plan.delayed(delay)
    found = predict_delayed(workload, changed, cluster, costs)
    reason = f"weights pulled every {delay.k} steps: {format_seconds(found.iteration_s)}"
    if plan.prediction is not None:
        reason += f" against {format_seconds(_expected_s(plan))} after every step"
    return replace(changed, prediction=found, reason=reason)


def delays(
    plan: Plan,
    workload: Workload,
    cluster: Cluster,
    local_update: str = GLU,
    *,
    costs: Costs | None = None,
) -> tuple[Plan, ...]:
    """Return ``plan`` with k = 1 .. ``MOST_STEPS`` and a local rule."""
    return tuple(
        with_delay(plan, Delay(k=k, local_update=local_update), workload, cluster, costs)
        for k in range(1, MOST_STEPS + 1)
    )


def proposed(plans: Sequence[Plan]) -> Plan:
    """Return the plan with the smallest k that is within noise of the fastest.

    Args:
        plans: with their predictions: the synchronous one, and those of :func:`delays`.
    """
    best_s = min(_expected_s(plan) for plan in plans)
    near = [plan for plan in plans if _expected_s(plan) <= (1 + NOISE) * best_s]
    return min(near, key=lambda plan: plan.pull_period)


def limits(plan: Plan, workload: Workload, cluster: Cluster) -> str:
    """Say what no k can hide, where that is so; else nothing.

    Args:
        plan: of the sharded exchange.
        workload: the model's gradients and times.
        cluster: the machines.
    """
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    pushes_s = wire_s(cluster, workload.nbytes * share, EXCHANGES[SHARDED].push)
    computing_s = workload.forward_s + workload.backward_s
    if pushes_s <= computing_s:
        return ""
    narrow = "" if plan.wire_dtype else "gradients of 16 bits (wire_dtype='bfloat16') halve that; "
    return (
        f"pushes alone keep the wire busy for {format_seconds(pushes_s)} in every iteration, "
        f"longer than the {format_seconds(computing_s)} of forward and backward, and no k changes "
        f"that: {narrow}larger batches, or several accumulated under no_sync(), push less often"
    )


def _expected_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s
