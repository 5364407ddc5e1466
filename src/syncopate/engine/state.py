"""State: the module's buffers, and bringing tensors of every rank to rank 0's values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from syncopate.collectives import Communicator
from syncopate.units import MIB

_CHUNK_BYTES = 32 * MIB


class BufferSlot(NamedTuple):
    """Where a module keeps one buffer.

    The slot is kept and not the tensor: a module may put another tensor in its place at any time.

    Attributes:
        name: the buffer's name in ``model.named_buffers()``.
        owner: the buffer dictionary of the module that owns it.
        key: its key there.
    """

    name: str
    owner: dict[str, Tensor | None]
    key: str

    @property
    def tensor(self) -> Tensor:
        """The buffer as it is now, sharing memory but not the version counter.

        Autograd may have saved the buffer for a backward that is still to come; batch
        normalisation does. It must not take the exchange of statistics for a modification.
        """
        tensor = self.owner[self.key]
        assert tensor is not None
        return tensor.data


def module_buffers(model: nn.Module) -> list[BufferSlot]:
    """Return every registered buffer of ``model``, shared ones once, in a fixed order."""
    slots, seen = [], set()
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                name = f"{prefix}.{key}" if prefix else key
                slots.append(BufferSlot(name, module._buffers, key))
    return slots


def broadcast_tensors(communicator: Communicator, tensors: Sequence[Tensor]) -> None:
    """Overwrite ``tensors`` on every rank with rank 0's, bit by bit, whatever their dtypes.

    Args:
        communicator: joins the ranks.
        tensors: the same shapes and dtypes on every rank, all on one device.

    Raises:
        CollectiveError: a rank is lost or late.
    """
    with torch.no_grad():
        for chunk in _chunks(tensors):
            flat = torch.cat([_bytes(tensor) for tensor in chunk])
            communicator.broadcast(flat, src=0)
            if communicator.rank == 0:
                continue
            offset = 0
            for tensor in chunk:
                received = flat[offset : offset + tensor.nbytes]
                offset += tensor.nbytes
                # A slice may start anywhere; reinterpreting bytes wants an aligned start.
                tensor.copy_(received.clone().view(tensor.dtype).view(tensor.shape))


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    chunk: list[Tensor] = []
    nbytes = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        if chunk and nbytes + tensor.nbytes > _CHUNK_BYTES:
            yield chunk
            chunk, nbytes = [], 0
        chunk.append(tensor)
        nbytes += tensor.nbytes
    if chunk:
        yield chunk


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
