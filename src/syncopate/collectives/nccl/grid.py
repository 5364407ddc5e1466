"""Grid: where the ranks of a group stand in the levels of a hierarchy.

With p = p0 p1 .. pk, innermost first, the rank that plays r in the order has the coordinates
c0 = r mod p0, c1 = (r / p0) mod p1, and so on (BlueConnect, Section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from syncopate.schedules.factors import default_factors, require_factors


@dataclass(frozen=True)
class Grid:
    """The levels of p ranks, and who stands where.

    Attributes:
        factors: ranks per level, innermost first, each > 1; none for a single rank.
        order: the rank that plays each of 0, 1, .., p - 1.
    """

    factors: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(
        cls,
        world_size: int,
        factors: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
    ) -> Grid:
        """Return the grid that an algorithm's options describe, without levels of one rank.

        Raises:
            InvalidValueError: the factors do not make up the world.
        """
        sizes = default_factors(world_size) if factors is None else tuple(factors)
        require_factors(world_size, sizes)
        everyone = tuple(range(world_size)) if order is None else tuple(order)
        return cls(tuple(size for size in sizes if size > 1), everyone)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the place of ``rank`` in every level."""
        return tuple(np.argwhere(self._ranks == rank)[0].tolist())

    def members(self, rank: int, level: int) -> tuple[int, ...]:
        """Return the ranks that differ from ``rank`` in ``level`` alone, by their place in it.

        Example:
            >>> Grid.of(6, (2, 3)).members(rank=3, level=1)
            (1, 3, 5)
        """
        place: list[int | slice] = [*self.coordinates(rank)]
        place[level] = slice(None)
        return tuple(self._ranks[tuple(place)].tolist())

    def places(self) -> list[int]:
        """Return, by rank, where it comes when c0 counts most, then c1, and so on."""
        found: list[int] = np.argsort(self._ranks, axis=None).tolist()
        return found

    @property
    def _ranks(self) -> np.ndarray[Any, Any]:
        """The ranks by their coordinates, shape ``factors``."""
        return np.array(self.order).reshape(self.factors[::-1]).T
