"""Options: how an algorithm should run on a cluster at a given size.

Calibration and self-planning measure with these options. A curve records them, so that plans,
``algorithm="auto"`` and benchmarks on a calibrated cluster run what was measured. Where nothing was
measured, a plan runs with the cheapest options, because its seconds are the price of these.
"""

from __future__ import annotations

from typing import Any

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.model.collective import schedule_cost, variants
from syncopate.units import KIB

NEAR = 0.03
"""Prices of pipelines closer than this share are not told apart."""

_SHORTEST_BLOCK_BYTES = 64 * KIB


def best_options(
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
