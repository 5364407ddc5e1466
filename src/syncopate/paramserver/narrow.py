"""Narrow: encodes gradients in fewer bits, and decodes them; see [Note: narrow pushes].

[Note: what 8 bits lose] A worker adds what was lost of a gradient to the next one that it pushes of
the same slice. So a gradient that is always too small for its block arrives in some steps instead
of never (error feedback; Seide et al., 2014, and Karimireddy et al., 2019).
"""

from __future__ import annotations

import torch
from torch import Tensor

from syncopate.paramserver.tensors import aligned, dtype_of, flat_bytes
from syncopate.protocol.gradients.narrow import BLOCK, SCALE_BYTES, is_narrowed
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import INT8

_MOST = 127


class Narrowing:
    """Narrows the gradients of one worker."""

    def __init__(self, push_dtype: str) -> None:
        """Lose nothing yet.

        Args:
            push_dtype: of the rules.
        """
        self._dtype = push_dtype
        self._lost: dict[int, Tensor] = {}

    @torch.no_grad()
    def encoded(self, piece: Slice, data: Tensor) -> Tensor:
        """Return what travels of a gradient.

        Args:
            piece: of it.
            data: its bytes.
        """
        if not is_narrowed(piece, self._dtype):
            return data
        gradient = data.view(dtype_of(piece.dtype))
        if self._dtype != INT8:
            return flat_bytes(gradient.to(dtype_of(self._dtype)))
        if (lost := self._lost.get(piece.key)) is not None:
            gradient = gradient + lost
        payload = encoded8(gradient)
        left = gradient - decoded8(payload, gradient.dtype)
        self._lost[piece.key] = left.nan_to_num_(0.0, 0.0, 0.0)
        return payload


def decoded(piece: Slice, push_dtype: str, payload: Tensor) -> Tensor:
    """Return a gradient of the type of ``piece`` from the bytes that travelled."""
    dtype = dtype_of(piece.dtype)
    if push_dtype == INT8:
        return decoded8(payload, dtype)
    return aligned(payload, dtype_of(push_dtype)).to(dtype)


def encoded8(gradient: Tensor) -> Tensor:
    """Return a gradient in 8 bits, as bytes.

    A block that is not finite comes back as NaN.

    Args:
        gradient: shape (elements,), float32 or float64.
    """
    numel = gradient.numel()
    blocks = _in_blocks(gradient)
    scales = (blocks.abs().amax(1) / _MOST).to(torch.float32)
    divisors = torch.where(scales == 0, 1.0, scales).to(gradient.dtype)
    whole = (blocks / divisors[:, None]).round_().clamp_(-_MOST, _MOST).nan_to_num_(0.0)
    elements = whole.to(torch.int8).view(-1)[:numel]
    return torch.cat([flat_bytes(scales), flat_bytes(elements)])


def decoded8(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient that :func:`encoded8` made bytes of, shape (elements,)."""
    count = -(-payload.numel() // (BLOCK + SCALE_BYTES))
    begin = count * SCALE_BYTES
    scales = aligned(payload[:begin], torch.float32).to(dtype)
    blocks = _in_blocks(payload[begin:].view(torch.int8).to(dtype))
    return blocks.mul_(scales[:, None]).view(-1)[: payload.numel() - begin]


def _in_blocks(values: Tensor) -> Tensor:
    """Return a copy of shape (blocks, BLOCK), with zeros at its end."""
    count = -(-values.numel() // BLOCK)
    blocks = values.new_zeros(count * BLOCK)
    blocks[: values.numel()] = values
    return blocks.view(count, BLOCK)
