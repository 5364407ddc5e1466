"""The problem every policy solves: when gradients are ready, how large they are, what bytes cost.

A *partition* cuts the gradients, in ready order, into buckets of consecutive ones. It is written as
the tuple of the buckets' ends: ``(2, 5)`` is the buckets ``[0, 2)`` and ``[2, 5)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from syncopate.costs.functions import CostFunction, Envelope
from syncopate.costs.pieces import FloatArray
from syncopate.errors import InvalidValueError

Partition = tuple[int, ...]

DDP_BUCKET_BYTES = 25 * 1024 * 1024
"""``bucket_cap_mb`` of DistributedDataParallel."""


class Problem:
    """Ready times, sizes and the cost of a collective.

    Args:
        ready_s: shape (L,), L >= 1, non-decreasing, >= 0.
        nbytes: shape (L,), or (D, L) for gradients of D dtypes, where each column has one entry
            that is not zero: a bucket travels as one collective per dtype.
        cost: seconds of a collective; an :class:`Envelope` chooses one algorithm per bucket.
        threshold_bytes: what the ``threshold`` policy fills a bucket to.

    Attributes:
        ready_s: shape (L,).
        nbytes: shape (D, L).
        offsets: shape (D, L+1); bytes of each dtype before each tensor.
        cost: as given.
        threshold_bytes: as given.

    Raises:
        InvalidValueError: a value is NaN, infinite or negative, the ready times decrease, or the
            shapes do not fit.
    """

    def __init__(
        self,
        ready_s: ArrayLike,
        nbytes: ArrayLike,
        cost: CostFunction,
        *,
        threshold_bytes: int = DDP_BUCKET_BYTES,
    ) -> None:
        self.ready_s: FloatArray = np.asarray(ready_s, float)
        self.nbytes: FloatArray = np.atleast_2d(np.asarray(nbytes, float))
        self.cost = cost
        self.threshold_bytes = threshold_bytes
        if self.ready_s.ndim != 1 or not self.ready_s.size:
            raise InvalidValueError("ready_s", self.ready_s.tolist(), "one time for each tensor")
        if self.nbytes.ndim != 2 or self.nbytes.shape[1] != self.ready_s.size:
            raise InvalidValueError(
                "shape of nbytes", self.nbytes.shape, f"(dtypes, {self.ready_s.size})"
            )
        _require_sane("ready_s", self.ready_s)
        _require_sane("nbytes", self.nbytes.ravel())
        if (np.diff(self.ready_s) < 0).any():
            raise InvalidValueError("ready_s", self.ready_s.tolist(), "non-decreasing")
        if threshold_bytes < 1:
            raise InvalidValueError("threshold_bytes", threshold_bytes, "an integer >= 1")
        self.offsets: FloatArray = np.concatenate(
            (np.zeros((len(self.nbytes), 1)), np.cumsum(self.nbytes, axis=1)), axis=1
        )

    @property
    def length(self) -> int:
        """L, the number of gradients."""
        return int(self.ready_s.size)

    def bucket_s(self, start: int, stop: int) -> float:
        """Return the cost of the bucket of gradients ``[start, stop)`` in seconds."""
        sizes = self.offsets[:, stop] - self.offsets[:, start]
        if isinstance(self.cost, Envelope):
            return self.cost.bucket(sizes.tolist()).seconds
        return float(self.cost(sizes).sum())

    def finish_s(self, partition: Sequence[int]) -> float:
        """Return when the last bucket ends, by the recurrence of MG-WFBP (Eq. 7) on one channel."""
        end = 0.0
        for start, stop in pairwise((0, *partition)):
            end = max(end, float(self.ready_s[stop - 1])) + self.bucket_s(start, stop)
        return end


def _require_sane(what: str, values: FloatArray) -> None:
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InvalidValueError(f"{what}[{index}]", float(values[index]), "finite and >= 0")
