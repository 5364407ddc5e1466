"""From a played iteration to a timeline, in the same form as a recorded one."""

from __future__ import annotations

from itertools import pairwise

from syncopate.cluster import Cluster
from syncopate.costs.functions import Envelope
from syncopate.costs.model import collective_costs
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
        costs: all-reduce costs; by default those of the cluster.
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
    costs = costs or collective_costs(cluster)
    played = play(workload, plan.buckets, costs, cluster.interference)
    spans: list[Span] = []
    for iteration in range(iterations):
        origin = iteration * played.iteration_s
        for rank in range(cluster.world_size):
            spans += _spans(workload, plan, played, rank, iteration, origin)
    return Timeline(
        name=f"{workload.model}, {plan.policy}",
        source="simulated",
        world_size=cluster.world_size,
        spans=tuple(spans),
        metadata={"cluster": cluster.name, "policy": plan.policy},
    )


def _spans(
    workload: Workload, plan: Plan, played: Iteration, rank: int, iteration: int, origin: float
) -> list[Span]:
    def span(name: str, lane: str, start: float, end: float, **details: object) -> Span:
        return Span(
            name=name,
            lane=lane,
            rank=rank,
            iteration=iteration,
            start_s=origin + start,
            end_s=origin + max(start, end),
            **details,  # type: ignore[arg-type]
        )

    bounds = played.wall_s([workload.forward_s, *workload.ready_s]).tolist()
    spans = [span("forward", "forward", 0.0, bounds[0])]
    for tensor, (start, end) in zip(workload.tensors, pairwise(bounds), strict=True):
        if end > start:
            spans.append(span(tensor.name, "backward", start, end))
    if played.backward_end_s > bounds[-1]:
        spans.append(span("backward", "backward", bounds[-1], played.backward_end_s))
    for index, bucket in enumerate(plan.buckets):
        spans.append(
            span(
                f"bucket {index}",
                "push",
                played.starts_s[index],
                played.ends_s[index],
                channel=bucket.channel,
                nbytes=bucket.nbytes,
                detail=bucket.algorithm,
            )
        )
    done = played.iteration_s - workload.update_s
    if done > played.backward_end_s:
        spans.append(span("wait for communication", "wait", played.backward_end_s, done))
    if workload.update_s > 0:
        spans.append(span("update", "update", done, played.iteration_s))
    return spans
