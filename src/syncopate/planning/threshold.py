"""Threshold: fill buckets to a fixed size, as DistributedDataParallel and Horovod do.

As in DistributedDataParallel, a bucket closes with the gradient that fills it, so it may be larger
than the threshold, and the first one closes at 1 MiB already, so that communication starts early.
Horovod's default fusion buffer is 128 MB. Bytes are counted over all dtypes together, where
DistributedDataParallel keeps one bucket open per dtype.

Reference: Li et al., "PyTorch Distributed" (VLDB 2020), Section 3.2.3.
"""

from __future__ import annotations

from syncopate.errors import InvalidValueError
from syncopate.planning.problem import Partition, Problem

DDP_BUCKET_BYTES = 25 * 1024 * 1024
"""``bucket_cap_mb`` of DistributedDataParallel."""

DDP_FIRST_BUCKET_BYTES = 1024 * 1024
"""What DistributedDataParallel fills its first bucket to."""


def threshold(problem: Problem, bucket_bytes: int = DDP_BUCKET_BYTES) -> Partition:
    """Return buckets of at least ``bucket_bytes``, but for the first and the last.

    Raises:
        InvalidValueError: fewer than one byte.
    """
    if bucket_bytes < 1:
        raise InvalidValueError("bucket_bytes", bucket_bytes, "an integer >= 1")
    ends: list[int] = []
    filled = 0.0
    limit = min(DDP_FIRST_BUCKET_BYTES, bucket_bytes)
    for index, nbytes in enumerate(problem.nbytes.sum(axis=0).tolist()):
        filled += nbytes
        if filled >= limit:
            ends.append(index + 1)
            filled, limit = 0.0, bucket_bytes
    if not ends or ends[-1] != problem.length:
        ends.append(problem.length)
    return tuple(ends)
