"""Planner: from a workload, a cluster and a policy to a plan with its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from msgspec import structs

from syncopate.cluster import Cluster
from syncopate.costs.bound import iteration_bound_s, require_possible
from syncopate.costs.functions import Envelope
from syncopate.costs.model import training_costs
from syncopate.errors import InvalidValueError
from syncopate.plan import NATIVE, Bucket, Plan, Prediction
from syncopate.planning.problem import DDP_BUCKET_BYTES, Partition, Problem
from syncopate.planning.registry import POLICIES, Policy, require_policy
from syncopate.planning.search import search
from syncopate.schedules.options import ORDER
from syncopate.simulation.iteration import play
from syncopate.workload import Workload


def make_plan(
    workload: Workload,
    cluster: Cluster,
    policy: str = "optimal",
    *,
    algorithm: str | None = None,
    threshold_bytes: int = DDP_BUCKET_BYTES,
    costs: Envelope | None = None,
    channels: int = 1,
) -> Plan:
    """Plan the gradient communication of a workload on a cluster.

    Every policy gets the cheapest algorithm for each of its buckets, so that policies differ in
    their partitions alone.

    Args:
        workload: the model's gradients and times.
        cluster: the machines.
        policy: a name in ``POLICIES``.
        algorithm: use this algorithm for every bucket; by default the cheapest for each.
        threshold_bytes: what the ``threshold`` policy fills a bucket to.
        costs: all-reduce costs by algorithm; by default those of the cluster in training.
        channels: concurrent collectives; buckets take the channels in turn.

    Returns:
        A plan with its prediction.

    Raises:
        UnknownNameError: no such policy, or no cost for the algorithm; lists those there are.
        InvalidValueError: a threshold or number of channels below 1.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    row = require_policy(policy)
    if channels < 1:
        raise InvalidValueError("channels", channels, "an integer >= 1")
    costs = _costs(workload, cluster, algorithm, costs)
    problem = _problem(workload, costs, threshold_bytes)
    partition = _partition(row, problem, workload, cluster, channels)
    buckets = _buckets(workload, problem, costs, partition, channels)
    buckets, order = _with_one_order(buckets)
    return Plan(
        model=workload.model,
        fingerprint=workload.fingerprint,
        world_size=cluster.world_size,
        policy=policy,
        buckets=buckets,
        channels=channels,
        prediction=predict(workload, buckets, cluster, costs, order),
        cluster=cluster.name,
        order=order,
    )


def compare(
    workload: Workload,
    cluster: Cluster,
    policies: Iterable[str] | None = None,
    *,
    algorithm: str | None = None,
    threshold_bytes: int = DDP_BUCKET_BYTES,
    costs: Envelope | None = None,
    channels: int = 1,
) -> tuple[Plan, ...]:
    """Plan with several policies, by default all, in the order of ``POLICIES``.

    Args and errors are those of :func:`make_plan`.
    """
    costs = _costs(workload, cluster, algorithm, costs)
    return tuple(
        make_plan(
            workload,
            cluster,
            policy,
            threshold_bytes=threshold_bytes,
            costs=costs,
            channels=channels,
        )
        for policy in (POLICIES if policies is None else policies)
    )


def predict(
    workload: Workload,
    buckets: Sequence[Bucket],
    cluster: Cluster,
    costs: Envelope | None = None,
    order: tuple[int, ...] = (),
) -> Prediction:
    """Return what a plan's buckets are expected to cost in one iteration.

    Args:
        workload: what is computed and made ready.
        buckets: in launch order; together every gradient exactly once.
        cluster: the machines, for interference and the physical bound.
        costs: all-reduce costs by algorithm; by default those of the cluster in training.
        order: the plan's order of the ranks.

    Raises:
        PlanError: the buckets do not hold the workload's gradients.
        UnknownNameError: a bucket's algorithm has no cost on this cluster.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    costs = costs or training_costs(cluster, workload.nbytes)
    played = play(workload, buckets, costs, cluster.interference, order)
    bound_s = iteration_bound_s(workload, cluster)
    require_possible(played.iteration_s, bound_s, f"a plan for {workload.model!r}")
    return Prediction(
        iteration_s=played.iteration_s,
        compute_s=played.compute_s,
        communication_s=played.communication_s,
        exposed_s=played.exposed_s,
        bound_s=bound_s,
    )


def _costs(
    workload: Workload, cluster: Cluster, algorithm: str | None, costs: Envelope | None
) -> Envelope:
    if costs is not None:
        return costs if algorithm is None else costs.only(algorithm)
    return training_costs(cluster, workload.nbytes, None if algorithm is None else (algorithm,))


def _problem(workload: Workload, costs: Envelope, threshold_bytes: int) -> Problem:
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in workload.tensors))
    nbytes = np.zeros((len(dtypes), len(workload.tensors)))
    for index, tensor in enumerate(workload.tensors):
        nbytes[dtypes.index(tensor.dtype), index] = tensor.nbytes
    return Problem(workload.ready_s, nbytes, costs, threshold_bytes=threshold_bytes)


def _partition(
    row: Policy, problem: Problem, workload: Workload, cluster: Cluster, channels: int
) -> Partition:
    partition = row.partition(problem)
    interference = cluster.interference
    ideal = interference.compute_rate == 1 and interference.collective_stretch == 1
    if row.searches and (channels > 1 or not ideal):
        return search(problem, partition, workload, interference, channels)
    return partition


def _buckets(
    workload: Workload,
    problem: Problem,
    costs: Envelope,
    partition: Partition,
    channels: int,
) -> tuple[Bucket, ...]:
    buckets = []
    for index, (start, stop) in enumerate(pairwise((0, *partition))):
        sizes = (problem.offsets[:, stop] - problem.offsets[:, start]).tolist()
        algorithm, options, _ = costs.bucket(sizes)
        buckets.append(
            Bucket(
                tensors=tuple(tensor.name for tensor in workload.tensors[start:stop]),
                nbytes=round(sum(sizes)),
                algorithm=algorithm,
                channel=index % channels,
                options=dict(options),
            )
        )
    return tuple(buckets)


def _with_one_order(buckets: Sequence[Bucket]) -> tuple[tuple[Bucket, ...], tuple[int, ...]]:
    """Take the order of the ranks, of one entry per rank, out of buckets that all follow the same.

    Returns:
        The buckets, and their order; none where they follow none, or several.
    """
    scheduled = [bucket for bucket in buckets if bucket.algorithm != NATIVE]
    orders = {bucket.options.get(ORDER) for bucket in scheduled}
    order = orders.pop() if len(orders) == 1 else None
    if not isinstance(order, tuple):
        return tuple(buckets), ()
    return tuple(
        structs.replace(b, options={k: v for k, v in b.options.items() if k != ORDER})
        for b in buckets
    ), tuple(int(rank) for rank in order)
