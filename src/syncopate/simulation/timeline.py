"""From played iterations to a timeline, in the same form as a recorded one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from syncopate.artifacts.alike import shared
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, Bucket, Plan
from syncopate.artifacts.timeline import Alike, Span, Spans, Timeline
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.training import (
    beside_s,
    on_the_wire,
    plan_costs,
    weight_sync_s,
)
from syncopate.errors import InvalidValueError
from syncopate.recipe import Recipe, wire_share
from syncopate.simulation.iteration import Iteration, play_several
from syncopate.simulation.local_sgd import averages_of, play_average
from syncopate.simulation.traffic import Traffic, bytes_by_dtype, traffic_of


def simulate(
    workload: Workload,
    plan: Plan,
    cluster: Cluster,
    *,
    costs: Costs | None = None,
    iterations: int = 1,
) -> Timeline:
    """Play the first iterations of a training by a plan on a cluster.

    Every rank does the same at the same time: its spans are kept once. Iterations follow one
    another without a gap. The very first has no weights to pull; with a delay or local SGD it is
    the first after the warm-up. Where the plan has rank 0's weights broadcast, or all averaged,
    every so many end with that.

    Args:
        workload: the model's gradients and times.
        plan: what to communicate when; it must be for this workload and this many ranks.
        cluster: the machines.
        costs: by collective and bytes on the wire; by default those of the cluster in training.
        iterations: how many to play.

    Returns:
        A timeline with source ``"simulated"``. Per rank and iteration: a forward span from one wait
        for weights to the next, one backward span per tensor, a push span and, where there is one,
        a pull span per bucket (named ``"bucket 0"``, ...), a wait span for each time that
        computation stands still, and an update span. A push span (``"flags and buffers"``) and a
        pull span (``"weights of rank 0"``) may end it, each with a wait span; with local SGD a pull
        span per bucket and a wait span end every ``period``-th, and there are no pushes.

    Raises:
        PlanError: the plan is for another model or another number of ranks.
        InvalidValueError: fewer than one iteration, or more spans than ``MAX_SPANS``.
    """
    if iterations < 1:
        raise InvalidValueError("iterations", iterations, "an integer >= 1")
    plan.require_fit([(t.name, t.numel, t.dtype) for t in workload.tensors], cluster.world_size)
    _require_room(workload, plan, 1, iterations)
    parts: list[Spans] = []
    origin = 0.0
    patterns = _patterns if plan.local_sgd is None else _local_patterns
    for iteration, (pattern, lasts_s) in enumerate(
        patterns(workload, plan, cluster, costs, iterations)
    ):
        of_one = Spans.of(
            Span(start_s=origin + start, end_s=origin + end, rank=0, iteration=iteration, **fields)
            for start, end, fields in pattern
        )
        parts.append(of_one)
        origin += lasts_s
    alike = [Alike.of(0, range(cluster.world_size))] if cluster.world_size > 1 else []
    return Timeline(
        name=f"{workload.model}, {plan.policy}",
        source="simulated",
        world_size=cluster.world_size,
        spans=shared(Spans.joined(parts), alike, cluster.world_size),
        metadata={"cluster": cluster.name, "policy": plan.policy, "exchange": plan.exchange},
    )


def _require_room(workload: Workload, plan: Plan, world_size: int, iterations: int) -> None:
    """Refuse a timeline of more spans than have room, before anything is priced.

    Raises:
        InvalidValueError: says how many iterations, or ranks, there is room for.
    """
    # A span each, and the forward, the update and what is beside them.
    of_one = len(workload.tensors) + sum(len([*bucket.recipes]) for bucket in plan.buckets)
    if of_one * world_size * iterations <= MAX_SPANS:
        return
    held = f"a rank has about {of_one} spans in an iteration, and timelines hold {MAX_SPANS}"
    if fit := MAX_SPANS // (of_one * world_size):
        raise InvalidValueError(
            "iterations", iterations, f"at most {fit} on {world_size} ranks: {held}"
        )
    rule = f"at most {MAX_SPANS // of_one} to be played: {held}; a plan predicts more ranks"
    raise InvalidValueError("ranks", world_size, rule)


MAX_SPANS = 1 << 22
"""Of a timeline that is simulated: what writes it takes about 300 bytes of memory for each."""

_ROUNDING_S = 1e-9

_Pattern = list[tuple[float, float, dict[str, Any]]]
"""Start, end and the other fields of every span of one rank in one iteration."""


def _patterns(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, count: int
) -> Iterator[tuple[_Pattern, float]]:
    """Yield what happens in each iteration, from 0 on, and how long it lasts."""
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    traffic = _traffic(workload, plan, cluster, costs, share)
    told_s = beside_s(cluster, workload, plan.exchange, share)
    several = play_several(workload, traffic, cluster.interference, count, plan.delay)
    for iteration, played in enumerate(several):
        pattern = _pattern(workload, plan, played, share)
        pattern += _beside(workload, cluster, played.iteration_s, told_s)
        synced_s = _sync_s(workload, plan, cluster, costs, iteration)
        pattern += _sync(workload, played.iteration_s + told_s, synced_s)
        yield pattern, played.iteration_s + told_s + synced_s


def _local_patterns(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, count: int
) -> Iterator[tuple[_Pattern, float]]:
    """Yield the same of a plan whose ranks step by themselves."""
    assert plan.local_sgd is not None
    alone, average = averages_of(workload, plan, cluster, costs)
    averaged = play_average(average, cluster.interference)
    told_s = beside_s(cluster, workload, plan.exchange)
    for iteration, played in enumerate(play_several(workload, alone, cluster.interference, count)):
        pattern, end_s = _pattern(workload, plan, played, 1.0), played.iteration_s
        if (iteration + 1) % plan.local_sgd.period == 0:
            for index, bucket in enumerate(plan.buckets):
                fields = _of_bucket(index, bucket, "pull", bucket.push)
                start_s, stop_s = averaged.starts_s[index], averaged.ends_s[index]
                pattern.append((end_s + start_s, end_s + stop_s, fields))
            there_s = end_s + averaged.finishes_s[-1]
            pattern.append((end_s, there_s, {"name": "wait for averages", "lane": "wait"}))
            pattern += _beside(workload, cluster, there_s, told_s)
            end_s = there_s + told_s
        yield pattern, end_s


def _traffic(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, share: float
) -> Traffic:
    """Return the messages of a plan, of whose gradients ``share`` go on the wire."""
    costs = costs or plan_costs(cluster, workload.nbytes, plan)
    found = traffic_of(
        workload,
        plan.buckets,
        on_the_wire(costs, share, plan.exchange),
        plan.order,
        world_size=cluster.world_size,
        pull_order=plan.pull_order,
        cluster=cluster,
        deferred=EXCHANGES[plan.exchange].pulls_gradients,
    )
    return replace(found, behind=plan.pulled_behind)


def _sync_s(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, iteration: int
) -> float:
    """Return how long the broadcast takes that ends an iteration; 0.0 where none does."""
    if not plan.weight_sync_period or (iteration + 1) % plan.weight_sync_period:
        return 0.0
    return weight_sync_s(cluster, workload.nbytes, costs)


def _of_bucket(
    index: int, bucket: Bucket, lane: str, recipe: Recipe, share: float = 1.0
) -> dict[str, Any]:
    """Return the fields of a bucket's span, of whose bytes ``share`` go on the wire."""
    return {
        "name": f"bucket {index}",
        "lane": lane,
        "channel": recipe.channel,
        "nbytes": round(bucket.nbytes * share),
        "detail": recipe.algorithm,
    }


