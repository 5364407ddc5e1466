"""Blocks: into how many pieces a pipeline should cut a message, by the closed forms.

More blocks fill a pipeline sooner and cost a start-up each. On one level the closed form says how
many are best: with A(B) = A0 + A1 B start-ups and (C0 + C1 B)/B n seconds on the wire and adding,
``B = sqrt(n C0 / (α A1))``; LP's paper takes blocks of about 64 KB on any network. On several
levels the price decides, starting from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.papers.closed_forms import closed_form
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError
from syncopate.schedules.registry import ALGORITHMS, build, fitted, require

MAX_BLOCKS = 4096
"""Most blocks considered: beyond, blocks are smaller than is worth a message."""


def best_blocks(collective: str, algorithm: str, cluster: Cluster, nbytes: float) -> int:
    """Return the number of blocks that minimises the price of a pipeline on ``cluster``.

    Args:
        collective: such as ``"broadcast"``.
        algorithm: one that takes ``blocks``.
        cluster: the machines; ranks are taken in topology order.
        nbytes: size of the whole buffer; there are never more blocks than bytes.

    Raises:
        UnknownNameError: no such collective or algorithm.
        InvalidValueError: an algorithm that takes no blocks, or no size.

    Example:
        >>> best_blocks("broadcast", "lp", Cluster.preset("10gbe", 8), 100e6)
        106
    """
    _require_option(collective, algorithm, "blocks")
    if not (math.isfinite(nbytes) and nbytes >= 0):
        raise InvalidValueError("nbytes", nbytes, "finite and >= 0")
    most = int(max(1, min(nbytes, MAX_BLOCKS)))
    start = min(max(round(_optimum(collective, algorithm, cluster, nbytes)), 1), most)
    return _descend(_cost(collective, algorithm, cluster, nbytes), start, most)


def _require_option(collective: str, algorithm: str, option: str) -> None:
    require(collective, algorithm)
    if option not in ALGORITHMS[collective, algorithm].options:
        takers = [
            f"{found} ({row.name})"
            for (found, _), row in ALGORITHMS.items()
            if option in row.options
        ]
        raise InvalidValueError(
            "algorithm", f"{collective} ({algorithm})", f"one with {option}: {', '.join(takers)}"
        )


def _optimum(collective: str, algorithm: str, cluster: Cluster, nbytes: float) -> float:
    """Return the closed form's optimum, as if all links were as slow as the slowest."""
    alpha = max(level.latency_s for level in cluster.levels)
    beta = max(level.byte_time_s for level in cluster.levels)
    gamma = cluster.reduction_s_per_byte
    # Two points show the coefficients: counts are linear in the number of blocks from two on.
    two, three = (
        closed_form(collective, algorithm, cluster.world_size, blocks=blocks) for blocks in (2, 3)
    )
    per_block = three.startups - two.startups
    wire = 2 * two.wire - 2 * (3 * three.wire - 2 * two.wire)
    additions = 2 * two.additions - 2 * (3 * three.additions - 2 * two.additions)
    filling_s = nbytes * max(wire * beta + additions * gamma, 0.0)
    if filling_s == 0:
        return 1.0
    return math.sqrt(filling_s / (alpha * per_block)) if alpha * per_block > 0 else MAX_BLOCKS


def _cost(
    collective: str, algorithm: str, cluster: Cluster, nbytes: float
) -> Callable[[int], float]:
    """Return seconds as a function of the number of blocks."""
    joining = cluster.joining
    if len(joining) <= 1:
        level = joining[0] if joining else cluster.levels[0]
        network = (level.latency_s, level.byte_time_s, cluster.reduction_s_per_byte)

        def by_formula(blocks: int) -> float:
            terms = closed_form(collective, algorithm, cluster.world_size, blocks=blocks)
            return terms.seconds(nbytes, *network)

        return by_formula
    options = fitted(collective, algorithm, cluster)

    def by_price(blocks: int) -> float:
        schedule = build(
            collective, algorithm, cluster.world_size, **(options | {"blocks": blocks})
        )
        return price(schedule, cluster, nbytes)

    return by_price


def _descend(cost: Callable[[int], float], start: int, most: int) -> int:
    """Return the lowest point found from ``start`` by ever smaller steps, the last of them one."""
    best, lowest = start, cost(start)
    step = max(start // 2, 1)
    while True:
        found = [(cost(b), b) for b in (best - step, best + step) if 1 <= b <= most]
        value, where = min(found, default=(lowest, best))
        if value < lowest:
            best, lowest = where, value
        elif step == 1:
            return best
        else:
            step //= 2
