"""Sampling: what collectives cost, read off held steps of the training itself.

A held step launches every bucket at the end of backward, back to back. So it can carry the model's
gradients in any grouping, and each group is a sample of a collective of its size, with the traffic
that the training has anyway: nothing is sent for the measurement alone, and no size is measured
that no bucket can have.

[Note: ladder] Gradients are grouped into sizes that double from group to group; one plan more holds
all of them in one bucket. Any bucket of this model lies between two sizes of the ladder, and a
curve through them bends where collectives bend. The longest goes last, because the flags and
buffers that ride in the last bucket would make a small one longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint
from syncopate.artifacts.plan import Plan
from syncopate.costs.decide.options import best_options
from syncopate.costs.model.collective import schedule_cost
from syncopate.costs.model.fits import fit_linear
from syncopate.engine.selfplan.ddp_buckets import Tensors, plan_of_groups
from syncopate.profiling.timings import Timing, durations
from syncopate.recipe import ORDER, Recipe
from syncopate.schedules import registry
from syncopate.units import KIB, dtype_bytes

SMALLEST_BYTES = 4 * KIB
"""Where the ladder begins; smaller buckets cost what these cost."""

WITHIN = 1.5
"""Algorithms are sampled whose price is at most this many times the cheapest."""

MOST_ALGORITHMS = 3
"""How many algorithms are sampled at one size, the backend's own among them."""

_COLLECTIVE = "all_reduce"


def ladder(tensors: Tensors) -> tuple[Tensors, ...]:
    """Group gradients into sizes that double; see [Note: ladder].

    Args:
        tensors: every gradient, at least one.

    Returns:
        Disjoint groups that hold them all, in launch order.
    """
    ascending = sorted(tensors, key=_bytes)
    left = sum(map(_bytes, tensors))
    wanted = SMALLEST_BYTES
    groups: list[list[tuple[str, int, str]]] = [[]]
    filled = 0
    for tensor in ascending:
        # What cannot fill another group twice as large stays with this one.
        if filled >= wanted and left >= 2 * filled:
            wanted, filled = 2 * filled, 0
            groups.append([])
        groups[-1].append(tensor)
        filled += _bytes(tensor)
        left -= _bytes(tensor)
    longest = groups.pop()
    return (*reversed(groups), longest)


def _bytes(tensor: tuple[str, int, str]) -> int:
    _, numel, dtype = tensor
    return numel * dtype_bytes(dtype)


def contenders(cluster: Cluster, nbytes: int) -> tuple[Recipe, ...]:
    """Return the recipes worth sampling at a size, the backend's own algorithm first.

    The cluster has no curves.
    """
    found = [Recipe(_COLLECTIVE)]
    prices = {
        name: float(schedule_cost(cluster, _COLLECTIVE, name)(nbytes))
        for name in registry.candidates(_COLLECTIVE, cluster)
        if registry.ALGORITHMS[_COLLECTIVE, name].carries(nbytes)
    }
    limit_s = WITHIN * min(prices.values(), default=0.0)
    near = sorted((price_s, name) for name, price_s in prices.items() if price_s <= limit_s)
    for _, name in near[: MOST_ALGORITHMS - 1]:
        options = best_options(cluster, _COLLECTIVE, name, nbytes)
        found.append(Recipe(_COLLECTIVE, name, options=options))
    return tuple(found)


def sampling_plans(model: str, tensors: Tensors, cluster: Cluster) -> tuple[Plan, ...]:
    """Return the plans whose held steps sample every contender at every size once.

    The cluster has no curves.
    """
    plans: list[Plan] = []
    groupings = [ladder(tensors)]
    if len(groupings[0]) > 1:
        groupings.append((tensors,))
    for groups in groupings:
        bare = plan_of_groups(model, tensors, cluster.world_size, groups)
        recipes = [contenders(cluster, bucket.nbytes) for bucket in bare.buckets]
        for turn in range(max(map(len, recipes))):
            # Sizes start their turns at different algorithms, so that no step is all of one kind.
            chosen = [known[(turn + at) % len(known)] for at, known in enumerate(recipes)]
            buckets = tuple(
                structs.replace(bucket, push=recipe)
                for bucket, recipe in zip(bare.buckets, chosen, strict=True)
            )
            plans.append(structs.replace(bare, policy="sampling", buckets=buckets))
    return tuple(plans)


Held = tuple[Plan, Sequence[Sequence[Timing]]]
"""A held step: its plan, and what every rank saw of it."""


def curves_of(steps: Sequence[Held]) -> tuple[CollectiveCurve, ...]:
    """Return one curve per algorithm, through what held steps of sampling plans took."""
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    used: dict[tuple[str, int], Mapping[str, Any]] = {}
    for plan, ranks in steps:
        for (index, nbytes, _, _), took_s in zip(ranks[0], durations(ranks), strict=True):
            recipe = plan.buckets[index].push.in_order(plan.order)
            seconds[recipe.algorithm][nbytes].append(took_s)
            used[recipe.algorithm, nbytes] = recipe.options
    return tuple(
        _curve(name, sizes, {nbytes: used[name, nbytes] for nbytes in sizes})
        for name, sizes in seconds.items()
    )


def _curve(
    name: str, seconds: Mapping[int, Sequence[float]], used: Mapping[int, Mapping[str, Any]]
) -> CollectiveCurve:
    points, orders = [], set()
    for nbytes in sorted(seconds):
        options = dict(used[nbytes])
        orders.add(tuple(options.pop(ORDER, ())))
        points.append(CurvePoint(nbytes=nbytes, samples_s=tuple(seconds[nbytes]), options=options))
    return CollectiveCurve(
        collective=_COLLECTIVE,
        algorithm=name,
        points=tuple(points),
        fit=fit_linear([float(p.nbytes) for p in points], [p.expected_s for p in points]),
        order=orders.pop(),
    )
