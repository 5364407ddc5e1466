"""Network: what else its links and switches do: other traffic on them, and sums made in switches.

Other traffic takes a constant share of a level's links, so that a training has the rest. Where
collectives were measured without it, each measurement is stretched by what the price of its
schedule is; the backend's own is taken for a ring.

[Note: aggregation] A switch that aggregates sends up one sum of what comes from below, and sends
what comes from above to all below it; one that cannot passes every stream on. So with s_i units on
a switch of level i, k_i streams go up from one unit to it, each as long as the message; of unequal
units, from the one that has the most:

    k_0 = 1,    k_(i+1) = 1 where level i aggregates, else s_i k_i.

Up and down are at the same time, in packets, and every link carries k_i streams in each direction:

    all-reduce:    T(n) = 2 (a_0 + .. + a_top) + n max(max_i k_i b_i, 1 / R)

with latencies a_i, seconds per byte b_i, and the rate R at which a switch makes sums, in bytes of
the sum. Where the outermost level cannot aggregate, one unit of it adds up the sums of all, in the
highest switch that can, at level h. With S = s_(h+1) .. s_top sums, a link of level j > h of that
unit carries those from outside it, S - s_(h+1) .. s_(j-1).

Parameter servers have links of the outermost level to themselves. A push is one way, a pull the
other, with k streams behind the outermost switch for S servers:

    push, pull:    T(n) = a_top + n max(max_i k_i b_i, k b_top / S, 1 / R).

Source: in-network computing as in SketchDLC, Fig. 2, whose paper leaves the model to simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, LinearFit
from syncopate.artifacts.level import Level
from syncopate.artifacts.plan import EXCHANGES, Plan
from syncopate.costs.model.collective import fixed_cost
from syncopate.costs.model.functions import Costs, Envelope, LinearCost, VariantCost
from syncopate.costs.model.pieces import IntArray
from syncopate.costs.model.unmeasured import for_native
from syncopate.costs.schedule.links import Machines
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import NATIVE, SERVERS

_SUMMED = "all_reduce"
"""Whose price tells how the backend's own is stretched."""


def busy(cluster: Cluster, shares: Mapping[str, float]) -> Cluster:
    """Return a cluster some of whose links carry other traffic too, another job's or anything.

    Args:
        cluster: the machines.
        shares: level -> the share of its links' bandwidth that other traffic takes, in [0, 1).

    Raises:
        UnknownNameError: a level that there is not.
        InvalidValueError: no such share.
    """
    for name, share in shares.items():
        _require_level(cluster, name)
        if not 0 <= share < 1:
            rule = "a number in [0, 1): the share of other traffic in the bandwidth"
            raise InvalidValueError(f"background on level {name}", share, rule)
    levels = tuple(
        replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * (1 - shares.get(level.name, 0.0)),
        )
        for level in cluster.levels
    )
    loaded = replace(cluster, levels=levels, curves=())
    curves = tuple(_stretched(curve, cluster, loaded) for curve in cluster.curves)
    said = ", ".join(f"{name}={share:g}" for name, share in shares.items())
    return replace(loaded, curves=curves, metadata=cluster.metadata | {"background": said})


def _stretched(curve: CollectiveCurve, cluster: Cluster, loaded: Cluster) -> CollectiveCurve:
    """Return a curve whose samples last longer, as the price of its schedule does."""

    def factor(nbytes: int, options: Mapping[str, Any]) -> float:
        name = curve.algorithm
        name = for_native(curve.collective) if name == NATIVE else name
        told = {} if curve.algorithm == NATIVE else options
        before_s, after_s = (
            float(fixed_cost(one, curve.collective, name, told)(nbytes))
            for one in (cluster, loaded)
        )
        return after_s / before_s if before_s > 0 else 1.0

    points = []
    for point in curve.points:
        longer = factor(point.nbytes, point.options)
        samples_s = tuple(longer * sample_s for sample_s in point.samples_s)
        points.append(replace(point, samples_s=samples_s))
    last = curve.points[-1]
    byte_s = curve.fit.b_s_per_byte * factor(last.nbytes, last.options)
    fit = LinearFit(a_s=curve.fit.a_s, b_s_per_byte=byte_s)
    return replace(curve, points=tuple(points), fit=fit)


@dataclass(frozen=True)
class Aggregation:
    """Which switches make sums, and how fast; see [Note: aggregation].

    Attributes:
        levels: whose switches can, by name; those of the others pass every stream on.
        rate_bytes_per_s: how many bytes of a sum a switch makes in a second; by default as fast as
            its links bring what it adds.

    Raises:
        InvalidValueError: no level, or a rate that is not above 0.
    """

    levels: tuple[str, ...]
    rate_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidValueError("levels that aggregate", self.levels, "at least one level")
        if not self.rate_bytes_per_s > 0:
            raise InvalidValueError("switch rate", self.rate_bytes_per_s, "above 0 bytes/s")


