"""Shapes: partitions by bytes alone, worth playing on any cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from syncopate.planning.problem import Partition, Problem

EQUAL_BUCKETS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Numbers of equal buckets."""

_LARGEST = (4, 8, 16, 32, 64, 128)
"""What share of all bytes the largest bucket of a ramp has, as a divisor."""

_SMALLEST = (4, 16, 64)
"""What share of its largest bucket a ramp begins with, as a divisor."""


def equal(problem: Problem, count: int) -> Partition:
    """Return ``count`` buckets of about equal bytes, or fewer where one gradient fills several."""
    filled = problem.offsets.sum(axis=0)
    targets = filled[-1] * np.arange(1, count) / count
    cuts = np.searchsorted(filled, targets, side="left")
    inner = {int(cut) for cut in cuts if 0 < cut < problem.length}
    return (*sorted(inner), problem.length)


def ramps(problem: Problem) -> Iterator[Partition]:
    """Yield partitions whose buckets halve towards the turn from backward to forward.

    Some keep the size of the first buckets, others halve towards that end too: there backward
    begins, and what forward needs last is pulled.
    """
    for largest in _LARGEST:
        for smallest in _SMALLEST:
            for both_ends in (False, True):
                yield _ramp(problem, 1 / largest, 1 / (largest * smallest), both_ends)


def _ramp(problem: Problem, largest: float, smallest: float, both_ends: bool) -> Partition:
    filled = problem.offsets.sum(axis=0)
    total = filled[-1]
    limit = 0.5 if both_ends else 1.0
    cuts = set()
    share, size = smallest, smallest
    while share < limit:
        # At least so much from the end, and at least so much from the beginning.
        cuts.add(int(np.searchsorted(filled, total * (1 - share), side="right")) - 1)
        if both_ends:
            cuts.add(int(np.searchsorted(filled, total * share, side="left")))
        size = min(2 * size, largest)
        share += size
    return (*sorted(cut for cut in cuts if 0 < cut < problem.length), problem.length)
