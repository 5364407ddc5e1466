"""Handshake: one TCP connection between every two ranks of a group, or none at all.

Every rank listens where its peers find it, tells all of them the address and a token of its own,
calls the ranks below it and answers those above. A caller says which rank it is and repeats the
token; who does not is turned away.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import Any, NamedTuple

import torch.distributed as dist

from syncopate.collectives.address import own_address

_CONNECT_S = 10.0
_HELLO = struct.Struct("<16sI")


class Address(NamedTuple):
    """Where a rank listens, and the token that a caller has to repeat."""

    host: str
    port: int
    token: bytes


def connections(group: dist.ProcessGroup, timeout_s: float) -> dict[int, socket.socket] | None:
    """Connect every two ranks of ``group``; all of its ranks must call this.

    Args:
        group: any group with object collectives.
        timeout_s: how long to wait for a rank.

    Returns:
        The socket of every other rank; None on every rank where some pair could not connect.

    Raises:
        RuntimeError: a rank did not come.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    found: dict[int, socket.socket] = {}
    deadline_s = time.monotonic() + min(timeout_s, _CONNECT_S)
    with socket.create_server(("", 0), backlog=world_size) as server:
        mine = Address(own_address(), server.getsockname()[1], os.urandom(16))
        addresses: list[Any] = [None] * world_size
        dist.all_gather_object(addresses, mine, group=group)
        try:
            for peer in range(rank):
                found[peer] = call(addresses[peer], rank, deadline_s)
            while len(found) < world_size - 1:
                peer, caller = answer(server, mine.token, deadline_s)
                found[peer] = caller
            connected = sorted([*found, rank]) == list(range(world_size))
        except OSError:
            connected = False
    verdicts: list[Any] = [None] * world_size
    dist.all_gather_object(verdicts, connected, group=group)
    if all(verdicts):
        return found
    for connection in found.values():
        connection.close()
    return None


def call(address: Address, rank: int, deadline_s: float) -> socket.socket:
    """Return a connection to who listens at ``address``, made in the name of ``rank``."""
    found = socket.create_connection(
        (address.host, address.port), timeout=max(deadline_s - time.monotonic(), 0.1)
    )
    found.sendall(_HELLO.pack(address.token, rank))
    return found


def answer(server: socket.socket, token: bytes, deadline_s: float) -> tuple[int, socket.socket]:
    """Return the next rank that calls, and its connection; strangers are turned away."""
    while True:
        server.settimeout(max(deadline_s - time.monotonic(), 0.1))
        found, _ = server.accept()
        found.settimeout(max(deadline_s - time.monotonic(), 0.1))
        with contextlib.suppress(OSError, struct.error):
            hello = found.recv(_HELLO.size, socket.MSG_WAITALL)
            said, rank = _HELLO.unpack(hello)
            if said == token:
                return rank, found
        found.close()
