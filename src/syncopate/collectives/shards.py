"""Shards: buffers in the shape and dtype that backends want them, and back.

Backends cut a buffer into equal shards; this package's may be of any length, and differ by up to
one element where no lengths are given. And backends add fewer dtypes than a gradient may have.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import torch

from syncopate.schedules.base import chunk_offsets
from syncopate.units import dtype_name

Bounds = tuple[int, ...]
"""Where each rank's shard begins, and at the end the elements of the buffer."""

_WIDER = {torch.int16: torch.int32}
"""Dtypes that Gloo and NCCL cannot add, and one that holds their sums modulo the narrow range."""

_SHOWN = 40
"""Characters of bounds in a label."""


def bounds_of(buffer: torch.Tensor, world_size: int, bounds: Bounds | None) -> Bounds:
    """Return the bounds of the shards along the first dimension; a balanced cut for None."""
    return chunk_offsets(len(buffer), world_size) if bounds is None else bounds


def lone_owner(bounds: Bounds) -> int | None:
    """Return the rank whose shard is the whole buffer; None where there is no such one.

    Example:
        >>> lone_owner((0, 0, 7, 7)), lone_owner((0, 1, 7, 7))
        (1, None)
    """
    owners = [rank for rank, (begin, end) in enumerate(pairwise(bounds)) if end > begin]
    return owners[0] if len(owners) == 1 else None


class Form(NamedTuple):
    """What a collective makes of its buffer.

    Attributes:
        bounds: where the shards begin; None for equal ones, or none.
        narrow: what elements travel as where that is narrower than they are; else None.
        reduction: what is made of the ranks' elements where they are reduced; a name in
            :data:`syncopate.collectives.mesh.reductions.REDUCTIONS`.
    """

    bounds: Bounds | None = None
    narrow: torch.dtype | None = None
    reduction: str = "sum"

    def nbytes(self, tensor: torch.Tensor) -> int:
        """Return the bytes of ``tensor`` as it travels."""
        return tensor.numel() * (self.narrow or tensor.dtype).itemsize

    def labelled(self, label: str) -> str:
        """Return the name of a collective of this form, long bounds as a checksum.

        Example:
            >>> Form((0, 7, 7, 10)).labelled("all_gather (ring)")
            'all_gather (ring) with bounds (0, 7, 7, 10)'
            >>> Form(narrow=torch.bfloat16).labelled("all_reduce (ring)")
            'all_reduce (ring) as bfloat16'
        """
        if self.reduction != "sum":
            label += f" {self.reduction}"
        if self.narrow is not None:
            label += f" as {dtype_name(self.narrow)}"
        if self.bounds is None:
            return label
        text = str(self.bounds)
        if len(text) > _SHOWN:
            text = f"of checksum {zlib.crc32(text.encode()):08x}"
        return f"{label} with bounds {text}"


PLAIN = Form()
"""Equal shards, elements as they are."""


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


def rows(buffer: torch.Tensor, bounds: Bounds, places: torch.Tensor | None = None) -> torch.Tensor:
    """Return a matrix with the shards of ``buffer`` as rows, short ones padded with zeros.

    Args:
        buffer: shape (n, ...), contiguous.
        bounds: of the p shards.
        places: shape (p,), int64 on the buffer's device: the row of each shard; in their own order
            when left out.

    Returns:
        A new tensor of shape (p, length of the longest shard, ...).
    """
    matrix = empty_rows(buffer, bounds)
    matrix[:, min(lengths(bounds)) :].zero_()
    for start, stop, block in _runs(buffer, bounds):
        columns = matrix[:, : block.shape[1]]
        if places is None:
            columns[start:stop].copy_(block)
        else:
            columns.index_copy_(0, places[start:stop], block)
    return matrix


def empty_rows(buffer: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Return a matrix of the shape of :func:`rows`, with nothing in it yet."""
    return buffer.new_empty((len(bounds) - 1, max(lengths(bounds)), *buffer.shape[1:]))


def fill(
    buffer: torch.Tensor, matrix: torch.Tensor, bounds: Bounds, places: torch.Tensor | None = None
) -> None:
    """Overwrite ``buffer`` with the shards in the rows of ``matrix``, the opposite of `rows`."""
    for start, stop, block in _runs(buffer, bounds):
        columns = matrix[:, : block.shape[1]]
        if places is None:
            block.copy_(columns[start:stop])
        else:
            torch.index_select(columns, 0, places[start:stop], out=block)


def _runs(buffer: torch.Tensor, bounds: Bounds) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield the shards that follow one another with one length, empty ones left out.

    Yields:
        The first shard, one past the last, and them as rows of a view. A balanced cut has two runs
        at most.
    """
    start = 0
    for length, run in groupby(lengths(bounds)):
        stop = start + len(list(run))
        if length:
            part = buffer[bounds[start] : bounds[stop]]
            yield start, stop, part.view(stop - start, length, *buffer.shape[1:])
        start = stop


def lengths(bounds: Bounds) -> list[int]:
    """Return how many elements each shard has."""
    return [end - begin for begin, end in pairwise(bounds)]
