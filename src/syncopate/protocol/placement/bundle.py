"""Bundles: small slices of one server that are pushed, updated and pulled as one.

[Note: bundles] A message costs some tenths of a millisecond of processor, however little it
carries. So small slices of one server, element type and group, in the order of their keys, are
one more slice, with a key of its own and their elements one behind the other. Messages, flows and
updates know no difference.

When a message concerns only some of them, worker and server each cut the bundle: its parts go on
from where it was, with its numbers of pushes and requests. What arrives for a whole that the
receiver has cut counts for each of its parts. So the two need not have the same parts at a time,
and nothing has to be agreed. Parts are never put together again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from syncopate.protocol.placement.piece import Slice
from syncopate.units import KIB, MIB, dtype_bytes

BUNDLE = 2**31
"""Slices have keys below it, bundles from it on: how many slices, times this, and the first key."""

_LEAST = 64
"""Fewer small slices are not bundled."""

_SLICE_BYTES = 64 * KIB
"""Larger slices travel by themselves: a message costs little beside them."""

_BYTES = MIB
"""What a bundle has at most."""

_DTYPES = ("float32", "float64")
"""In 16 bits an update of many slices as one would round otherwise; see ``layout``."""

_MOST_PARTS = 64
"""A bundle that has more parts is not worth it: its slices go on by themselves."""

LEAST_RUN = 16
"""How many slices that follow each other are worth a bundle, on average."""

Place = tuple[Slice, int, int]
"""A part of a bundle, and where its bytes begin and end in those of the bundle."""


class Bundle(msgspec.Struct, frozen=True):
    """Slices that are one.

    Attributes:
        members: the slices, by key.
    """

    members: tuple[Slice, ...]

    def part(self, begin: int, end: int) -> Slice:
        """Return the members from ``begin`` to ``end`` as one slice."""
        first = self.members[begin]
        if end - begin == 1:
            return first
        numel = sum(member.numel for member in self.members[begin:end])
        name = f"{first.name} and {end - begin - 1} more"
        key = (end - begin) * BUNDLE + first.key
        return Slice(key, name[-1024:], first.dtype, 0, numel, group=first.group)

    @property
    def whole(self) -> Slice:
        """All of it as one slice."""
        return self.part(0, len(self.members))

    def runs(self, names: Collection[str]) -> list[tuple[int, int]]:
        """Return where the members of the tensors ``names`` follow each other, if worth it."""
        edges: list[int] = []
        for at, member in enumerate(self.members):
            if (member.name in names) != (len(edges) % 2 == 1):
                edges.append(at)
        if len(edges) % 2:
            edges.append(len(self.members))
        found = list(zip(edges[::2], edges[1::2], strict=True))
        worth = sum(end - begin for begin, end in found) >= LEAST_RUN * len(found)
        return found if worth else []


def bundles_of(slices: Iterable[Slice], apart: Collection[int] = ()) -> list[Bundle]:
    """Return the bundles of one server's ``slices``, the same on worker and server.

    Args:
        slices: all of them.
        apart: groups whose slices are in none.
    """
    found: list[Bundle] = []
    ordered = sorted(slices, key=lambda piece: piece.key)
    alike: dict[tuple[str, int], list[Slice]] = {}
    for piece in ordered:
        small = piece.dtype in _DTYPES and piece.nbytes <= _SLICE_BYTES
        if small and piece.group not in apart:
            alike.setdefault((piece.dtype, piece.group), []).append(piece)
    for (dtype, _), pieces in sorted(alike.items()):
        itemsize = dtype_bytes(dtype)
        members: list[Slice] = []
        numel = 0
        for piece in pieces:
            if (numel + piece.numel) * itemsize > _BYTES:
                found.append(Bundle(tuple(members)))
                members, numel = [], 0
            members.append(piece)
            numel += piece.numel
        found.append(Bundle(tuple(members)))
    return [bundle for bundle in found if len(bundle.members) >= _LEAST]


class Cut(msgspec.Struct, frozen=True):
    """A bundle, or a part of one, that is no longer one.

    Attributes:
        key: its key.
        parts: what goes on in its place, in order.
    """

    key: int
    parts: tuple[Slice, ...]

    def places(self) -> Iterator[Place]:
        """Give each part, and where its bytes are in those of the whole."""
        begin = 0
        for part in self.parts:
            yield part, begin, begin + part.nbytes
            begin += part.nbytes


class _Span(NamedTuple):
    bundle: int
    begin: int
    end: int


class Partition:
    """The parts that bundles have at present.

    Attributes:
        parts: by key; a part that is one slice has the slice's key.
    """

    def __init__(self, bundles: Iterable[Bundle], known: Iterable[int] = ()) -> None:
        """Begin with whole bundles, or with parts.

        Args:
            bundles: all.
            known: keys of parts that something is known of. Of parts that are in others the
                smaller ones count: what is known of the others is older.
        """
        self._bundles = list(bundles)
        self._where = {
            member.key: (number, at)
            for number, bundle in enumerate(self._bundles)
            for at, member in enumerate(bundle.members)
        }
        self._bounds = [[0, len(bundle.members)] for bundle in self._bundles]
        for span in filter(None, map(self._span, known)):
            bounds = self._bounds[span.bundle]
            self._bounds[span.bundle] = sorted({*bounds, span.begin, span.end})
        self._bytes = [
            [0, *accumulate(member.nbytes for member in bundle.members)] for bundle in self._bundles
        ]
        self.parts: dict[int, Slice] = {}
        for bundle, bounds in zip(self._bundles, self._bounds, strict=True):
            parts = [bundle.part(begin, end) for begin, end in pairwise(bounds)]
            self.parts |= {part.key: part for part in parts}

    def __contains__(self, key: int) -> bool:
        """Say whether ``key`` is of a slice in a bundle, or of slices that follow each other."""
        return self._span(key) is not None

    def members(self, key: int) -> tuple[Slice, ...]:
        """Return the slices that ``key`` stands for."""
        span = self._span(key)
        assert span is not None
        return self._bundles[span.bundle].members[span.begin : span.end]

    def cut(self, key: int) -> list[Cut]:
        """Cut what has more than the slices that ``key`` stands for."""
        span = self._span(key)
        assert span is not None
        bounds, bundle = self._bounds[span.bundle], self._bundles[span.bundle]
        found = []
        for at in (span.begin, span.end):
            if at in bounds:
                continue
            place = bisect_right(bounds, at)
            begin, end = bounds[place - 1], bounds[place]
            inner = [edge for edge in (span.begin, span.end) if begin < edge < end]
            if len(bounds) + len(inner) > _MOST_PARTS:
                inner = list(range(begin + 1, end))
            parts = tuple(bundle.part(*edges) for edges in pairwise([begin, *inner, end]))
            whole = bundle.part(begin, end).key
            del self.parts[whole]
            self.parts |= {part.key: part for part in parts}
            bounds[place:place] = inner
            found.append(Cut(whole, parts))
        return found

    def within(self, key: int) -> list[Place]:
        """Return the parts of which ``key`` consists, after :meth:`cut`."""
        span = self._span(key)
        assert span is not None
        bounds, nbytes = self._bounds[span.bundle], self._bytes[span.bundle]
        inner = bounds[bisect_right(bounds, span.begin - 1) : bisect_right(bounds, span.end)]
        offset = nbytes[span.begin]
        bundle = self._bundles[span.bundle]
        return [
            (bundle.part(begin, end), nbytes[begin] - offset, nbytes[end] - offset)
            for begin, end in pairwise(inner)
        ]

    def _span(self, key: int) -> _Span | None:
        count, first = divmod(key, BUNDLE)
        place = self._where.get(first)
        if place is None:
            return None
        number, begin = place
        end = begin + max(count, 1)
        return _Span(number, begin, end) if end <= len(self._bundles[number].members) else None
