"""Layout: how tensors are cut into slices, and which server keeps each.

All of it follows from names, sizes, the number of servers and the largest slice, so that every
worker comes to the same without asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.rules import STEPS
from syncopate.units import DTYPE_BYTES, dtype_bytes

_UNIT = 64
"""Tensors are cut at multiples of this many elements.

In 16 bits torch rounds the last few elements of an operation, which fill no vector register,
otherwise than the rest: so slices have no such ends where their tensor has none.
"""

_Number = Annotated[int, Meta(ge=0, lt=2**62)]


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that the servers keep: its name, its element type and its elements."""

    name: str
    dtype: str
    numel: int


class Slice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a tensor, or all of it: what is pushed, updated and pulled as one.

    Attributes:
        key: its number, by name and place; what messages call it.
        name: of the tensor.
        dtype: of its elements.
        begin: its first element in the flat tensor.
        numel: its elements.
    """

    key: Annotated[int, Meta(ge=0, lt=2**31)]
    name: Annotated[str, Meta(max_length=1024)]
    dtype: Annotated[str, Meta(max_length=32)]
    begin: _Number
    numel: _Number

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.numel * dtype_bytes(self.dtype)

    def carried(self, state: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Return what a message carries that has the weights, and the ``state`` behind them.

        Args:
            state: names of ``Rules.state``.

        Returns:
            Name -> element type and elements; the weights' name is empty.
        """
        own = (self.dtype, self.numel)
        return {"": own} | {name: ("int64", 1) if name == STEPS else own for name in state}

    def carried_bytes(self, state: Iterable[str]) -> int:
        """Return how many bytes that is."""
        return sum(numel * dtype_bytes(dtype) for dtype, numel in self.carried(state).values())


class Layout:
    """The slices of all tensors and the server of each.

    Attributes:
        slices: by key.
        server_of: the rank of each slice's server, by key.
        digest: a hash of both; two workers with the same digest agree.
    """

    def __init__(self, tensors: Iterable[TensorSpec], servers: int, slice_bytes: int) -> None:
        """Cut ``tensors`` and spread the slices over ``servers`` servers.

        The largest slice goes first, each to the server that has the fewest bytes. So the servers'
        bytes differ by no more than the largest slice.

        Raises:
            InvalidValueError: no server, no tensor, two tensors of one name.
            UnknownNameError: an element type that is not sent.
        """
        if servers < 1:
            raise InvalidValueError("servers", servers, "at least 1")
        ordered = sorted(tensors, key=lambda tensor: tensor.name)
        names = [tensor.name for tensor in ordered]
        if not names or len(set(names)) != len(names):
            raise InvalidValueError("tensors", names, "at least one, each with a name of its own")
        slices: list[Slice] = []
        for tensor in ordered:
            slices += _cut(tensor, slice_bytes, len(slices))
        self.slices = tuple(slices)
        loads = [0] * servers
        owners = [0] * len(slices)
        for piece in sorted(slices, key=lambda s: (-s.nbytes, s.key)):
            server = min(range(servers), key=lambda rank: (loads[rank], rank))
            owners[piece.key] = server
            loads[server] += piece.nbytes
        self.server_of = tuple(owners)
        self.digest = hashlib.sha256(msgspec.msgpack.encode((self.slices, owners))).hexdigest()
        self._of_tensor: dict[str, list[Slice]] = {name: [] for name in names}
        for piece in slices:
            self._of_tensor[piece.name].append(piece)

    def of_tensor(self, name: str) -> list[Slice]:
        """Return the slices of the tensor ``name``, in its order.

        Raises:
            UnknownNameError: no such tensor.
        """
        if name not in self._of_tensor:
            raise UnknownNameError("key", name, self._of_tensor)
        return self._of_tensor[name]

    def of_server(self, rank: int) -> tuple[Slice, ...]:
        """Return the slices of the server ``rank``, by key."""
        return tuple(s for s in self.slices if self.server_of[s.key] == rank)


def _cut(tensor: TensorSpec, slice_bytes: int, first_key: int) -> list[Slice]:
    if tensor.dtype not in DTYPE_BYTES:
        raise UnknownNameError("dtype", tensor.dtype, DTYPE_BYTES, tensor.name)
    most = max(1, slice_bytes // dtype_bytes(tensor.dtype))
    unit = min(_UNIT, most)
    blocks = -(-tensor.numel // unit)
    count = max(1, -(-blocks // (most // unit)))
    bounds = [min(blocks * part // count * unit, tensor.numel) for part in range(count + 1)]
    return [
        Slice(first_key + part, tensor.name, tensor.dtype, bounds[part], end - bounds[part])
        for part, end in enumerate(bounds[1:])
    ]
