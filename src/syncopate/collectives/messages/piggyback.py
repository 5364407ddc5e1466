"""Piggyback: tensors that travel exactly as elements of a sum of floats, where one rank has values.

Whose dtype the element type holds without loss travels as it is; of any other each byte is an
element. Large ones are cheaper in a broadcast, which moves every byte once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from syncopate.units import KIB, MIB

_RIDING_BYTES = 1 * MIB
_RIDING_BYTEWISE = 4 * KIB

_SMALL_EXACT = (torch.bool, torch.uint8, torch.int8)


class Ride(NamedTuple):
    """How a tensor travels as elements of a sum of floats.

    Attributes:
        direct: whether as it is, and not byte by byte.
        elements: of the sum that it takes.
    """

    direct: bool
    elements: int


def ride_of(tensor: Tensor, element: torch.dtype) -> Ride | None:
    """Return how ``tensor`` travels in a sum of ``element``, a real dtype; None if it cannot."""
    lossless = tensor.dtype in _SMALL_EXACT or (
        tensor.is_floating_point() and torch.promote_types(tensor.dtype, element) == element
    )
    if lossless and tensor.numel() * element.itemsize <= _RIDING_BYTES:
        return Ride(True, tensor.numel())
    if not lossless and tensor.nbytes <= _RIDING_BYTEWISE:
        return Ride(False, tensor.nbytes)
    return None


def riding_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of float32 elements that carry those tensors that can travel so."""
    rides = (ride_of(tensor, torch.float32) for tensor in tensors)
    return torch.float32.itemsize * sum(ride.elements for ride in rides if ride is not None)
