"""Figures: what a node says of itself for people, and what a scheduler tells them of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from syncopate.protocol.scalars import Address, Number


class Figures(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a node says of itself, for people.

    Attributes:
        step: of a worker, the most pushes of any slice that it sent; of a server, the highest
            version of any slice.
        slices: that a server keeps.
        nbytes: of the weights in them.
        queued: messages that wait to be sent.
        refused: messages that were.
    """

    step: Number = 0
    slices: Number = 0
    nbytes: Number = 0
    queued: Number = 0
    refused: Number = 0


class NodeStanding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a scheduler knows of one node.

    Attributes:
        role: server or worker.
        rank: that it has; -1: none yet.
        state: whether it is here.
        silent_s: since when it said nothing.
        address: of a server.
        figures: what it said of itself last.
    """

    role: Literal["server", "worker"]
    rank: Annotated[int, Meta(ge=-1, lt=2**16)]
    state: Literal["here", "lost", "left"]
    silent_s: float
    address: Address = ""
    figures: Figures = Figures()
