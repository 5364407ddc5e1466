"""From a played iteration to a timeline, in the same form as a recorded one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from syncopate.cluster import Cluster
from syncopate.costs.functions import Envelope
from syncopate.costs.model import training_costs
from syncopate.errors import InvalidValueError
from syncopate.plan import Plan
from syncopate.simulation.iteration import Iteration, play
from syncopate.timeline import Span, Timeline
from syncopate.workload import Workload


def simulate(
    workload: Workload,
    plan: Plan,
    cluster: Cluster,
    *,
    costs: Envelope | None = None,
    iterations: int = 1,
) -> Timeline:
    """Play a plan on a cluster.

    Every rank does the same at the same time: the model has no stragglers. Iterations follow one
    another without a gap.

    Args:
        workload: the model's gradients and times.
        plan: what to communicate when; it must be for this workload and this many ranks.
        cluster: the machines.
        costs: all-reduce costs; by default those of the cluster in training.
        iterations: how many to play.

    Returns:
        A timeline with source ``"simulated"``. Per rank and iteration: one forward span, one
        backward span per tensor, one push span per bucket (named ``"bucket 0"``, ...), a wait span
        when communication ends after backward, and an update span.

    Raises:
        PlanError: the plan is for another model or another number of ranks.
        InvalidValueError: fewer than one iteration.
    """
    if iterations < 1:
        raise InvalidValueError("iterations", iterations, "an integer >= 1")
    plan.require_fit([(t.name, t.numel, t.dtype) for t in workload.tensors], cluster.world_size)
    costs = costs or training_costs(cluster, workload.nbytes)
    played = play(workload, plan.buckets, costs, cluster.interference, plan.order)
    pattern = _pattern(workload, plan, played)
    spans: list[Span] = []
    for iteration in range(iterations):
        origin = iteration * played.iteration_s
        for rank in range(cluster.world_size):
            of_iteration: dict[str, Any] = {"rank": rank, "iteration": iteration}
            spans += [
                Span(start_s=origin + start, end_s=origin + end, **of_iteration, **fields)
                for start, end, fields in pattern
            ]
    return Timeline(
        name=f"{workload.model}, {plan.policy}",
        source="simulated",
        world_size=cluster.world_size,
        spans=tuple(spans),
        metadata={"cluster": cluster.name, "policy": plan.policy},
    )


def _pattern(
    workload: Workload, plan: Plan, played: Iteration
) -> list[tuple[float, float, dict[str, Any]]]:
    """Return start, end and the other fields of every span of one rank in one iteration."""
    bounds = played.wall_s([workload.forward_s, *workload.ready_s]).tolist()
    backward_end, done = played.backward_end_s, played.iteration_s - workload.update_s
    pattern: list[tuple[float, float, dict[str, Any]]] = [
        (0.0, bounds[0], {"name": "forward", "lane": "forward"})
    ]
    for tensor, (start, end) in zip(workload.tensors, pairwise(bounds), strict=True):
        if end > start:
            pattern.append((start, end, {"name": tensor.name, "lane": "backward"}))
    if backward_end > bounds[-1]:
        pattern.append((bounds[-1], backward_end, {"name": "backward", "lane": "backward"}))
    for index, bucket in enumerate(plan.buckets):
        fields = {
            "name": f"bucket {index}",
            "lane": "push",
            "channel": bucket.channel,
            "nbytes": bucket.nbytes,
            "detail": bucket.algorithm,
        }
        pattern.append((played.starts_s[index], played.ends_s[index], fields))
    if done > backward_end:
        pattern.append((backward_end, done, {"name": "wait for communication", "lane": "wait"}))
    if workload.update_s > 0:
        pattern.append((done, played.iteration_s, {"name": "update", "lane": "update"}))
    return pattern
