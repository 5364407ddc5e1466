"""Sparse rows: gradients of embeddings with ``sparse=True``, averaged over the ranks row by row.

Such a gradient has the rows that a forward looked up, other ones on every rank and in every step.
So it is in no bucket of a plan. When all buckets are launched, at the end of a backward, the ranks
gather each other's rows and add them up, in the order of the ranks. Then ``parameter.grad`` is the
average, sparse, with every row that some rank looked up, as under DistributedDataParallel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.accumulators import Hook
from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.notes import Ranks
from syncopate.engine.model import ownership
from syncopate.errors import EngineError
from syncopate.recipe import NATIVE

_UNREACHED, _DENSE, _FAILED = -1, -2, -3


class SparseRows:
    """The weights of the embeddings with sparse gradients.

    Args:
        trainables: these weights.
        ready: called when the gradient of one is final.

    Attributes:
        reached: whether a backward has reached one since the last average.
        hooks: for the accumulator of each.
    """

    def __init__(self, trainables: Sequence[Trainable], ready: Callable[[], None]) -> None:
        self.reached = False
        self._trainables = tuple(trainables)
        self._ready = weakref.WeakMethod(ready)  # as [Note: A model that is dropped] has it
        self.hooks = [self._hook(trainable) for trainable in trainables]

    def __bool__(self) -> bool:
        """Say whether there are some."""
        return bool(self._trainables)

    @property
    def parameters(self) -> list[Tensor]:
        """The weights."""
        return [trainable.parameter for trainable in self._trainables]

    def _hook(self, trainable: Trainable) -> Hook:
        rows, name = weakref.ref(self), trainable.name

        def hook(*_: object) -> None:
            found = rows()
            ready = None if found is None else found._ready()
            if found is None or ready is None:
                raise ownership.dropped(name)
            found.reached = True
            ready()

        return hook

    @torch.no_grad()
    def average(self, layout: Layout, *, empty: bool = False, failed: bool = False) -> list[int]:
        """Make averages of the gradients; every rank calls it once in a synchronised backward.

        Args:
            layout: of the exchange.
            empty: take part without rows, and leave ``parameter.grad`` alone.
            failed: say so of this rank's backward.

        Returns:
            The ranks whose backward failed; then there are no averages.

        Raises:
            EngineError: a gradient is dense, on any rank.
            CollectiveError: a rank is lost or late.
        """
        self.reached = False
        if not self._trainables or layout.communicator.world_size == 1:
            return []
        grads = [None if empty else parameter.grad for parameter in self.parameters]
        own = [g.coalesce() if g is not None and g.is_sparse else None for g in grads]
        counts = [_FAILED if failed else _count(*pair) for pair in zip(grads, own, strict=True)]
        told = torch.tensor(counts, dtype=torch.int64, device=self.parameters[0].device)
        table = Ranks(layout).everyone(told).t().tolist()
        if lost := [rank for rank, count in enumerate(table[0]) if count == _FAILED]:
            return lost
        for trainable, everyone in zip(self._trainables, table, strict=True):
            if _DENSE in everyone:
                raise EngineError(
                    f"the gradient of {trainable.name!r} is not sparse, though it is the weight of "
                    "an embedding with sparse=True: it is used elsewhere too. Build the embedding "
                    "with sparse=False"
                )
        for trainable, rows, everyone in zip(self._trainables, own, table, strict=True):
            if any(count != _UNREACHED for count in everyone):
                total = _gathered(layout, trainable.parameter, rows, everyone)
                if not empty:
                    trainable.parameter.grad = total
        return []


def _count(grad: Tensor | None, rows: Tensor | None) -> int:
    """Return how many rows a gradient has, or what it is instead."""
    if grad is None:
        return _UNREACHED
    return _DENSE if rows is None else rows._nnz()


def _gathered(
    layout: Layout, weight: Tensor, rows: Tensor | None, everyone: Sequence[int]
) -> Tensor:
    """Return the average of the ranks' rows, of which each has so many."""
    ends = [0, *accumulate(max(count, 0) for count in everyone)]
    width = weight[:1].numel()
    ids = torch.zeros(ends[-1], dtype=torch.int64, device=weight.device)
    values = weight.new_zeros(ends[-1] * width)
    rank = layout.communicator.rank
    if rows is not None:
        ids[ends[rank] : ends[rank + 1]] = rows.indices()[0]
        values[ends[rank] * width : ends[rank + 1] * width] = rows.values().flatten()
    how: dict[str, Any] = {"algorithm": NATIVE if weight.is_cuda else "ring"}
    layout.communicator.all_gather(ids, bounds=ends, **how)
    layout.communicator.all_gather(values, bounds=[end * width for end in ends], **how)
    found = values.mul_(layout.scale).view(-1, *weight.shape[1:])
    return torch.sparse_coo_tensor(
        ids[None], found, weight.shape, check_invariants=False
    ).coalesce()
