"""Bound: the iteration time that no plan can beat.

To all-reduce n bytes over u units, each unit has to send at least ``2 (u-1)/u n`` bytes
(Patarasuk and Yuan 2009), by any algorithm. At every level of the network the units are the
groups that its links join, and an iteration takes at least as long as its computation:

    bound = max(compute, max over levels of 2 (u-1)/u n / bandwidth)

[Note: of every exchange] A reduce-scatter and an all-gather each need half of that, so that sharded
training has the same bound. A bucket reduced to one root has to be sent by every other unit and
received by the root's, and the weights go the same way back; over all buckets the busiest unit has
``max(n - n_u, n_u)`` to send or receive twice, where n_u are the bytes of which it is the root: all
n with a single root, and as little as (u-1)/u n where they are spread.

[Note: of servers] Where parameter servers hold the weights, every worker sends all gradients and
receives all weights, over a link that does both at once; so does each server with its share of
all others'. The bound is that of one direction, however seldom the other is used.

[Note: of switches] Where switches make the sums, ranks exchange less: what a byte takes there is
told by the costs (``simulation/network.py``). Weights of servers go the other way, meanwhile.

[Note: line rate] The rate of a line is that of the level's links, which calibration measures by
long messages between pairs. Collectives correct it only where an algorithm's long ones, the median
of them and bursts allowed for, were faster than the links by more than ``FASTER``: when ranks share
memory, or switches add. Differences between two sizes say nothing about it; between neighbouring
ones they are noise. Short collectives say how much may pass faster than the line, in a burst, once.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import unit_counts
from syncopate.artifacts.plan import SERVED, Bucket
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.remembered import remembered
from syncopate.costs.schedule.links import Machines
from syncopate.errors import InvalidValueError, PredictionError
from syncopate.recipe import ROOTED, SERVERS
from syncopate.schedules.conditions import Place, conditions
from syncopate.units import MIB, format_seconds

if TYPE_CHECKING:  # it loads scipy, which no rank needs
    from syncopate.costs.model.functions import Costs

FASTER = 0.1
"""A measured collective contradicts the rate of the links if it is faster by this share."""

LONG_BYTES = MIB
"""From this size on a collective says something about line rate; see [Note: line rate]."""

_ROUNDING = 1e-9


def wire_bytes(world_size: int, nbytes: float, collective: str = "all_reduce") -> float:
    """Return the bytes that the busiest of ``world_size`` units must send or receive at least.

    Args:
        world_size: units, as many as take part; >= 1.
        nbytes: the total buffer.
        collective: such as ``"all_reduce"``.

    Raises:
        UnknownNameError: no such collective.
    """
    found = conditions(collective)
    if world_size == 1:
        return 0.0
    if found.rooted:
        return nbytes
    ways = 2 if Place.SHARD not in (found.start, found.end) else 1
    return ways * (world_size - 1) / world_size * nbytes


def line_s_per_byte(cluster: Cluster, collective: str = "all_reduce") -> float:
    """Return what a collective takes per byte at the line rate of the cluster's links, at least.

    Raises:
        UnknownNameError: no such collective.
    """
    seconds = 0.0
    for level, units in zip(cluster.levels, unit_counts(cluster.levels), strict=False):
        if level.joins:
            seconds = max(seconds, wire_bytes(units, 1.0, collective) * level.byte_time_s)
    return seconds


def wire_s(cluster: Cluster, nbytes: float, collective: str = "all_reduce") -> float:
    """Return the least time in which a collective can carry ``nbytes`` on ``cluster``.

    See [Note: line rate]. What all-reduces show of the links holds for the other collectives too.
    """
    s_per_byte, burst_bytes, burst_s = _line(cluster)
    beyond_s = burst_s + s_per_byte * (nbytes - burst_bytes)
    all_reduce_s = max(min(s_per_byte * nbytes, beyond_s), 0.0)
    whole = line_s_per_byte(cluster)
    return all_reduce_s * (line_s_per_byte(cluster, collective) / whole) if whole else all_reduce_s


@remembered
def _line(cluster: Cluster) -> tuple[float, float, float]:
    """Return the seconds per byte at line rate, and the size and time of the largest burst."""
    line = line_s_per_byte(cluster)
    curves = [curve for curve in cluster.curves if curve.collective == "all_reduce"]
    lag_s = max(level.burst_bytes * level.byte_time_s for level in cluster.levels)
    for curve in curves:
        long = [p for p in curve.points if p.nbytes >= LONG_BYTES]
        if long:
            shown = statistics.median((p.expected_s + lag_s) / p.nbytes for p in long)
            contradicted = shown < (1 - FASTER) * line_s_per_byte(cluster)
            line = min(line, shown) if contradicted else line
    points = [p for curve in curves for p in curve.points]
    short = [(p.nbytes, p.expected_s) for p in points if p.nbytes < LONG_BYTES]
    size, seconds = max(short, key=lambda p: line * p[0] - p[1], default=(0, 0.0))
    return line, float(size), seconds


def served_s_per_byte(cluster: Cluster, servers: int) -> float:
    """Return what a byte of gradients takes that every worker sends to servers, at line rate.

    The busier of the links of workers, or of units of them, and those of servers, which are of the
    outermost level.
    """
    seconds = 0.0
    for level, unit in zip(cluster.levels, Machines(cluster.levels).units(), strict=True):
        if level.joins or level is cluster.levels[-1]:
            seconds = max(seconds, int(np.bincount(unit).max()) * level.byte_time_s)
    return max(seconds, cluster.world_size / servers * cluster.levels[-1].byte_time_s)


def iteration_bound_s(workload: Workload, cluster: Cluster) -> float:
    """Return the physical bound of one training iteration in seconds."""
    nbytes = workload.nbytes + workload.beside_nbytes(cluster.world_size)
    return max(workload.compute_s, wire_s(cluster, nbytes))


def plan_bound_s(
    cluster: Cluster,
    buckets: Sequence[Bucket],
    compute_s: float,
    share: float = 1.0,
    beside_nbytes: int = 0,
    *,
    pull_period: int = 1,
    pull_share: float = 1.0,
    costs: Costs | None = None,
) -> float:
    """Return the physical bound of an iteration by a plan; see [Note: of every exchange].

    Args:
        cluster: the machines.
        buckets: of the plan.
        compute_s: forward, backward and update alone.
        share: of their bytes, what goes on the wire when gradients are pushed.
        beside_nbytes: what all ranks are told besides.
        pull_share: of their bytes, what goes on the wire when buckets are pulled.
        pull_period: weights are pulled every so many iterations, of which each bears an equal part.
        costs: by collective and these bytes, where they may be those of sums in switches.
    """
    pushed = (costs or {}).get(buckets[0].push.collective)
    if pushed is not None and pushed.in_switches:
        # [Note: of switches]
        sent_s = sum(bucket.nbytes for bucket in buckets) * pushed.least_s_per_byte
        return max(compute_s, sent_s)
    if buckets[0].push.algorithm == SERVED:
        # [Note: of servers]
        servers = int(str(buckets[0].push.options.get(SERVERS, cluster.world_size)))
        sent_s = sum(bucket.nbytes for bucket in buckets) * served_s_per_byte(cluster, servers)
        return max(compute_s, sent_s)
    seconds = 0.0
    if any(bucket.pull is not None for bucket in buckets):
        seconds = wire_s(cluster, beside_nbytes)
        beside_nbytes = 0
    for phase in ("push", "pull"):
        by_collective: dict[str, Counter[int]] = {}
        for bucket in buckets:
            if (recipe := dict(bucket.recipes).get(phase)) is not None:
                by_root = by_collective.setdefault(recipe.collective, Counter())
                by_root[recipe.root] += bucket.nbytes
        for collective, by_root in by_collective.items():
            nbytes = float(sum(by_root.values()))
            if phase == "push":
                nbytes = share * (nbytes + beside_nbytes)
            else:
                nbytes *= pull_share
            whole_s = wire_s(cluster, nbytes, collective)
            if collective in ROOTED:
                whole_s *= _busiest_root(cluster, by_root)
            seconds += whole_s / (pull_period if phase == "pull" else 1)
    return max(compute_s, seconds)


def _busiest_root(cluster: Cluster, by_root: Mapping[int, int]) -> float:
    """Return what the busiest unit sends with these roots, as a share of that with a single one."""
    nbytes = sum(by_root.values())
    most = 0.0
    for level, unit in zip(cluster.levels, Machines.of(cluster).units(), strict=True):
        of_unit: Counter[int] = Counter()
        for root, held in by_root.items():
            of_unit[int(unit[root])] += held
        if level.joins and nbytes:
            least = min(of_unit.values()) if len(of_unit) == int(unit.max()) + 1 else 0
            # What the others are the roots of is at least what any one of them is.
            most = max(most, (nbytes - least) / nbytes * level.byte_time_s)
    single = line_s_per_byte(cluster, "reduce")
    return most / single if single else 0.0


def require_possible(iteration_s: float, bound_s: float, what: str) -> None:
    """Refuse a prediction below the physical bound.

    Args:
        iteration_s: the prediction.
        bound_s: of :func:`plan_bound_s`.
        what: whose prediction.

    Raises:
        PredictionError: it is below the bound.
        InvalidValueError: it is no duration.
    """
    if not (math.isfinite(iteration_s) and iteration_s >= 0):
        raise InvalidValueError("predicted iteration", iteration_s, "a finite duration in seconds")
    if iteration_s < bound_s * (1 - _ROUNDING):
        raise PredictionError(
            f"{what} is predicted to take {format_seconds(iteration_s)} per iteration, less than "
            f"the {format_seconds(bound_s)} that computation and the network take at least; this "
            "is a bug in the costs it was priced with: calibrate again, or report it with the "
            "cluster and the workload"
        )
