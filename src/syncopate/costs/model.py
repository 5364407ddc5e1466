"""Model: the costs of a collective on a cluster, one per algorithm, and their envelope.

A calibrated cluster is believed: where it has measured curves of a collective, they are its costs.
A cluster written by hand has none, and its costs are the prices of the registry's schedules, each
with the options that suit the cluster and the size (:func:`variants`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from syncopate.cluster import Cluster, LinearFit
from syncopate.costs.blocks import PIPELINES
from syncopate.costs.congestion import congestion_lines
from syncopate.costs.execution import execution_cost
from syncopate.costs.functions import (
    FREE,
    CostFunction,
    CurveCost,
    Envelope,
    PiecewiseCost,
    VariantCost,
)
from syncopate.costs.pieces import Pieces
from syncopate.costs.price import price_lines
from syncopate.costs.remembered import remembered
from syncopate.errors import UnknownNameError
from syncopate.schedules.registry import (
    ALGORITHMS,
    NATIVE,
    algorithms,
    build,
    candidates,
    fitted,
)
from syncopate.units import KIB

BLOCKS = tuple(2**k for k in range(9))
"""Numbers of blocks considered. A pipeline with half or twice the best number costs at most a
quarter more, and one within a factor of the square root of two at most 6%."""

NEAR = 0.03
"""Prices of pipelines closer than this share are not told apart."""

_SHORTEST_BLOCK_BYTES = 64 * KIB


def collective_costs(
    cluster: Cluster, collective: str = "all_reduce", names: Iterable[str] | None = None
) -> Envelope:
    """Return the costs of ``collective`` on ``cluster``, by algorithm.

    Args:
        cluster: the machines; on a single rank every algorithm costs nothing.
        collective: such as ``"all_reduce"``.
        names: the algorithms wanted; by default all that were measured, or, when none was
            measured, all that the registry holds worth considering on this cluster.

    Raises:
        UnknownNameError: no such collective, or an algorithm that was neither measured nor can be
            priced; ``"native"`` has no schedule and therefore no price.
    """
    return _collective_costs(cluster, collective, None if names is None else tuple(names))


@remembered
def _collective_costs(cluster: Cluster, collective: str, names: tuple[str, ...] | None) -> Envelope:
    registered = algorithms(collective)
    measured = {c.algorithm: c for c in cluster.curves if c.collective == collective}
    known = tuple(measured) or registered
    default = tuple(measured) or candidates(collective, cluster)
    if cluster.world_size == 1:
        known = default = tuple(dict.fromkeys((*known, *registered, NATIVE)))
    wanted = default if names is None else names
    costs: dict[str, CostFunction] = {}
    for name in wanted:
        if name not in known:
            raise UnknownNameError("algorithm", name, known, f"{collective} on {cluster.name!r}")
        if cluster.world_size == 1:
            costs[name] = FREE
        elif measured:
            costs[name] = CurveCost(measured[name])
        else:
            costs[name] = schedule_cost(cluster, collective, name)
    return Envelope(costs)


@remembered
def schedule_cost(cluster: Cluster, collective: str, algorithm: str) -> VariantCost:
    """Return the price of an algorithm, at every size with the best options of :func:`variants`.

    Worked out once for a cluster and remembered.

    Raises:
        UnknownNameError: no such algorithm.
    """
    found = [
        (options, fixed_cost(cluster, collective, algorithm, options))
        for options in variants(cluster, collective, algorithm)
    ]
    return VariantCost(found, lambda options: fixed_cost(cluster, collective, algorithm, options))


def variants(cluster: Cluster, collective: str, algorithm: str) -> tuple[dict[str, Any], ...]:
    """Return the options with which an algorithm is worth pricing on ``cluster``, simplest first.

    Those that fit it (:func:`~syncopate.schedules.registry.fitted`), and with them every number of
    :data:`BLOCKS`, or of :data:`~syncopate.costs.blocks.PIPELINES` where there are levels to work
    at the same time.

    Raises:
        UnknownNameError: no such algorithm.
    """
    fitting = fitted(collective, algorithm, cluster)
    known = ALGORITHMS[collective, algorithm].options
    if "blocks" in known:
        return tuple(fitting | {"blocks": blocks} for blocks in BLOCKS)
    if "pipelines" in known and len(cluster.levels) > 1:
        return tuple(fitting | {"pipelines": count} for count in PIPELINES)
    return (fitting,)


def best_variant(
    cluster: Cluster, collective: str, algorithm: str, nbytes: float
) -> dict[str, Any]:
    """Return the options with which an algorithm should run: the cheapest, but for pipelines.

    Of those whose prices are within ``NEAR`` of the cheapest, the one of most blocks runs, as long
    as these are no shorter than LP's 64 KB. How long a pipeline takes to fill is arithmetic; what a
    block costs a processor beside the link is what prices know least.

    Args:
        cluster: the machines.
        collective: such as ``"broadcast"``.
        algorithm: a registered name.
        nbytes: size of the whole buffer.

    Raises:
        UnknownNameError: no such algorithm.
    """
    cost = schedule_cost(cluster, collective, algorithm)
    best = dict(cost.options(nbytes))
    if "blocks" not in best:
        return best
    limit_s = (1 + NEAR) * float(cost(nbytes))
    near = [
        options
        for options in variants(cluster, collective, algorithm)
        if nbytes >= options["blocks"] * _SHORTEST_BLOCK_BYTES
        and float(cost.fixed(options)(nbytes)) <= limit_s
    ]
    return max([best, *near], key=lambda options: options["blocks"])


def fixed_cost(
    cluster: Cluster, collective: str, algorithm: str, options: Mapping[str, Any]
) -> PiecewiseCost:
    """Return the price of an algorithm's schedule with given options, as a cost function.

    On a calibrated cluster that is what the executor is expected to take (``execution.py``). By
    the papers' model, which is all that is known of a cluster written by hand, it is the length of
    a longest path, the maximum of the lines that ``price_lines`` finds; where ranks share links, at
    least what the busiest link needs (``congestion.py``).

    Raises:
        UnknownNameError: no such algorithm or option.
        InvalidValueError: no such value of an option.
    """
    schedule = build(collective, algorithm, cluster.world_size, **options)
    if cluster.handling:
        return PiecewiseCost(execution_cost(schedule, cluster))
    return PiecewiseCost(
        highest_line((*price_lines(schedule, cluster), *congestion_lines(schedule, cluster)))
    )


def highest_line(lines: Iterable[LinearFit]) -> Pieces:
    """Return the maximum of lines ``a + b n`` over n > 0 as pieces."""
    hull: list[LinearFit] = []
    starts: list[float] = []
    for line in sorted(lines, key=lambda line: (line.b_s_per_byte, line.a_s)):
        start = 0.0
        while hull:
            start = _crossing(hull[-1], line)
            if start > starts[-1]:
                break
            # The line before is overtaken no later than it overtook the one before it.
            hull.pop()
            starts.pop()
        if start < math.inf:
            hull.append(line)
            starts.append(start if hull[:-1] else 0.0)
    return Pieces.of(
        [*starts[1:], math.inf],
        [line.a_s for line in hull],
        [line.b_s_per_byte for line in hull],
    )


def _crossing(flat: LinearFit, steep: LinearFit) -> float:
    """Return from which size on ``steep`` is at least ``flat``; ``steep`` is not less steep."""
    gain = steep.b_s_per_byte - flat.b_s_per_byte
    head_start = flat.a_s - steep.a_s
    if head_start <= 0:
        return 0.0
    return head_start / gain if gain > 0 else math.inf
