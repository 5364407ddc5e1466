"""Piece: a slice of a tensor, which is what is pushed, updated and pulled as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from syncopate.protocol.rules import STEPS, Rules
from syncopate.protocol.scalars import Number
from syncopate.protocol.table import Table
from syncopate.units import dtype_bytes


class Slice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a tensor, or all of it: what is pushed, updated and pulled as one.

    Attributes:
        key: its number, by name and place; what messages call it.
        name: of the tensor.
        dtype: of its elements.
        begin: its first element in the flat tensor.
        numel: its elements.
        table: what it is a server's share of; ``numel`` is then that of all rows, of which the
            server has some. None: a part of a tensor.
        group: of its tensor, whose rules update it.
    """

    key: Annotated[int, Meta(ge=0, lt=2**31)]
    name: Annotated[str, Meta(max_length=1024)]
    dtype: Annotated[str, Meta(max_length=32)]
    begin: Number
    numel: Number
    table: Table | None = None
    group: Annotated[int, Meta(ge=0, lt=2**16)] = 0

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


class TableSlice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one server keeps of a table, and how it updates it."""

    slice: Slice
    rules: Rules
