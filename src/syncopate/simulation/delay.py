"""Delay: what a plan takes whose weights are pulled every k-th step, from shards or servers.

Buckets stay as they were planned for synchronous training: their pushes decide, and pulls have a
whole iteration to hide behind. Where forward is too short for all of them, the last ones go behind
the pushes of the next backward, which they would hold up else, and have the forward after it. What
a k does to accuracy is not predicted; so the smallest is proposed whose prediction is within noise
of the best.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, SERVED, SHARDED, Plan, Prediction
from syncopate.artifacts.workload import Workload
from syncopate.costs.decide.noise import DRIFT, NOISE
from syncopate.costs.model.bound import (
    plan_bound_s,
    require_possible,
    served_s_per_byte,
    wire_s,
)
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.training import beside_s
from syncopate.delay import Delay
from syncopate.recipe import SERVERS, wire_share
from syncopate.simulation.iteration import play_period
from syncopate.simulation.traffic import bytes_by_dtype, plan_traffic
from syncopate.units import format_seconds

_SHARES = 16
"""How finely the pulls behind the pushes are chosen: so many shares of all pulls."""

MOST_STEPS = 8
"""The largest k that is considered."""


def predict_delayed(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> Prediction:
    """Return what an iteration of a plan with a delay is expected to cost after its warm-up.

    In the mean over the k iterations from one pull to the next. The local update is taken to last
    as long as a whole update of all weights. Arguments and errors as in
    :func:`~syncopate.planning.question.predict`, which asks this for every plan with a delay.
    """
    assert plan.delay is not None
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    traffic = plan_traffic(workload, plan, cluster, costs, share)
    k = plan.delay.k
    period = play_period(workload, traffic, plan.delay, workload.interference_on(cluster))
    played_s = math.fsum(one.iteration_s for one in period) / len(period)
    communication_s = math.fsum(one.communication_s for one in period) / len(period)
    compute_s = period[0].compute_s
    beside_nbytes = workload.beside_nbytes(cluster.world_size)
    bound_s = plan_bound_s(
        cluster, plan.buckets, compute_s, share, beside_nbytes, pull_period=k, costs=costs
    )
    more_s = beside_s(cluster, workload, plan.exchange, share)
    played_s += more_s
    require_possible(played_s, bound_s, f"a plan for {workload.model!r}")
    iteration_s = max(played_s + workload.interference_on(cluster).unexplained_s, bound_s)
    return Prediction(
        iteration_s=iteration_s,
        compute_s=compute_s,
        communication_s=communication_s + more_s,
        exposed_s=max(iteration_s - compute_s, 0.0),
        bound_s=bound_s,
    )


def with_delay(
    plan: Plan, delay: Delay, workload: Workload, cluster: Cluster, costs: Costs | None = None
) -> Plan:
    """Return ``plan`` with a delay, and what it is then expected to cost.

    As many pulls go behind the pushes as is best. Args and errors are those of
    :func:`predict_delayed`.

    Raises:
        InvalidValueError: the plan is of an exchange that is not among ``Delay.EXCHANGES``.
    """
    changed = plan.delayed(delay)
    if delay.has_slack and plan.exchange == SHARDED:
        changed = _pulled_behind(changed, delay, workload, cluster, costs)
    found = predict_delayed(workload, changed, cluster, costs)
    steps = f"every {delay.k} steps" if delay.k > 1 else "after every step, one iteration late"
    reason = f"weights pulled {steps}: {format_seconds(found.iteration_s)}"
    if plan.prediction is not None:
        reason += f" against {format_seconds(plan.expected_s)} synchronously"
    return replace(changed, prediction=found, reason=reason)


def _pulled_behind(
    plan: Plan, delay: Delay, workload: Workload, cluster: Cluster, costs: Costs | None
) -> Plan:
    """Return ``plan`` with as many pulls behind the pushes as is best, if that gains anything."""
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    traffic = plan_traffic(workload, plan, cluster, costs, share)
    count = len(plan.buckets)

    def lasts_s(behind: int) -> float:
        tried = dataclasses.replace(traffic, behind=behind)
        period = play_period(workload, tried, delay, workload.interference_on(cluster))
        return math.fsum(one.iteration_s for one in period) / len(period)

    tried = {n: lasts_s(n) for n in {round(count * i / _SHARES) for i in range(_SHARES + 1)}}
    best = min(sorted(tried), key=tried.__getitem__)
    gains = tried[best] < tried[0] / (1 + DRIFT)
    changed: Plan = replace(plan, pulled_behind=best if gains else 0)
    return changed


def delays(plan: Plan, workload: Workload, cluster: Cluster) -> tuple[Plan, ...]:
    """Return ``plan`` with k = 1 .. ``MOST_STEPS`` and the usual local rule."""
    return tuple(with_delay(plan, Delay(k=k), workload, cluster) for k in range(1, MOST_STEPS + 1))


def proposed(plans: Sequence[Plan]) -> Plan:
    """Return the plan with the smallest k that is within noise of the fastest.

    Args:
        plans: with their predictions: the synchronous one, and those of :func:`delays`.
    """
    best_s = min(plan.expected_s for plan in plans)
    near = [plan for plan in plans if plan.expected_s <= (1 + NOISE) * best_s]
    return min(near, key=lambda plan: plan.pull_period)


def gains(plan: Plan, plans: Sequence[Plan]) -> str:
    """Say that no k gains anything, and why, where that is so; else nothing.

    Args:
        plan: the synchronous one.
        plans: those of :func:`delays`.
    """
    assert plan.prediction is not None
    now_s, best_s = plan.expected_s, min(each.expected_s for each in plans)
    if now_s > (1 + NOISE) * best_s:
        return ""
    return (
        f"no k gains more than the {NOISE:.0%} that predictions cannot tell apart: synchronous "
        f"training waits for the network in {format_seconds(plan.prediction.exposed_s)} of its "
        f"{format_seconds(now_s)}. Train without --pull-period, whose weights are never late"
    )


def limits(plan: Plan, workload: Workload, cluster: Cluster) -> str:
    """Say what no k can hide, where that is so; else nothing.

    Args:
        plan: of an exchange of ``Delay.EXCHANGES``.
        workload: the model's gradients and times.
        cluster: the machines.
    """
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    if plan.exchange == SERVED:
        servers = int(str(plan.buckets[0].push.options[SERVERS]))
        pushes_s = workload.nbytes * served_s_per_byte(cluster, servers)
        more_s = workload.nbytes * served_s_per_byte(cluster, max(servers, cluster.world_size))
        instead = f"more servers than {servers}; " if more_s < pushes_s else ""
    else:
        pushes_s = wire_s(cluster, workload.nbytes * share, EXCHANGES[plan.exchange].push)
        narrow = "gradients of 16 bits (wire_dtype='bfloat16') halve that; "
        instead = "" if plan.wire_dtype else narrow
    computing_s = workload.forward_s + workload.backward_s
    if pushes_s <= computing_s:
        return ""
    return (
        f"pushes alone keep the wire busy for {format_seconds(pushes_s)} in every iteration, "
        f"longer than the {format_seconds(computing_s)} of forward and backward, and no k changes "
        f"that: {instead}larger batches, or several accumulated under no_sync(), push less often"
    )
