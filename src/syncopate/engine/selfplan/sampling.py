"""Sampling: what collectives cost, read off held steps of the training itself.

A held step launches every bucket at the end of backward, back to back. So it can carry the model's
gradients in any grouping, and each group is a sample of a collective of its size, with the traffic
that the training has anyway: nothing is sent for the measurement alone, and no size is measured
that no bucket can have.

[Note: ladder] Gradients are grouped into sizes that double from group to group; one plan more holds
all of them in one bucket. Any bucket of this model lies between two sizes of the ladder, and a
curve through them bends where collectives bend. The longest goes last, because the flags and
buffers that ride in the last bucket would make a small one longer.

[Note: back to back] A collective that waited behind another one takes from the end of that one to
its own end, in the mean over ranks: so the durations of a step add up to the time it spent. One
that a rank launched late, such as the first, takes as long as on the rank that joined last: the
minimum over ranks.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from syncopate.cluster import Cluster, CollectiveCurve, CurvePoint
from syncopate.costs.decide.options import best_options
from syncopate.costs.model.collective import schedule_cost
from syncopate.costs.model.fits import fit_linear
from syncopate.engine.selfplan.safe import Tensors, plan_of_groups
from syncopate.engine.step import Step
from syncopate.plan import Plan
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
_LATE_S = 0.5e-3

Timing = tuple[int, int, float, float]
"""``(bucket, bytes on the wire, start, end)`` of one collective, by one rank's clock."""


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

    Args:
        cluster: the machines, without curves.
        nbytes: size of the buffer.
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

    Args:
        model: what to call the model.
        tensors: every gradient.
        cluster: the machines, without curves.
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


def timings(step: Step) -> tuple[Timing, ...]:
    """Return when each collective of a step ran, in launch order, by this rank's clock."""
    return tuple(
        (push.bucket, push.nbytes, push.handle.started_s, push.handle.finished_s)
        for push in step.pushes
    )


def durations(ranks: Sequence[Sequence[Timing]]) -> list[float]:
    """Return what each collective of a held step took; see [Note: back to back].

    Args:
        ranks: the same step on every rank, all on one channel.
    """
    found: list[float] = []
    before = [-math.inf] * len(ranks)
    for same in zip(*ranks, strict=True):
        starts, ends = [timing[2] for timing in same], [timing[3] for timing in same]
        late = any(start > end + _LATE_S for start, end in zip(starts, before, strict=True))
        if late:
            found.append(min(end - start for start, end in zip(starts, ends, strict=True)))
        else:
            found.append(statistics.fmean(map(operator.sub, ends, before)))
        before = ends
    return [max(seconds, 0.0) for seconds in found]


class Samples:
    """Collects what held steps of sampling plans took, and draws curves through it."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._options: dict[tuple[str, int], Mapping[str, Any]] = {}

    def add(self, plan: Plan, ranks: Sequence[Sequence[Timing]]) -> None:
        """Take one held step of ``plan``, as every rank saw it."""
        for (index, nbytes, _, _), seconds in zip(ranks[0], durations(ranks), strict=True):
            recipe = plan.buckets[index].push.in_order(plan.order)
            self._seconds[recipe.algorithm, nbytes].append(seconds)
            self._options[recipe.algorithm, nbytes] = recipe.options

    def curves(self) -> tuple[CollectiveCurve, ...]:
        """Return one curve per algorithm."""
        names = dict.fromkeys(name for name, _ in self._seconds)
        return tuple(self._curve(name) for name in names)

    def _curve(self, name: str) -> CollectiveCurve:
        sizes = sorted(nbytes for known, nbytes in self._seconds if known == name)
        points = []
        orders = set()
        for nbytes in sizes:
            options = dict(self._options[name, nbytes])
            orders.add(tuple(options.pop(ORDER, ())))
            seconds = tuple(self._seconds[name, nbytes])
            points.append(CurvePoint(nbytes=nbytes, samples_s=seconds, options=options))
        return CollectiveCurve(
            collective=_COLLECTIVE,
            algorithm=name,
            points=tuple(points),
            fit=fit_linear([float(size) for size in sizes], [p.expected_s for p in points]),
            order=orders.pop(),
        )
