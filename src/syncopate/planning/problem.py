"""The problem every policy solves: when gradients are ready, how large they are, what bytes cost.

Where weights are updated on some ranks alone, they are pulled in the same buckets; then the problem
knows what that costs too, and when the next forward needs them.

A *partition* cuts the gradients, in ready order, into buckets of consecutive ones. It is written as
the tuple of the buckets' ends: ``(2, 5)`` is the buckets ``[0, 2)`` and ``[2, 5)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from syncopate.costs.model.functions import CostFunction, Envelope
from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.errors import InvalidValueError

Partition = tuple[int, ...]


@dataclass(frozen=True)
class Pulls:
    """How the weights of every bucket are pulled.

    Attributes:
        cost: seconds of the collective; an :class:`Envelope` chooses one algorithm per bucket.
        needed_s: shape (L,); the progress of forward at which each tensor's weights are needed.
        ranks: that share the update.
        rooted: whether each bucket is updated by one rank, rather than a shard of it by each.
        replicated: seconds of the collective that may push a bucket instead, which every rank then
            updates, so that nothing is pulled; None where there is none.
        served: whether ``ranks`` are servers.
        deferred: whether averages of gradients are pulled, and updates are left to forward.
    """

    cost: CostFunction
    needed_s: tuple[float, ...]
    ranks: int
    rooted: bool = False
    replicated: CostFunction | None = None
    served: bool = False
    deferred: bool = False


class Problem:
    """Ready times, sizes and the cost of a collective.

    Args:
        ready_s: shape (L,), L >= 1, non-decreasing, >= 0.
        nbytes: shape (L,), or (D, L) for gradients of D dtypes, where each column has one entry
            that is not zero: a bucket travels as one collective per dtype.
        cost: seconds of a collective; an :class:`Envelope` chooses one algorithm per bucket.
        pulls: how weights are pulled; None where every rank updates all of them.

    Attributes:
        ready_s: shape (L,).
        nbytes: shape (D, L).
        offsets: shape (D, L+1); bytes of each dtype before each tensor.
        cost: as given.
        pulls: as given.

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
        pulls: Pulls | None = None,
    ) -> None:
        self.ready_s: FloatArray = np.asarray(ready_s, float)
        self.nbytes: FloatArray = np.atleast_2d(np.asarray(nbytes, float))
        self.cost = cost
        self.pulls = pulls
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

    def sizes(self, start: int, stop: int) -> list[float]:
        """Return the bytes of each dtype of the gradients ``[start, stop)``."""
        found: list[float] = (self.offsets[:, stop] - self.offsets[:, start]).tolist()
        return found

    def carried(
        self, start: int, stop: int, elements: tuple[int, int] | None, numel: int
    ) -> list[float]:
        """Return the bytes of each dtype that a message carries of the gradients ``[start, stop)``.

        Args:
            start: the first of them.
            stop: one past the last.
            elements: which it carries of a single one; None for all.
            numel: how many that one has.
        """
        sizes = self.sizes(start, stop)
        if elements is None:
            return sizes
        return [size * (elements[1] - elements[0]) / numel for size in sizes]

    def carrier(
        self, cost: CostFunction, start: int, stop: int, parts: int = 1
    ) -> tuple[CostFunction, list[float], float]:
        """Return what carries one of equal parts of the gradients ``[start, stop)``.

        Returns:
            The cost of one algorithm with the same options for all dtypes, the bytes of each dtype,
            and the seconds of them all.
        """
        sizes = [size / parts for size in self.sizes(start, stop)]
        if isinstance(cost, Envelope):
            found = cost.bucket(sizes)
            cost = cost.of(found.algorithm).fixed(found.options)
        # Nearly always there is one dtype; numpy would take ten times as long for it.
        seconds = cost.pieces.at(sizes[0]) if len(sizes) == 1 else float(cost(sizes).sum())
        return cost, sizes, seconds

    def bucket_costs(self, cost: CostFunction, starts: IntArray, stop: int) -> FloatArray:
        """Return the seconds of the buckets of gradients ``[start, stop)``, for many starts."""
        sizes = self.offsets[:, [stop]] - self.offsets[:, starts]
        if len(sizes) > 1 and isinstance(cost, Envelope):
            of_algorithms = [one(sizes).sum(axis=0) for _, one, _ in cost.together]
            return np.asarray(np.min(of_algorithms, axis=0))
        return np.asarray(cost(sizes).sum(axis=0))

    def roots(self, partition: Sequence[int]) -> tuple[int, ...]:
        """Return who updates each bucket: in turn the rank that has the fewest bytes so far."""
        if self.pulls is None or not self.pulls.rooted:
            return (0,) * len(partition)
        held = [0.0] * min(self.pulls.ranks, len(partition))  # no others get any
        roots = []
        filled = self.offsets.sum(axis=0)
        for start, stop in pairwise((0, *partition)):
            root = held.index(min(held))
            held[root] += float(filled[stop] - filled[start])
            roots.append(root)
        return tuple(roots)

    def finish_s(self, partition: Sequence[int]) -> float:
        """Return when the last bucket ends, by the recurrence of MG-WFBP (Eq. 7) on one channel."""
        cuts = (0, *partition)
        if isinstance(self.cost, Envelope):
            seconds = [self.bucket_s(start, stop) for start, stop in pairwise(cuts)]
        else:
            seconds = self.cost(np.diff(self.offsets[:, cuts], axis=1)).sum(axis=0).tolist()
        end = 0.0
        for stop, bucket_s in zip(partition, seconds, strict=True):
            end = max(end, float(self.ready_s[stop - 1])) + bucket_s
        return end


def pull_order(needed_s: Sequence[float]) -> tuple[int, ...]:
    """Return the buckets in the order in which a plan has them pulled: as forward needs them.

    Of those that are needed at once, the one that was pushed last is pulled first.

    Args:
        needed_s: the progress of forward at which each bucket's weights are needed.
    """
    return tuple(sorted(range(len(needed_s)), key=lambda index: (needed_s[index], -index)))


def pull_channels(order: Sequence[int], channels: int) -> dict[int, int]:
    """Return the channel of each bucket's pull: in turn, in the order in which they are pulled."""
    return {index: turn % channels for turn, index in enumerate(order)}


def _require_sane(what: str, values: FloatArray) -> None:
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InvalidValueError(f"{what}[{index}]", float(values[index]), "finite and >= 0")
