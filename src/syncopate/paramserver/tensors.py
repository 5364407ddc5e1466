"""Tensors as frames, and frames as tensors, without copying either."""

from __future__ import annotations

import torch
import zmq
from torch import Tensor


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous CPU tensor, in its own memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def frame_of(data: Tensor) -> zmq.Frame:
    """Return a tracked frame with the bytes ``data``; large ones stay where they lie."""
    return zmq.Frame(data.numpy(), track=True)


def tensor_of(frame: zmq.Frame, dtype: torch.dtype) -> Tensor:
    """Return the elements in ``frame``, in its own memory where that is aligned.

    Shape: (elements,).
    """
    if not len(frame):
        return torch.empty(0, dtype=dtype)
    data = torch.frombuffer(frame.buffer, dtype=torch.uint8)
    if data.data_ptr() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)


def dtype_of(name: str) -> torch.dtype:
    """Return torch's element type of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def name_of(dtype: torch.dtype) -> str:
    """Return the name of torch's element type, such as ``"float32"``."""
    return str(dtype).removeprefix("torch.")
