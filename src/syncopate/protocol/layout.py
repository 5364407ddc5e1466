"""Layout: how tensors are cut into slices, and which server keeps each.

All of it follows from names, sizes, the number of servers and the largest slice, so that every
worker comes to the same without asking.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.rules import STEPS
from syncopate.units import DTYPE_BYTES, KIB, MIB, dtype_bytes

_UNIT = 64
"""Tensors are cut at multiples of this many elements.

In 16 bits torch rounds the last few elements of an operation, which fill no vector register,
otherwise than the rest: so slices have no such ends where their tensor has none.
"""

BUNDLE = 2**30
"""Slices have keys below it, bundles from it on."""

_BUNDLE_LEAST = 64
"""Fewer small slices are not bundled."""

_BUNDLE_SLICE_BYTES = 64 * KIB
"""Larger slices travel by themselves: a message costs little beside them."""

_BUNDLE_BYTES = MIB
"""What a bundle has at most."""

_BUNDLED = ("float32", "float64")
"""In 16 bits an update of many slices as one would round otherwise; see :data:`_UNIT`."""

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


class Bundle(msgspec.Struct, frozen=True):
    """Small slices of one server that are pushed, updated and pulled as one, while all are.

    [Note: bundles] A message costs some tenths of a millisecond of processor whatever it carries.
    So small slices of one server and element type, in the order of their keys, are one more slice,
    with a key of its own and their elements one behind the other: their bundle. Messages, flows and
    updates know no difference. It stays whole as long as its slices are pushed and pulled together.
    When a message concerns one of them alone, worker and server split the bundle: each slice goes
    on by itself from where the bundle was, with its numbers of pushes and requests, and what
    arrives for the bundle counts for each of them. It is split for ever.

    Attributes:
        whole: the bundle as a slice.
        members: the slices in it.
    """

    whole: Slice
    members: tuple[Slice, ...]

    def places(self) -> Iterable[tuple[Slice, int, int]]:
        """Give each member, and where its bytes begin and end in those of the bundle."""
        begin = 0
        for member in self.members:
            yield member, begin, begin + member.nbytes
            begin += member.nbytes


def bundles_of(slices: Iterable[Slice]) -> list[Bundle]:
    """Return the bundles of one server's ``slices``; the same for whoever asks."""
    found: list[Bundle] = []
    small = [s for s in slices if s.dtype in _BUNDLED and s.nbytes <= _BUNDLE_SLICE_BYTES]
    for dtype in _BUNDLED:
        members: list[Slice] = []
        nbytes = 0
        for piece in sorted((s for s in small if s.dtype == dtype), key=lambda s: s.key):
            if nbytes + piece.nbytes > _BUNDLE_BYTES:
                found += _bundle(members)
                members, nbytes = [], 0
            members.append(piece)
            nbytes += piece.nbytes
        found += _bundle(members)
    return found


def _bundle(members: list[Slice]) -> list[Bundle]:
    if len(members) < _BUNDLE_LEAST:
        return []
    first, numel = members[0], sum(member.numel for member in members)
    name = f"{first.name} and {len(members) - 1} more"
    return [Bundle(Slice(BUNDLE + first.key, name, first.dtype, 0, numel), tuple(members))]


def whole_among(bundles: Iterable[Bundle], keys: Collection[int]) -> list[Bundle]:
    """Return the bundles that are not split, where ``keys`` are those that something is known of.

    What is known of a bundle besides is older than that of its slices.
    """
    return [b for b in bundles if not any(member.key in keys for member in b.members)]


class Layout:
    """The slices of all tensors and the server of each.

    Attributes:
        slices: by key.
        server_of: the rank of each slice's server, by key.
        bundles: of all servers; their server is that of any of their slices.
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
        self.bundles = tuple(b for own in self._of_server for b in bundles_of(own))

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

    def pieces(self, names: Collection[str], split: Collection[int] = ()) -> list[Slice]:
        """Return what the tensors ``names`` are pushed or pulled as: bundles, and slices.

        Args:
            names: of tensors; each once.
            split: keys of bundles that are split.

        Raises:
            UnknownNameError: no such tensor.
        """
        together = [
            bundle
            for bundle in self.bundles
            if bundle.whole.key not in split
            and len(bundle.members) <= len(names)
            and all(m.name in names for m in bundle.members)
        ]
        bundled = {member.key for bundle in together for member in bundle.members}
        found = [bundle.whole for bundle in together]
        for name in names:
            found += [piece for piece in self.of_tensor(name) if piece.key not in bundled]
        return found


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