def aggregated_costs(cluster: Cluster, plan: Plan, aggregation: Aggregation) -> Costs:
    """Return what a plan's messages cost where switches make the sums; its algorithms do not count.

    Args:
        cluster: the machines.
        plan: of an exchange whose gradients are all-reduced or sent to servers.
        aggregation: which switches can.

    Raises:
        UnknownNameError: a level that there is not.
        InvalidValueError: another exchange.
    """
    recipes = [recipe for bucket in plan.buckets for _, recipe in bucket.recipes]
    summed = {recipe.collective for recipe in recipes} == {_SUMMED}
    if not (summed or EXCHANGES[plan.exchange].asks_servers):
        rule = "allreduce or served: switches make sums of gradients alone"
        raise InvalidValueError("exchange of the plan", plan.exchange, rule)

    def cost(options: Mapping[str, Any]) -> LinearCost:
        if summed:
            return all_reduce_cost(cluster, aggregation)
        return served_cost(cluster, aggregation, int(str(options[SERVERS])))

    by_name = {
        recipe.algorithm: VariantCost([(recipe.options, cost(recipe.options))], cost)
        for recipe in recipes
    }
    least_s = min(cost(recipe.options).fit.b_s_per_byte for recipe in recipes)
    envelope = Envelope(by_name, least_s, in_switches=True)
    return dict.fromkeys((recipe.collective for recipe in recipes), envelope)


def all_reduce_cost(cluster: Cluster, aggregation: Aggregation) -> LinearCost:
    """Return what an all-reduce costs where switches make the sums; see [Note: aggregation].

    Raises:
        UnknownNameError: a level that there is not.
    """
    levels, streams = _streams(cluster, aggregation)
    if not levels:
        return LinearCost(LinearFit(a_s=0.0, b_s_per_byte=0.0))
    able = [at for at, level in enumerate(levels) if level.name in aggregation.levels]
    if not able:
        rule = "one at least that joins several units"
        raise InvalidValueError("levels that aggregate", aggregation.levels, rule)
    top = able[-1] + 1
    links_s = [
        float(k.max()) * level.byte_time_s for k, level in zip(streams, levels[:top], strict=False)
    ]
    if levels[top:]:  # what the outermost switch passes on, the unit adds up that is quickest at it
        sums = streams[-1].sum()
        outer = zip(streams[top:], levels[top:], Machines(levels[top:]).units(), strict=False)
        into_s = [(sums - k[unit]) * level.byte_time_s for k, level, unit in outer]
        links_s.append(float(np.max(into_s, axis=0).min()))
    byte_s = max(*links_s, 1 / aggregation.rate_bytes_per_s)
    return LinearCost(
        LinearFit(a_s=2 * math.fsum(level.latency_s for level in levels), b_s_per_byte=byte_s)
    )


def served_cost(cluster: Cluster, aggregation: Aggregation, servers: int) -> LinearCost:
    """Return what a push to servers costs where switches make the sums, and so a pull.

    Args:
        cluster: the workers' machines.
        aggregation: which switches can.
        servers: how many there are.

    Raises:
        UnknownNameError: a level that there is not.
        InvalidValueError: fewer than one server.
    """
    if servers < 1:
        raise InvalidValueError(SERVERS, servers, "an integer >= 1")
    levels, streams = _streams(cluster, aggregation)
    outermost = cluster.levels[-1]
    links_s = [
        float(k.max()) * level.byte_time_s for k, level in zip(streams, levels, strict=False)
    ]
    to_each_s = float(streams[-1].sum()) / servers * outermost.byte_time_s
    rate_s = 1 / aggregation.rate_bytes_per_s if levels else 0.0
    byte_s = max(*links_s, to_each_s, outermost.byte_time_s, rate_s)
    return LinearCost(LinearFit(a_s=outermost.latency_s, b_s_per_byte=byte_s))


def _streams(
    cluster: Cluster, aggregation: Aggregation
) -> tuple[tuple[Level, ...], list[IntArray]]:
    """Return the levels that join several units, and how many streams come from each unit of them.

    Behind them stands how many leave the last one.
    """
    for name in aggregation.levels:
        _require_level(cluster, name)
    streams = [np.ones(cluster.world_size, np.int64)]
    for level in cluster.joining:
        below = streams[-1]
        firsts = (
            range(0, len(below), level.size)
            if isinstance(level.size, int)
            else ([level.held(unit)[0] for unit in range(len(level.size))])
        )
        passed = np.add.reduceat(below, firsts)
        streams.append(np.ones_like(passed) if level.name in aggregation.levels else passed)
    return cluster.joining, streams


def _require_level(cluster: Cluster, name: str) -> None:
    known = [level.name for level in cluster.levels]
    if name not in known:
        raise UnknownNameError("level", name, dict.fromkeys(known), cluster.name)
