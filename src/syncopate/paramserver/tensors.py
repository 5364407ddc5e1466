"""Tensors as frames, and frames as tensors, without copying either."""

from __future__ import annotations

import ctypes
import platform
import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
import zmq
from torch import Tensor

from syncopate.protocol.placement.piece import Slice
from syncopate.units import dtype_bytes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_WHOLE_BYTES = 32 << 20
_KEPT_FREE_BYTES = 1 << 30


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous CPU tensor, in its own memory."""
    return tensor.detach().view(-1).view(torch.uint8)


def is_direct(tensor: Tensor) -> bool:
    """Say whether it is sent from, and received into, where it lies."""
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def cpu_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, on the CPU; in its own memory where it :func:`is_direct`."""
    return flat_bytes(tensor.detach().cpu().contiguous())


def part_of(data: Tensor, piece: Slice) -> Tensor:
    """Return the bytes of a slice among those of its tensor, in the same memory."""
    if piece.nbytes == data.numel():
        return data
    begin = piece.begin * dtype_bytes(piece.dtype)
    return data[begin : begin + piece.nbytes]


def frame_of(data: Tensor, let_go: Callable[[], None] | None = None) -> zmq.Frame:
    """Return a tracked frame with the bytes ``data``; large ones stay where they lie.

    Args:
        data: shape (bytes,).
        let_go: called, in any thread, when ZeroMQ no longer needs a large one.
    """
    array = data.numpy()
    if let_go is not None and data.numel() >= zmq.COPY_THRESHOLD:
        weakref.finalize(array, let_go).atexit = False
    return zmq.Frame(array, track=True)


def tensor_of(frame: zmq.Frame, dtype: torch.dtype) -> Tensor:
    """Return the elements in ``frame``, as :func:`aligned` does."""
    if not len(frame):
        return torch.empty(0, dtype=dtype)
    return aligned(torch.frombuffer(frame.buffer, dtype=torch.uint8), dtype)


def aligned(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the elements in the bytes ``data``, in the same memory where that is aligned.

    Shape: (elements,).
    """
    return (data.clone() if data.data_ptr() % dtype.itemsize else data).view(dtype)


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Return the bytes of contiguous CPU tensors, one behind the other."""
    return torch.cat([flat_bytes(part) for part in parts])


def parted(data: Tensor, carried: Mapping[str, tuple[str, int]]) -> dict[str, Tensor]:
    """Return copies of what lies one behind the other in the bytes ``data``.

    Args:
        data: shape (bytes,).
        carried: name -> element type and elements, in their order.
    """
    found, begin = {}, 0
    for name, (kind, numel) in carried.items():
        dtype = dtype_of(kind)
        end = begin + numel * dtype.itemsize
        found[name] = data[begin:end].clone().view(dtype)  # aligned
        begin = end
    return found


def keep_freed_memory() -> None:
    """Let this process keep the memory of received frames for the next ones.

    Without, the C library gives it back to the system after every large frame, and the system
    zeroes it anew for the next: that costs a server up to a third of a push. Only glibc is told;
    others do as they do.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _KEPT_WHOLE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


def dtype_of(name: str) -> torch.dtype:
    """Return torch's element type of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
