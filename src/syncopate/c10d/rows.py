"""Rows: tensors as one row of elements in memory, as collectives take them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from syncopate.collectives.shards import lengths
from syncopate.errors import InvalidValueError
from syncopate.units import dtype_name

_RULE = "a dense one in a CPU's memory; CUDA tensors are NCCL's: init_process_group('nccl')"


class Rows:
    """Tensors of one dtype as a single row.

    Args:
        what: the collective, for errors.
        tensors: at least one, of any shapes and strides.

    Attributes:
        numel: elements of all of them.
        dtype: theirs.
        bounds: where each one begins in the row, and its end.

    Raises:
        InvalidValueError: one of them cannot be carried.
    """

    def __init__(self, what: str, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                given = f"on {tensor.device}, {tensor.layout}"
                raise InvalidValueError(f"tensor of {what}", given, _RULE)
        self.dtype = tensors[0].dtype
        if any(tensor.dtype != self.dtype for tensor in tensors):
            dtypes = sorted({str(tensor.dtype) for tensor in tensors})
            raise InvalidValueError(f"tensors of {what}", dtypes, "of one dtype")
        self._tensors = [tensor.detach() for tensor in tensors]
        self.bounds = tuple(accumulate((tensor.numel() for tensor in tensors), initial=0))
        self.numel = self.bounds[-1]

    @property
    def shape(self) -> str:
        """For labels: ``"1024 float32"``."""
        return f"{self.numel} {dtype_name(self.dtype)}"

    @property
    def nbytes(self) -> int:
        """Bytes of the row."""
        return self.numel * self.dtype.itemsize

    @property
    def equal(self) -> bool:
        """Whether all tensors have as many elements."""
        return len(set(lengths(self.bounds))) <= 1

    def take(self) -> Tensor:
        """Return the row, shape (numel,): the memory of a lone contiguous tensor, else a copy."""
        flats = [_flat(tensor) for tensor in self._tensors]
        return flats[0] if len(flats) == 1 else torch.cat(flats)

    def copy(self) -> Tensor:
        """Return the row in memory of its own."""
        row = self.take()
        return row.clone() if len(self._tensors) == 1 else row

    def room(self) -> Tensor:
        """Return a row to be filled: the memory of a lone contiguous tensor, else its own."""
        if len(self._tensors) == 1 and _plain(self._tensors[0]):
            return self._tensors[0].view(-1)
        return torch.empty(self.numel, dtype=self.dtype)

    def put(self, row: Tensor) -> None:
        """Fill the tensors with a row."""
        for tensor, (begin, end) in zip(self._tensors, pairwise(self.bounds), strict=True):
            piece = row[begin:end]
            if tensor.numel() and not (_plain(tensor) and piece.data_ptr() == tensor.data_ptr()):
                tensor.copy_(piece.view(tensor.shape))


def require_writable(what: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors to be filled whose elements share memory, as those of ``expand`` do.

    Args:
        what: the collective, for errors.
        tensors: what it fills.

    Raises:
        InvalidValueError: one of them is such a one.
    """
    for tensor in tensors:
        dense = tensor.layout is torch.strided and tensor.numel() > 0
        sides = zip(tensor.shape, tensor.stride(), strict=True) if dense else ()
        if any(size > 1 and stride == 0 for size, stride in sides):
            given = f"of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            rule = "one with memory for every element, as .contiguous() or .clone() returns it"
            raise InvalidValueError(f"tensor of {what}", given, rule)


def _plain(tensor: Tensor) -> bool:
    """Say whether a tensor's memory reads as its elements do, in their order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def raw(row: Tensor) -> Tensor:
    """Return the bytes of a row."""
    return (torch.view_as_real(row) if row.is_complex() else row).view(-1).view(torch.uint8)
