"""The conformance table: every registered algorithm, and the world sizes it is tested at.

A new algorithm adds one row here; proof, price and execution all read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PROVED = (*range(1, 18), 24, 32, 64, 96)
EXECUTED = tuple(range(1, 10))

Options = dict[str, Any]


def _none(world_size: int) -> tuple[Options, ...]:
    return ()


def block_counts(world_size: int) -> tuple[Options, ...]:
    """Return pipelines of one block, of few, and of about as many blocks as there are ranks."""
    return tuple({"blocks": blocks} for blocks in sorted({1, 2, 5, world_size}))


def factorisations(world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return one level, one rank per host, and every split into two and three levels."""
    divisors = [d for d in range(2, world_size) if world_size % d == 0]
    twos = [(a, world_size // a) for a in divisors]
    threes = [
        (a, b // a, world_size // b) for a in divisors for b in divisors if a < b and b % a == 0
    ]
    return ((world_size,), (1, world_size), *twos, *threes[:6])


def levels(world_size: int) -> tuple[Options, ...]:
    """Return the factorisations alone."""
    return tuple({"factors": factors} for factors in factorisations(world_size))


def levels_and_stages(world_size: int) -> tuple[Options, ...]:
    """Return the factorisations, with rings in every second level."""
    return tuple(
        {"factors": factors, "stages": (("ring", "recursive") * len(factors))[: len(factors)]}
        for factors in factorisations(world_size)
    )


@dataclass(frozen=True)
class Row:
    """One algorithm of one collective.

    Attributes:
        collective: as in the registry.
        algorithm: as in the registry.
        proved: world sizes at which the checker proves it, and at which its price is compared
            with its closed form.
        executed: world sizes at which it runs on real processes.
        variants: options, beyond the defaults, with which it is proved and priced too.
    """

    collective: str
    algorithm: str
    proved: tuple[int, ...] = PROVED
    executed: tuple[int, ...] = EXECUTED
    variants: Callable[[int], tuple[Options, ...]] = _none

    def __str__(self) -> str:
        return f"{self.collective}-{self.algorithm}"


TABLE = (
    Row("all_reduce", "ring"),
    Row("all_reduce", "recursive_doubling"),
    Row("all_reduce", "halving_doubling"),
    Row("all_reduce", "binary_tree"),
    Row("all_reduce", "mst"),
    Row("all_reduce", "be"),
    Row("all_reduce", "flat_tree"),
    Row("all_reduce", "lp", variants=block_counts),
    Row("all_reduce", "two_level", variants=levels),
    Row("all_reduce", "blueconnect", variants=levels_and_stages),
    Row("reduce_scatter", "ring"),
    Row("reduce_scatter", "recursive"),
    Row("reduce_scatter", "hierarchical", variants=levels_and_stages),
    Row("all_gather", "ring"),
    Row("all_gather", "recursive"),
    Row("all_gather", "hierarchical", variants=levels_and_stages),
    Row("broadcast", "mst"),
    Row("broadcast", "flat_tree"),
    Row("broadcast", "be"),
    Row("broadcast", "lp", variants=block_counts),
    Row("reduce", "mst"),
    Row("reduce", "flat_tree"),
    Row("reduce", "be"),
    Row("reduce", "lp", variants=block_counts),
)
