"""Narrow: gradients in fewer bits than they have, on their way to servers.

[Note: narrow pushes] In 16 bits a gradient travels as the type says. In 8 bits it travels in blocks
of 1024 elements: of each block first its scale, the largest magnitude over 127 as float32, one
behind the other, and then the elements as whole numbers of scales. The first values of weights and
the weights themselves are never narrowed, and servers add in the gradient's own type.
"""

from __future__ import annotations

from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import INT8
from syncopate.recipe import wire_dtype_of
from syncopate.units import dtype_bytes

BLOCK = 1024
"""Elements that share a scale."""

SCALE_BYTES = 4


def is_narrowed(piece: Slice, push_dtype: str) -> bool:
    """Say whether a gradient travels in fewer bits than it has."""
    return wire_dtype_of(piece.dtype, push_dtype) != piece.dtype


def push_bytes(piece: Slice, push_dtype: str) -> int:
    """Return the bytes of a push of ``piece``."""
    dtype = wire_dtype_of(piece.dtype, push_dtype)
    blocks = -(-piece.numel // BLOCK) if dtype == INT8 and is_narrowed(piece, push_dtype) else 0
    return piece.numel * dtype_bytes(dtype) + blocks * SCALE_BYTES
