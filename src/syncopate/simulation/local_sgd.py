"""Local SGD: what a plan takes where ranks step by themselves, and weights are averaged.

Nothing is sent between averages. An average begins when the update ends and overlaps nothing: all
buckets are there at once, and go over their channels as the plan says.
"""

from __future__ import annotations

import math
from dataclasses import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.plan import Plan, Prediction
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import plan_bound_s, require_possible
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.training import beside_s
from syncopate.simulation.fluid import Collective, Piece, Run, run
from syncopate.simulation.iteration import play_traffic
from syncopate.simulation.layout import Closing
from syncopate.simulation.traffic import Traffic, plan_traffic


def play_closing(closing: Closing, interference: Interference) -> Run:
    """Play what ends an iteration, from 0 on; the last piece waits for all of it."""
    sums = [Collective(0.0, one.duration_s, one.startup_s, one.channel) for one in closing]
    return run([Piece(0.0), Piece(0.0, tuple(range(len(sums))))], sums, interference)


def averages_of(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> tuple[Traffic, Traffic]:
    """Return what an iteration by itself sends, which is nothing, and what an average sends.

    Weights travel in their own type, however gradients do.

    Args:
        workload: the model's gradients and times.
        plan: with local SGD.
        cluster: the machines.
        costs: by collective; by default those of the cluster in training.
    """
    found = plan_traffic(workload, plan, cluster, costs, 1.0)
    return replace(found, pushes=()), found


def predict_averaged(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> Prediction:
    """Return what an iteration of local SGD is expected to cost after its warm-up.

    That is computation, and of an average one ``period``-th.

    Args:
        workload: what is computed.
        plan: with local SGD.
        cluster: the machines, as many ranks as the plan is for.
        costs: by collective; by default those of the cluster in training.

    Raises:
        PlanError: the buckets do not hold the workload's gradients.
        UnknownNameError: a bucket's algorithm has no cost on this cluster.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    assert plan.local_sgd is not None
    period = plan.local_sgd.period
    alone, average = averages_of(workload, plan, cluster, costs)
    played = play_traffic(workload, alone, workload.interference_on(cluster))
    more_s = beside_s(cluster, workload, plan.exchange)
    overlap = workload.interference_on(cluster)
    averaged_s = play_closing(average.pushes, overlap).finishes_s[-1] + more_s
    sent_s = math.fsum(push.duration_s for push in average.pushes) + more_s
    beside_nbytes = workload.beside_nbytes(cluster.world_size)
    wire_s = plan_bound_s(cluster, plan.buckets, 0.0, 1.0, beside_nbytes, costs=costs)
    bound_s = max(played.compute_s, wire_s / period)
    iteration_s = played.iteration_s + averaged_s / period
    require_possible(iteration_s, bound_s, f"a plan for {workload.model!r}")
    return Prediction(
        iteration_s=max(iteration_s, bound_s),
        compute_s=played.compute_s,
        communication_s=sent_s / period,
        exposed_s=max(iteration_s - played.compute_s, 0.0),
        bound_s=bound_s,
    )
