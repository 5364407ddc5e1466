"""Model: the costs of a collective on a cluster, one per algorithm, and their envelope.

A calibrated cluster is believed: where it has measured curves of a collective, they are its costs.
A cluster written by hand has none, and its costs are the prices of the registry's schedules.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from syncopate.cluster import Cluster
from syncopate.costs.functions import FREE, CostFunction, CurveCost, Envelope, PiecewiseCost
from syncopate.costs.pieces import FloatArray, Pieces
from syncopate.costs.price import price_many
from syncopate.errors import UnknownNameError
from syncopate.schedules.registry import NATIVE, algorithms, build

_GRID_BYTES: FloatArray = 2.0 ** (np.arange(0, 81) / 2)
"""Where schedules are priced: two sizes per octave, 1 byte to 1 TiB."""

_SAME_SLOPE = 1e-6


def collective_costs(
    cluster: Cluster, collective: str = "all_reduce", names: Iterable[str] | None = None
) -> Envelope:
    """Return the costs of ``collective`` on ``cluster``, by algorithm.

    Args:
        cluster: the machines; on a single rank every algorithm costs nothing.
        collective: such as ``"all_reduce"``.
        names: the algorithms wanted; by default all that were measured, or, when none was
            measured, all that the registry knows.

    Raises:
        UnknownNameError: no such collective, or an algorithm that was neither measured nor can be
            priced; ``"native"`` has no schedule and therefore no price.
    """
    registered = algorithms(collective)
    measured = {c.algorithm: c for c in cluster.curves if c.collective == collective}
    known = tuple(measured) or registered
    if cluster.world_size == 1:
        known = tuple(dict.fromkeys((*known, *registered, NATIVE)))
    wanted = known if names is None else tuple(names)
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

    A price is the length of a longest path, a maximum over paths of lines in the message size, so
    it is convex and piecewise linear. It is priced on a grid of sizes; between two grid points a
    bend is put where the lines on either side of it meet, which is exact wherever neighbouring
    bends are an octave or more apart.

    Raises:
        UnknownNameError: no such algorithm.
    """
    schedule = build(collective, algorithm, cluster.world_size)
    prices = np.asarray(price_many(schedule, cluster, _GRID_BYTES), float)
    return PiecewiseCost(_convex_pieces(_GRID_BYTES, np.maximum.accumulate(prices)))


def _convex_pieces(sizes: FloatArray, prices: FloatArray) -> Pieces:
    slopes = np.diff(prices) / np.diff(sizes)
    # Collinear chords are joined into one line through their outermost points.
    first = 0
    lines: list[tuple[float, float, float]] = []
    for chord in range(1, len(slopes) + 1):
        if chord < len(slopes) and np.isclose(slopes[chord], slopes[first], rtol=_SAME_SLOPE):
            continue
        slope = (prices[chord] - prices[first]) / (sizes[chord] - sizes[first])
        lines.append((float(sizes[chord]), float(prices[first] - slope * sizes[first]), slope))
        first = chord
    uppers, intercepts, steepness = (list(column) for column in zip(*lines, strict=True))
    _sharpen(uppers, intercepts, steepness)
    return Pieces.of(uppers, intercepts, steepness)


def _sharpen(uppers: list[float], intercepts: list[float], slopes: list[float]) -> None:
    """Replace a short chord across a bend by the lines beside it, where they meet inside it."""
    index = 1
    while index < len(uppers) - 1:
        before, after = index - 1, index + 1
        low, high = uppers[before], uppers[index]
        if high < 1.5 * low and slopes[after] > slopes[before]:
            meet = (intercepts[before] - intercepts[after]) / (slopes[after] - slopes[before])
            if low <= meet <= high:
                uppers[before] = meet
                del uppers[index], intercepts[index], slopes[index]
        index += 1
