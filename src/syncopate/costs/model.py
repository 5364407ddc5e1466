"""Model: the costs of a collective on a cluster, one per algorithm, and their envelope.

A calibrated cluster is believed: where it has measured curves of a collective, they are its costs.
A cluster written by hand has none, and its costs are the prices of the registry's schedules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from syncopate.cluster import Cluster, LinearFit
from syncopate.costs.congestion import congestion_lines
from syncopate.costs.functions import FREE, CostFunction, CurveCost, Envelope, PiecewiseCost
from syncopate.costs.pieces import Pieces
from syncopate.costs.price import price_lines
from syncopate.errors import UnknownNameError
from syncopate.schedules.registry import NATIVE, algorithms, build, candidates


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
    registered = algorithms(collective)
    measured = {c.algorithm: c for c in cluster.curves if c.collective == collective}
    known = tuple(measured) or registered
    default = tuple(measured) or candidates(collective, cluster)
    if cluster.world_size == 1:
        known = default = tuple(dict.fromkeys((*known, *registered, NATIVE)))
    wanted = default if names is None else tuple(names)
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


def schedule_cost(cluster: Cluster, collective: str, algorithm: str) -> PiecewiseCost:
    """Return the price of an algorithm's schedule as a cost function.

    A price is the length of a longest path, the maximum of the lines that ``price_lines`` finds;
    where ranks share links, it is at least what the busiest link needs (``congestion.py``).

    Raises:
        UnknownNameError: no such algorithm.
    """
    schedule = build(collective, algorithm, cluster.world_size)
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
