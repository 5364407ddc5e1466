"""Declaring: what a server shall keep of tensors, said in parts that a message can hold."""

from __future__ import annotations

from syncopate.protocol import messages as msg
from syncopate.protocol.limits import DECLARE_BYTES
from syncopate.protocol.placement.layout import Layout
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import Rules

_SLICE_BYTES = 32
"""What a slice takes in a declaration at most, but for its name."""


def declared(layout: Layout, rules: Rules, server: int) -> list[msg.Declare]:
    """Return what a worker says to ``server``: its slices and how to update them."""
    parts: list[list[Slice]] = [[]]
    nbytes = 0
    for piece in layout.of_server(server):
        if nbytes > DECLARE_BYTES:
            parts.append([])
            nbytes = 0
        parts[-1].append(piece)
        nbytes += _SLICE_BYTES + len(piece.name.encode())
    digest, count = layout.digest, len(parts)
    return [
        msg.Declare(digest, rules, tuple(part), number, count) for number, part in enumerate(parts)
    ]


class Declarations:
    """What workers have said, until one of them has said all."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: dict[int, list[msg.Declare]] = {}

    def add(self, worker: int, declare: msg.Declare) -> tuple[Slice, ...] | None:
        """Return all that a worker declares; None while parts of it are missing."""
        same = (declare.digest, declare.parts)
        parts = [p for p in self._parts.get(worker, []) if (p.digest, p.parts) == same]
        if declare.part not in {p.part for p in parts}:
            parts.append(declare)
        self._parts[worker] = parts
        if len(parts) < declare.parts:
            return None
        self._parts.clear()
        ordered = sorted(parts, key=lambda each: each.part)
        return tuple(slice_ for each in ordered for slice_ in each.slices)
