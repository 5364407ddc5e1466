"""Factors: the numbers of ranks per level that hierarchical algorithms divide the world into."""

from __future__ import annotations

import math
from collections.abc import Sequence

from syncopate.artifacts.cluster import Cluster
from syncopate.errors import InvalidValueError


def default_factors(world_size: int) -> tuple[int, ...]:
    """Return the most even factorisation into two: innermost the smaller; a prime is its own."""
    inner = next(f for f in range(math.isqrt(world_size), 0, -1) if world_size % f == 0)
    return (world_size,) if inner == 1 else (inner, world_size // inner)


def cluster_factors(cluster: Cluster) -> tuple[int, ...]:
    """Return the sizes of the cluster's levels, innermost first, leaving out those of one unit."""
    return tuple(level.size for level in cluster.levels if level.size > 1) or (1,)


def require_factors(world_size: int, factors: Sequence[int]) -> None:
    """Refuse factors that do not make up the world (BlueConnect, Eq. 5).

    Raises:
        InvalidValueError: they do not.
    """
    if not factors or min(factors) < 1 or math.prod(factors) != world_size:
        raise InvalidValueError(
            "factors",
            tuple(factors),
            f"integers >= 1, innermost first, whose product is the world size, {world_size}",
        )
