"""Threshold: fill buckets to a fixed size, as DistributedDataParallel and Horovod do.

As in DistributedDataParallel, a bucket closes with the gradient that fills it, so it may be larger
than the threshold, and the first one closes at 1 MiB already, so that communication starts early.
Horovod's default fusion buffer is 128 MB. Bytes are counted over all dtypes together, where
DistributedDataParallel keeps one bucket open per dtype.

Reference: Li et al., "PyTorch Distributed" (VLDB 2020), Section 3.2.3.
"""

from __future__ import annotations

from syncopate.artifacts.plan import DDP_BUCKET_BYTES, filled
from syncopate.planning.problem import Partition, Problem


def threshold(problem: Problem, bucket_bytes: int = DDP_BUCKET_BYTES) -> Partition:
    """Return buckets of at least ``bucket_bytes``, but for the first and the last.

    Raises:
        InvalidValueError: fewer than one byte.
    """
    return filled(problem.nbytes.sum(axis=0).tolist(), bucket_bytes)
