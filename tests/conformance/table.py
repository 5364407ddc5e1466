"""The conformance table: every registered algorithm, and the world sizes it is tested at.

A new algorithm adds one row here; proof, price and execution all read it.
"""

from __future__ import annotations

from dataclasses import dataclass

PROVED = (*range(1, 18), 24, 32, 64, 96)
EXECUTED = (1, 2, 3, 4, 5, 8)


@dataclass(frozen=True)
class Row:
    """One algorithm of one collective.

    Attributes:
        collective: as in the registry.
        algorithm: as in the registry.
        proved: world sizes at which the checker proves it, and at which its price is compared
            with its closed form.
        executed: world sizes at which it runs on real processes.
    """

    collective: str
    algorithm: str
    proved: tuple[int, ...] = PROVED
    executed: tuple[int, ...] = EXECUTED

    def __str__(self) -> str:
        return f"{self.collective}-{self.algorithm}"


TABLE = (
    Row("all_reduce", "ring"),
    Row("all_reduce", "recursive_doubling"),
    Row("all_reduce", "halving_doubling"),
    Row("all_reduce", "binary_tree"),
    Row("reduce_scatter", "ring"),
    Row("reduce_scatter", "recursive"),
    Row("all_gather", "ring"),
    Row("all_gather", "recursive"),
)