def _pattern(workload: Workload, plan: Plan, played: Iteration, share: float) -> _Pattern:
    """Return start, end and the other fields of every span of one rank in one iteration."""
    backward_end, done = played.backward_end_s, played.iteration_s - played.update_s
    pattern = [*_forward(workload, played), *_backward(workload, played)]
    narrow = ("push", "pull") if EXCHANGES[plan.exchange].pulls_gradients else ("push",)
    phases = {"push": (played.starts_s, played.ends_s)} if played.ends_s else {}
    if played.pull_ends_s:
        phases = {"pull": (played.pull_starts_s, played.pull_ends_s)} | phases
    for lane, (starts, ends) in phases.items():
        carried = [(i, one, dict(one.recipes).get(lane)) for i, one in enumerate(plan.buckets)]
        there = [(i, one, recipe) for i, one, recipe in carried if recipe is not None]
        for (index, bucket, recipe), start, end in zip(there, starts, ends, strict=True):
            fields = _of_bucket(index, bucket, lane, recipe, share if lane in narrow else 1.0)
            pattern.append((start, end, fields))
    if done > backward_end:
        pattern.append((backward_end, done, {"name": "wait for communication", "lane": "wait"}))
    if played.update_s > 0:
        pattern.append((done, played.iteration_s, {"name": "update", "lane": "update"}))
    return pattern


