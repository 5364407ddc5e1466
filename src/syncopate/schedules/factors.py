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
    """Return the sizes of the cluster's levels, innermost first, leaving out those of one unit.

    Stages need groups of equal size. So the levels from the first on that has unequal units are
    taken for one: hosts of 8 in racks of 3 and 5 are 8 x 8.
    """
    equal = equal_sizes(cluster)
    rest = cluster.world_size // math.prod(equal)
    return (*equal, rest) if rest > 1 else equal or (1,)


def equal_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Return the sizes of the levels that join anything, up to the first of unequal units."""
    found = []
    for level in cluster.joining:
        if level.equal_size is None:
            break
        found.append(level.equal_size)
    return tuple(found)


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
