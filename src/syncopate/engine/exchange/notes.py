"""Notes: how the ranks' reports on their backwards travel (``engine/trailer.py``).

Where every rank gets every sum, the report is a trailer of the last bucket and costs no message.
Where only an owner gets a sum, the report is a small all-reduce of its own behind the last push.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.buckets import BucketBuffers
from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange.layout import Layout, arrived
from syncopate.engine.model.state import Buffers
from syncopate.engine.trailer import Said, Trailer
from syncopate.recipe import NATIVE, Recipe, wire_dtype_of
from syncopate.units import dtype_name


class RidingNotes(Trailer):
    """A note behind the last bucket."""

    def __init__(self, layout: Layout) -> None:
        by_name = {trainable.name: trainable for trainable in layout.trainables}
        dtypes = [by_name[name].parameter.dtype for name in layout.plan.buckets[-1].tensors]
        # It rides with the last dtype of the last bucket.
        dtype = list(dict.fromkeys(dtypes))[-1]
        wire_dtype = getattr(torch, wire_dtype_of(dtype_name(dtype), layout.plan.wire_dtype))
        super().__init__(*_form(layout), wire_dtype)
        self.rides = self.elements

    def find_place(self, buckets: Sequence[BucketBuffers]) -> None:
        """Take the memory behind the last bucket."""
        self.attach(buckets[-1].parts[-1].trailer)


class SentNotes(Trailer):
    """A note as a message of its own.

    Args:
        layout: of the exchange.
        beside: how many elements are summed up along with it.

    Attributes:
        beside: these, real float32.
        before: what makes averages and fills them, on the channel's thread; None where nothing is
            summed up along with the note.
    """

    def __init__(self, layout: Layout, beside: int = 0) -> None:
        super().__init__(*_form(layout), torch.float32)
        device, own = layout.trainables[0].parameter.device, self.elements
        self._layout, self._recipe = layout, _recipe(device)
        self._flat = torch.zeros(own + beside, dtype=torch.float32, device=device)
        self.attach(self._flat)
        self.beside = self._flat[own:]
        self.before: Callable[[], None] | None = None
        self._handle: Any = None
        self._said: Said | None = None

    @property
    def averages(self) -> bool:
        """Whether this rank has made averages of its sums when its note leaves."""
        return self.before is not None

    def send(self) -> None:
        """Launch it behind the last bucket."""
        before = self.before
        if before is not None and self._flat.is_cuda:  # the stream waits, in its order
            before()
            before = None
        self._said = None
        self._handle = self._layout.communicator.run(
            self._recipe, self._flat, before=before, async_op=True
        )

    def arrive(self) -> None:
        """Wait for the ranks' reports; on a device the stream waits."""
        arrived(self._handle)

    def hear(self) -> Said:
        """Wait for the ranks' reports, and return them."""
        if self._said is None:
            self.arrive()
            self._said = super().hear()
        return self._said


def _form(layout: Layout) -> tuple[int, int, int, Buffers]:
    ranks, count = layout.communicator, len(layout.trainables)
    return count, ranks.rank, ranks.world_size, layout.buffers


def _recipe(device: torch.device) -> Recipe:
    return Recipe("all_reduce", NATIVE if device.type == "cuda" else "recursive_doubling")


class Ranks:
    """Small collectives of all ranks, at a place that every rank reaches.

    They raise CollectiveError where a rank is lost or late.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._device = layout.trainables[0].parameter.device
        self._recipe = _recipe(self._device)

    def everyone(self, values: Tensor) -> Tensor:
        """Return every rank's ``values``, one-dimensional, one rank a row; all ranks call it."""
        ranks = self._layout.communicator
        table = values.new_zeros(ranks.world_size, values.numel())
        table[ranks.rank] = values
        with explaining():
            ranks.run(self._recipe, table.view(-1))
        return table

    def meet(self) -> None:
        """Wait for all ranks; all call it."""
        self.everyone(torch.zeros(1, device=self._device))

    def anyone(self, here: bool) -> bool:
        """Return whether ``here`` is true on any rank; all ranks call it."""
        flag = torch.tensor([here], dtype=torch.float32, device=self._device)
        return bool(self.everyone(flag).amax())


def unsaid(ranks: int) -> Said:
    """Return what stands for the reports of ``ranks`` that send none: all is well."""
    return Said([], [0] * ranks, appeared=False)
