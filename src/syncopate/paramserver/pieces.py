"""Pieces: the bytes of tensors as slices and bundles carry them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.paramserver.tensors import (
    cpu_bytes,
    dtype_of,
    flat_bytes,
    is_direct,
    part_of,
)
from syncopate.protocol.placement.bundle import BUNDLE
from syncopate.protocol.placement.layout import Layout, TensorSpec
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import OptimizerRule, Rules
from syncopate.units import dtype_name


class Declared:
    """The tensors that the servers keep.

    Attributes:
        layout: their slices.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        servers: int,
        slice_bytes: int,
        rules: Rules,
        groups: Mapping[str, int],
    ) -> None:
        """Cut ``tensors``, by name, for so many servers, which update them by ``rules``.

        ``groups`` are those that are not 0.

        Raises:
            InvalidValueError: there is none.
            UnknownNameError: an element type that is not sent.
        """
        self._specs = [
            TensorSpec(name, dtype_name(each.dtype), each.numel(), groups.get(name, 0))
            for name, each in tensors.items()
        ]
        self._slice_bytes, self._apart = slice_bytes, rules.apart
        self.lay_out(servers)
        self._shapes = {name: (t.numel(), t.dtype) for name, t in tensors.items()}

    def lay_out(self, servers: int) -> None:
        """Cut the tensors for another number of servers."""
        self.layout = Layout(self._specs, servers, self._slice_bytes, self._apart)

    def empty(self) -> dict[str, Tensor]:
        """Return tensors to pull all into, flat."""
        return {n: torch.empty(numel, dtype=dtype) for n, (numel, dtype) in self._shapes.items()}

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._shapes.keys()

    def slices(self, tensors: Mapping[str, Tensor | None]) -> list[Slice]:
        """Return what some tensors are pushed or pulled as.

        Raises:
            UnknownNameError, InvalidValueError: no such tensor, or not as it was declared.
        """
        if not tensors:
            raise InvalidValueError("tensors", "none", "one or more")
        found = self.layout.pieces(tensors)
        for key, tensor in tensors.items():
            numel, dtype = self._shapes[key]
            if tensor is None:
                continue
            if tensor.numel() != numel or tensor.dtype != dtype:
                rule = f"{numel} elements of {dtype_name(dtype)}, as init() was given"
                found_as = f"{tensor.numel()} of {dtype_name(tensor.dtype)}"
                raise InvalidValueError(key, found_as, rule)
        return found


def updated_by(
    rules: Rules,
    optimizer: OptimizerRule | Mapping[str, OptimizerRule] | None,
    tensors: Mapping[str, Tensor],
) -> tuple[Rules, Mapping[str, int]]:
    """Return rules for ``tensors``, and the groups of those that have an optimizer of their own.

    Args:
        rules: of the store.
        optimizer: instead of theirs; or one for some tensors each; None: theirs.
        tensors: by name.

    Raises:
        InvalidValueError: a value is out of its range.
        UnknownNameError: an optimizer of no tensor.
    """
    groups: Mapping[str, int] = {}
    if isinstance(optimizer, Mapping):
        for name in optimizer:
            if name not in tensors:
                raise UnknownNameError("tensor of an optimizer", name, tensors)
        rules, groups = rules.grouped(optimizer)
    elif optimizer is not None:
        rules = msgspec.structs.replace(rules, optimizer=optimizer)
    return rules.require_valid(), groups


Pieces = dict[int, Tensor]
"""The bytes of slices and bundles, by their keys."""


def filled(layout: Layout, slices: Sequence[Slice], tensors: Mapping[str, Tensor]) -> Pieces:
    """Return pieces with the bytes of ``tensors``: of bundles a copy, of others where they lie."""
    data = {name: cpu_bytes(tensors[name]) for name in _not_bundled(slices)}
    found = {}
    for piece in slices:
        if piece.key < BUNDLE:
            found[piece.key] = part_of(data[piece.name], piece)
            continue
        with torch.no_grad():
            parts = [_part(_flat(tensors[m.name]), m) for m in layout.members(piece)]
            if len({part.device for part in parts}) > 1:
                parts = [part.cpu() for part in parts]
            found[piece.key] = flat_bytes(torch.cat(parts).cpu())
    return found


def empty(
    layout: Layout, slices: Sequence[Slice], outs: Mapping[str, Tensor]
) -> tuple[Pieces, Callable[[], None]]:
    """Return pieces to receive ``outs`` in, and what puts there what does not lie there."""
    lying = {}
    for name in _not_bundled(slices):
        out = outs[name]
        lying[name] = out if is_direct(out) else torch.empty(out.shape, dtype=out.dtype)
    found = {}
    for piece in slices:
        if piece.key < BUNDLE:
            found[piece.key] = part_of(flat_bytes(lying[piece.name]), piece)
        else:
            found[piece.key] = torch.empty(piece.nbytes, dtype=torch.uint8)

    def finish() -> None:
        for name, tensor in lying.items():
            if tensor is not outs[name]:
                outs[name].detach().copy_(tensor)
        for piece in slices:
            if piece.key >= BUNDLE:
                values = found[piece.key].view(dtype_of(piece.dtype))
                _scatter(layout.members(piece), values, outs)

    return found, finish


def _not_bundled(slices: Sequence[Slice]) -> set[str]:
    """Return the names of tensors that do not travel in bundles alone."""
    return {piece.name for piece in slices if piece.key < BUNDLE}


def _flat(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 1 else tensor.reshape(-1)


def _part(flat: Tensor, piece: Slice) -> Tensor:
    if piece.numel == flat.numel():
        return flat
    return flat[piece.begin : piece.begin + piece.numel]


@torch.no_grad()
def _scatter(members: Sequence[Slice], values: Tensor, outs: Mapping[str, Tensor]) -> None:
    targets, sources = [], []
    parts = values.split_with_sizes([member.numel for member in members])
    for member, part in zip(members, parts, strict=True):
        out = outs[member.name]
        if is_direct(out):
            targets.append(_part(_flat(out), member))
            sources.append(part)
        else:
            whole = out.cpu().reshape(-1).clone()
            _part(whole, member).copy_(part)
            out.copy_(whole.view(out.shape))
    if targets:
        torch._foreach_copy_(targets, sources)
