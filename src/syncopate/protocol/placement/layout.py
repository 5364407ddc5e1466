"""Layout: how tensors are cut into slices, and which server keeps each.

All of it follows from names, sizes, the number of servers and the largest slice, so that every
worker comes to the same without asking.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable
from functools import cached_property

import msgspec

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.placement.bundle import BUNDLE, LEAST_RUN, Partition, bundles_of
from syncopate.protocol.placement.piece import Slice
from syncopate.units import DTYPE_BYTES, dtype_bytes

_UNIT = 64
"""Tensors are cut at multiples of this many elements.

In 16 bits torch rounds the last few elements of an operation, which fill no vector register,
otherwise than the rest: so slices have no such ends where their tensor has none.
"""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that the servers keep.

    Attributes:
        name: of it.
        dtype: of its elements.
        numel: its elements.
        group: whose rules update it.
    """

    name: str
    dtype: str
    numel: int
    group: int = 0


class Layout:
    """The slices of all tensors and the server of each.

    Attributes:
        slices: by key.
        server_of: the rank of each slice's server, by key.
        bundles: of all servers; their server is that of any of their slices.
        digest: a hash of both; two workers with the same digest agree.
    """

    def __init__(
        self,
        tensors: Iterable[TensorSpec],
        servers: int,
        slice_bytes: int,
        apart: Collection[int] = (),
    ) -> None:
        """Cut ``tensors`` and spread the slices over ``servers`` servers.

        The largest slice goes first, each to the server that has the fewest bytes. So the servers'
        bytes differ by no more than the largest slice. Slices of the groups ``apart`` are in no
        bundle.

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
        loads = [(0, rank) for rank in range(servers)]
        owners = [0] * len(slices)
        sizes = [piece.nbytes for piece in slices]
        for key in sorted(range(len(slices)), key=lambda key: -sizes[key]):
            load, server = loads[0]
            owners[key] = server
            heapq.heapreplace(loads, (load + sizes[key], server))
        self.server_of = tuple(owners)
        self.digest = hashlib.sha256(msgspec.msgpack.encode((self.slices, owners))).hexdigest()
        self._of_tensor: dict[str, list[Slice]] = {name: [] for name in names}
        self._of_server: list[list[Slice]] = [[] for _ in range(servers)]
        for piece, server in zip(slices, owners, strict=True):
            self._of_tensor[piece.name].append(piece)
            self._of_server[server].append(piece)
        self.bundles = tuple(b for own in self._of_server for b in bundles_of(own, apart))

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
        return tuple(self._of_server[rank])

    def pieces(self, names: Collection[str]) -> list[Slice]:
        """Return what the tensors ``names`` are pushed or pulled as: bundles, and slices.

        Raises:
            UnknownNameError: no such tensor.
        """
        found: list[Slice] = []
        bundled: set[int] = set()
        done: set[str] = set()
        for bundle in self.bundles if len(names) >= LEAST_RUN else ():
            for begin, end in bundle.runs(names):
                found.append(bundle.part(begin, end))
                bundled.update(member.key for member in bundle.members[begin:end])
                done.update(member.name for member in bundle.members[begin:end])
        for name in names:
            pieces = self.of_tensor(name)
            if name not in done or len(pieces) > 1:
                found += [piece for piece in pieces if piece.key not in bundled]
        return found

    @cached_property
    def _whole(self) -> Partition:
        return Partition(self.bundles)

    def members(self, piece: Slice) -> tuple[Slice, ...]:
        """Return the slices in a bundle; of a slice itself."""
        return self._whole.members(piece.key) if piece.key >= BUNDLE else (piece,)


def _cut(tensor: TensorSpec, slice_bytes: int, first_key: int) -> list[Slice]:
    if tensor.dtype not in DTYPE_BYTES:
        raise UnknownNameError("dtype", tensor.dtype, DTYPE_BYTES, tensor.name)
    most = max(1, slice_bytes // dtype_bytes(tensor.dtype))
    unit = min(_UNIT, most)
    whole = Slice(first_key, tensor.name, tensor.dtype, 0, tensor.numel, group=tensor.group)
    if tensor.numel <= most // unit * unit:
        return [whole]
    blocks = -(-tensor.numel // unit)
    count = max(1, -(-blocks // (most // unit)))
    bounds = [min(blocks * part // count * unit, tensor.numel) for part in range(count + 1)]
    replace = msgspec.structs.replace
    return [
        replace(whole, key=first_key + part, begin=bounds[part], numel=end - bounds[part])
        for part, end in enumerate(bounds[1:])
    ]
