"""Draws any algorithm on any world, with any root and options that it takes."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from hypothesis import strategies as st

from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import ALGORITHMS, build
from syncopate.units import MIB

MOST_BLOCKS = 9


class Drawn(NamedTuple):
    """One schedule, and what it was built from."""

    collective: str
    algorithm: str
    world_size: int
    root: int
    options: dict[str, Any]

    def schedule(self) -> Schedule:
        """Build it."""
        name = self.collective, self.algorithm
        return build(*name, self.world_size, self.root, **self.options)


@st.composite
def drawn(
    draw: st.DrawFn, most_ranks: int, *, ordered: bool = True, sharded: bool = False
) -> Drawn:
    """Draw an algorithm, p by its factorisation, a root, and every option that it takes.

    Args:
        draw: hypothesis'.
        most_ranks: the largest world.
        ordered: whether the ranks come in any order, rather than in that of their numbers.
        sharded: whether only collectives with shards are wanted.
    """
    rows = [key for key in ALGORITHMS if conditions(key[0]).sharded or not sharded]
    collective, algorithm = draw(st.sampled_from(rows))
    row = ALGORITHMS[collective, algorithm]
    some = st.lists(st.integers(1, 7), min_size=1, max_size=4)
    factors = draw(some.filter(lambda found: math.prod(found) <= most_ranks))
    p = math.prod(factors)
    options: dict[str, Any] = {}
    if ordered:
        options["order"] = draw(st.permutations(range(p)))
    if "factors" in row.options:
        options["factors"] = factors
    if "stages" in row.options:
        names = st.sampled_from(["ring", "recursive"])
        options["stages"] = [draw(names) for _ in factors]
    for name in sorted({"blocks", "pipelines"} & set(row.options)):
        options[name] = draw(st.integers(1, MOST_BLOCKS))
    root = draw(st.integers(0, p - 1)) if conditions(collective).rooted else 0
    return Drawn(collective, algorithm, p, root, options)


PLAYED: dict[str, Any] = {
    "block_bytes": st.sampled_from([1, 8, 24, 100, 4096]),
    "item_bytes": st.sampled_from([1, 8, MIB // 16, MIB]),
    "speeds": st.none() | st.randoms(use_true_random=False),
}
"""How a program is played: blocks and elements of so many bytes, ranks at any speed or in step."""


@st.composite
def drawn_bounds(draw: st.DrawFn, world_size: int, least: int = 0) -> tuple[int, ...]:
    """Draw where the shards of ranks begin: of any length, many of them empty.

    Args:
        draw: hypothesis'.
        world_size: number of ranks.
        least: elements that there are at least.
    """
    length = st.just(0) | st.integers(1, 4) | st.integers(0, 200)
    lengths = draw(st.lists(length, min_size=world_size, max_size=world_size))
    lengths[draw(st.integers(0, world_size - 1))] += max(least - sum(lengths), 0)
    return (0, *itertools.accumulate(lengths))
