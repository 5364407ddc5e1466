"""Pieces: the bytes of tensors as slices and bundles carry them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from syncopate.paramserver.tensors import (
    dtype_of,
    flat_bytes,
    is_direct,
    part_of,
    receiving,
    sending,
)
from syncopate.protocol.layout import BUNDLE, Bundle, Layout, Slice


class Pieces:
    """What is pushed or pulled at once, and where the bytes of each piece lie.

    Attributes:
        slices: slices, and bundles as slices.
    """

    def __init__(self, layout: Layout, slices: Sequence[Slice]) -> None:
        self.slices = slices
        keys = {piece.key for piece in slices}
        self._bundles = [bundle for bundle in layout.bundles if bundle.whole.key in keys]
        self._places: dict[int, Tensor] = {}

    @property
    def bundles(self) -> list[Bundle]:
        """The bundles among them."""
        return self._bundles

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return sum(piece.nbytes for piece in self.slices)

    @property
    def alone(self) -> set[str]:
        """Names of tensors that have slices in no bundle here."""
        return {piece.name for piece in self.slices if piece.key < BUNDLE}

    def put(self, key: int, data: Tensor) -> None:
        """Note the bytes of a piece."""
        self._places[key] = data

    def of(self, piece: Slice) -> Tensor:
        """Return the bytes of a piece, or of a slice in a bundle."""
        if piece.key not in self._places:  # its bundle has been split since
            for bundle in self._bundles:
                whole = self._places[bundle.whole.key]
                for member, begin, end in bundle.places():
                    self._places[member.key] = whole[begin:end]
        return self._places[piece.key]


def filled(layout: Layout, slices: Sequence[Slice], tensors: Mapping[str, Tensor]) -> Pieces:
    """Return pieces with the bytes of ``tensors``: of bundles a copy, of others where they lie."""
    found = Pieces(layout, slices)
    data = sending({name: tensors[name] for name in found.alone})
    for piece in slices:
        if piece.key < BUNDLE:
            found.put(piece.key, part_of(data[piece.name], piece))
    for bundle in found.bundles:
        parts = [_part(tensors[m.name].detach().reshape(-1), m) for m in bundle.members]
        if len({part.device for part in parts}) > 1:
            parts = [part.cpu() for part in parts]
        found.put(bundle.whole.key, flat_bytes(torch.cat(parts).cpu()))
    return found


def empty(
    layout: Layout, slices: Sequence[Slice], outs: Mapping[str, Tensor]
) -> tuple[Pieces, Callable[[], None]]:
    """Return pieces to receive ``outs`` in, and what puts there what does not lie there."""
    found = Pieces(layout, slices)
    data, finish = receiving({name: outs[name] for name in found.alone})
    for piece in slices:
        if piece.key < BUNDLE:
            found.put(piece.key, part_of(data[piece.name], piece))
    for bundle in found.bundles:
        found.put(bundle.whole.key, torch.empty(bundle.whole.nbytes, dtype=torch.uint8))

    def finish_all() -> None:
        finish()
        for bundle in found.bundles:
            _scatter(bundle, found.of(bundle.whole), outs)

    return found, finish_all


def _part(flat: Tensor, piece: Slice) -> Tensor:
    if piece.numel == flat.numel():
        return flat
    return flat[piece.begin : piece.begin + piece.numel]


def _scatter(bundle: Bundle, data: Tensor, outs: Mapping[str, Tensor]) -> None:
    parts = data.view(dtype_of(bundle.whole.dtype)).split([m.numel for m in bundle.members])
    targets, sources = [], []
    for member, part in zip(bundle.members, parts, strict=True):
        out = outs[member.name].detach()
        if is_direct(out):
            targets.append(_part(out.view(-1), member))
            sources.append(part)
        else:
            whole = out.cpu().reshape(-1).clone()
            _part(whole, member).copy_(part)
            out.copy_(whole.view(out.shape))
    if targets:
        torch._foreach_copy_(targets, sources)
