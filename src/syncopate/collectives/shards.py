"""Shards: buffers in the shape and dtype that backends want them, and back.

Backends cut a buffer into equal shards; this package's are balanced, and so may differ by one
element. And backends add fewer dtypes than a gradient may have.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from syncopate.schedules.base import chunk_offsets

_WIDER = {torch.int16: torch.int32}
"""Dtypes that Gloo and NCCL cannot add, and one that holds their sums modulo the narrow range."""


def bounds(numel: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return where the shard of ``rank`` begins and ends in a buffer of ``numel`` elements."""
    offsets = chunk_offsets(numel, world_size)
    return offsets[rank], offsets[rank + 1]


def summable(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` in a dtype that every backend adds.

    Args:
        tensor: contiguous.

    Returns:
        The tensor itself; a view of shape ``(*shape, 2)`` of a complex one; or a wider copy.
    """
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    wider = _WIDER.get(tensor.dtype)
    return tensor if wider is None else tensor.to(wider)


def take_back(tensor: torch.Tensor, sums: torch.Tensor) -> None:
    """Overwrite ``tensor`` with ``sums`` made from its :func:`summable`, unless they are there."""
    if sums.data_ptr() != tensor.data_ptr():
        (torch.view_as_real(tensor) if tensor.is_complex() else tensor).copy_(sums)


def rows(buffer: torch.Tensor, world_size: int, places: torch.Tensor | None = None) -> torch.Tensor:
    """Return a matrix with the shards of ``buffer`` as rows, short ones padded with zeros.

    Args:
        buffer: shape (n, ...), contiguous.
        world_size: number of shards p.
        places: shape (p,), int64 on the buffer's device: the row of each shard; in their own order
            when left out.

    Returns:
        A new tensor of shape (p, ceil(n / p), ...).
    """
    share = -(-len(buffer) // world_size)
    matrix = buffer.new_empty((world_size, share, *buffer.shape[1:]))
    if len(buffer) % world_size:
        matrix[:, -1].zero_()
    for start, stop, block in _blocks(buffer, world_size):
        columns = matrix[:, : block.shape[1]]
        if places is None:
            columns[start:stop].copy_(block)
        else:
            columns.index_copy_(0, places[start:stop], block)
    return matrix


def fill(buffer: torch.Tensor, matrix: torch.Tensor, places: torch.Tensor | None = None) -> None:
    """Overwrite ``buffer`` with the shards in the rows of ``matrix``, the opposite of `rows`."""
    for start, stop, block in _blocks(buffer, len(matrix)):
        columns = matrix[:, : block.shape[1]]
        if places is None:
            block.copy_(columns[start:stop])
        else:
            torch.index_select(columns, 0, places[start:stop], out=block)


def _blocks(buffer: torch.Tensor, world_size: int) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield the shards of either length: first shard, one past the last, and them as rows."""
    share, longer = divmod(len(buffer), world_size)
    end = longer * (share + 1)
    if longer:
        yield 0, longer, buffer[:end].view(longer, share + 1, *buffer.shape[1:])
    if share:
        yield longer, world_size, buffer[end:].view(world_size - longer, share, *buffer.shape[1:])
