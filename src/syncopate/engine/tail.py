"""Tail: what rides along in the last bucket's all-reduce, so that it costs no message of its own.

Behind the gradients of the last bucket travel, in this order:

- one element per parameter: on how many ranks this backward reached it;
- one element per rank: 1 when its backward failed half-way;
- the module's buffers: rank 0 contributes its values and every other rank negative zeros, so the
  sum is rank 0's value, exactly.

[Note: Exact buffers in a sum of floats]
``x + -0.0`` is ``x`` for every float, either zero, infinities and NaN included, so a buffer whose
dtype the element type holds without loss travels as it is. Of any other, such as batch
normalisation's int64 ``num_batches_tracked``, each byte travels as one element: every integer up to
255 is exact even in bfloat16.

Large buffers (attention masks, tables) are cheaper in a broadcast, which moves every byte once;
:attr:`Tail.broadcast` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from syncopate.engine.state import BufferSlot
from syncopate.units import KIB, MIB

_CARRIED_BYTES = 1 * MIB
_CARRIED_BYTEWISE = 4 * KIB
_SMALL_EXACT = (torch.bool, torch.uint8, torch.int8)


class Tail:
    """Writes and reads the tail of the last bucket.

    Args:
        parameters: number of exchanged parameters.
        rank: this rank.
        world_size: number of ranks.
        slots: the module's buffers.
        dtype: element type of the flat buffer that carries the tail.

    Attributes:
        elements: how many elements of ``dtype`` the tail needs.
        broadcast: the buffers too large to ride along.
    """

    def __init__(
        self,
        parameters: int,
        rank: int,
        world_size: int,
        slots: Sequence[BufferSlot],
        dtype: torch.dtype,
    ) -> None:
        self._parameters = parameters
        self._rank = rank
        self._head = parameters + world_size
        self._direct: list[BufferSlot] = []
        self._bytewise: dict[torch.dtype, list[BufferSlot]] = {}
        self.broadcast: list[BufferSlot] = []
        element = dtype.to_real() if dtype.is_complex else dtype
        for slot in slots:
            self._assign(slot, element)
        direct = sum(slot.tensor.numel() for slot in self._direct)
        bytewise = sum(s.tensor.nbytes for group in self._bytewise.values() for s in group)
        self.elements = self._head + direct + bytewise
        self._late: tuple[Tensor, torch.cuda.Event] | None = None
        self._template = torch.zeros(0)
        self._tail = torch.zeros(0)

    def _assign(self, slot: BufferSlot, element: torch.dtype) -> None:
        tensor = slot.tensor
        lossless = tensor.dtype in _SMALL_EXACT or (
            tensor.is_floating_point() and torch.promote_types(tensor.dtype, element) == element
        )
        if lossless and tensor.numel() * element.itemsize <= _CARRIED_BYTES:
            self._direct.append(slot)
        elif not lossless and tensor.nbytes <= _CARRIED_BYTEWISE:
            self._bytewise.setdefault(tensor.dtype, []).append(slot)
        else:
            self.broadcast.append(slot)

    def attach(self, tail: Tensor) -> None:
        """Take ``tail``, at least ``elements`` long, as the memory to write to and read from."""
        self._tail = tail[: self.elements]
        self._template = torch.zeros_like(self._tail[: self._head])
        self._template[: self._parameters] = 1
        self._places: list[Tensor] = []
        offset = self._head
        for slot in self._direct:
            tensor = slot.tensor
            place = self._tail[offset : offset + tensor.numel()]
            self._places.append(place.view(tensor.shape))
            offset += tensor.numel()
        self._bytes = self._tail[offset:]

    def fill(self, unreached: Iterable[int] = (), *, failed: bool = False) -> None:
        """Write this rank's contribution, just before the last bucket is launched.

        Args:
            unreached: indices of the parameters that this rank's backward did not reach.
            failed: whether this rank's backward failed.
        """
        head = self._tail[: self._head]
        head.copy_(self._template)
        for index in unreached:
            head[index] = 0
        if failed:
            head[self._parameters + self._rank] = 1
        if self._rank:
            self._tail[self._head :].fill_(-0.0)
            return
        if self._direct:
            torch._foreach_copy_(self._places, [slot.tensor for slot in self._direct])
        offset = 0
        for slots in self._bytewise.values():
            raw = torch.cat([slot.tensor.reshape(-1) for slot in slots]).view(torch.uint8)
            self._bytes[offset : offset + raw.numel()].copy_(raw)
            offset += raw.numel()

    def deliver(self) -> None:
        """Give every buffer that rode along rank 0's value; rank 0 has it already."""
        if not self._rank:
            return
        if self._direct:
            torch._foreach_copy_([slot.tensor for slot in self._direct], self._places)
        offset = 0
        for dtype, slots in self._bytewise.items():
            tensors = [slot.tensor for slot in slots]
            nbytes = sum(tensor.nbytes for tensor in tensors)
            raw = self._bytes[offset : offset + nbytes].to(torch.uint8).view(dtype)
            offset += nbytes
            parts = torch.split(raw, [tensor.numel() for tensor in tensors])
            shaped = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
            torch._foreach_copy_(tensors, shaped)

    def reached(self) -> list[bool]:
        """Return per parameter whether any rank's backward reached it."""
        counts: list[float] = self._tail[: self._parameters].tolist()
        return [count > 0 for count in counts]

    def failed_ranks(self) -> list[int]:
        """Return the ranks whose backward failed; on a CUDA device, of the step before this one.

        Reading this step's flags there would make the host wait for the device in every step.
        """
        flags = self._tail[self._parameters : self._head]
        if flags.is_cuda:
            late, self._late = self._late, _to_host(flags)
            if late is None:
                return []
            flags, copied = late
            copied.synchronize()
        return [rank for rank, flag in enumerate(flags.tolist()) if flag]


def _to_host(flags: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """Start copying ``flags``; the event says when they are there."""
    host = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True)
    host.copy_(flags, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return host, copied