def _beside(workload: Workload, cluster: Cluster, start_s: float, lasts_s: float) -> _Pattern:
    """What ranks tell each other beside gradients, for which computation waits."""
    if not lasts_s:
        return []
    nbytes, end_s = workload.beside_nbytes(cluster.world_size), start_s + lasts_s
    return [
        (start_s, end_s, {"name": name, "lane": lane, "nbytes": held})
        for name, lane, held in (
            ("flags and buffers", "push", nbytes),
            ("wait for flags and buffers", "wait", 0),
        )
    ]


def _sync(workload: Workload, start_s: float, lasts_s: float) -> _Pattern:
    """The broadcast of rank 0's weights, for which computation waits."""
    if not lasts_s:
        return []
    end_s = start_s + lasts_s
    return [
        (start_s, end_s, {"name": name, "lane": lane, "nbytes": nbytes})
        for name, lane, nbytes in (
            ("weights of rank 0", "pull", workload.nbytes),
            ("wait for weights", "wait", 0),
        )
    ]


def _forward(workload: Workload, played: Iteration) -> _Pattern:
    """Forward, and the waits and updates that cut it."""
    cuts = [(start_s, end_s, _WAIT) for start_s, end_s in played.waits_s]
    cuts += [(start_s, end_s, _UPDATE) for start_s, end_s in _updates(played)]
    pattern: _Pattern = []
    start = 0.0
    for cut_start, cut_end, fields in sorted(cuts, key=lambda cut: cut[:2]):
        if cut_start > start:
            pattern.append((start, cut_start, {"name": "forward", "lane": "forward"}))
        pattern.append((cut_start, cut_end, dict(fields)))
        start = cut_end
    end = max(float(played.wall_s(_forward_s(workload, played))), start)
    if end > start or not pattern:
        pattern.append((start, end, {"name": "forward", "lane": "forward"}))
    return pattern


_WAIT = {"name": "wait for weights", "lane": "wait"}
_UPDATE = {"name": "update", "lane": "update"}


def _updates(played: Iteration) -> Iterator[tuple[float, float]]:
    """Yield when each stretch of updates in forward began and ended."""
    for begin_s, lasts_s in played.deferred:
        end_s = float(played.wall_s(begin_s + lasts_s))
        # What stood still before the update had made as much progress.
        stood_s = (b for a, b in played.waits_s if a <= played.wall_s(begin_s) + _ROUNDING_S <= b)
        yield max(float(played.wall_s(begin_s)), *stood_s, 0.0), end_s


def _forward_s(workload: Workload, played: Iteration) -> float:
    """Return the progress at which forward is over, the updates in it included."""
    return workload.forward_s + sum(update.lasts_s for update in played.deferred)


def _backward(workload: Workload, played: Iteration) -> _Pattern:
    pattern: _Pattern = []
    last_wait = max((end for _, end in played.waits_s), default=0.0)
    longer_s = _forward_s(workload, played) - workload.forward_s
    ready_s = [at_s + longer_s for at_s in (workload.forward_s, *workload.ready_s)]
    bounds = played.wall_s(ready_s).tolist()
    # Of weights that forward needs at its very end, it has progressed as far before the wait.
    bounds[0] = max(bounds[0], last_wait)
    for wait_start, wait_end in played.push_waits_s:
        pattern.append((wait_start, wait_end, {"name": "wait for pushes", "lane": "wait"}))
    for tensor, (reached, end) in zip(workload.tensors, pairwise(bounds), strict=True):
        stood = (b for a, b in played.push_waits_s if a <= reached + _ROUNDING_S < b)
        start = next(stood, reached)
        if end > start:
            pattern.append((start, end, {"name": tensor.name, "lane": "backward"}))
    if played.backward_end_s > bounds[-1]:
        fields = {"name": "backward", "lane": "backward"}
        pattern.append((bounds[-1], played.backward_end_s, fields))
    return pattern
