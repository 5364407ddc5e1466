"""Samples: the collectives that show what messages cost besides the wire, and what they took.

Eight collectives show the figures of :class:`~syncopate.artifacts.cluster.Handling` at a few sizes
each. An all-gather along a ring is p - 1 rounds of all ranks, a recursive one log2 p of them; an
all-reduce along a ring adds as well. A chain broadcast in one block is a message at a time, and in
many it is a stream. Recursive doubling and halving go on from rank to rank with everything that all
ranks have, a tree with what one has.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from syncopate.artifacts.cluster import STAGED_BYTES, Cluster
from syncopate.schedules import registry
from syncopate.units import KIB, MIB

PROBES: tuple[tuple[str, str, Mapping[str, int]], ...] = (
    ("all_gather", "ring", {}),
    ("all_gather", "recursive", {}),
    ("all_reduce", "ring", {}),
    ("all_reduce", "recursive_doubling", {}),
    ("reduce_scatter", "recursive", {}),
    ("broadcast", "mst", {}),
    ("broadcast", "lp", {"blocks": 1}),
    ("broadcast", "lp", {"blocks": 16}),
)
"""What is measured: collective, algorithm and options."""

SIZES: tuple[tuple[int | None, tuple[int, ...]], ...] = (
    (STAGED_BYTES, (4 * KIB, 64 * KIB)),
    (None, (128 * KIB, MIB, 4 * MIB)),
)
"""Sizes in bytes at which they are measured, by the largest buffer that they speak for."""


class Sample(NamedTuple):
    """One probe and what it took.

    Attributes:
        collective: its name.
        algorithm: its name.
        options: of the algorithm.
        nbytes: size of the buffer.
        samples_s: the longest rank's time of every turn; at least one.
    """

    collective: str
    algorithm: str
    options: Mapping[str, Any]
    nbytes: int
    samples_s: Sequence[float]

    @property
    def seconds(self) -> float:
        """Their median."""
        return statistics.median(self.samples_s)


def probes(cluster: Cluster) -> list[tuple[str, str, dict[str, Any], int]]:
    """Return what is measured on ``cluster``: collective, algorithm, options, bytes; by size."""
    return [
        (collective, name, registry.fitted(collective, name, cluster) | dict(options), nbytes)
        for _, sizes in SIZES
        for nbytes in sizes
        for collective, name, options in PROBES
    ]
