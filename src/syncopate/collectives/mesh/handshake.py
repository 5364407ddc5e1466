"""Handshake: one TCP connection between every two ranks of a group, or none at all.

Every rank listens where its peers find it, tells all of them the address and a number that it drew,
calls the ranks below it and answers those above. All calls and all answers go on at once, so that
a connection that says nothing keeps no rank waiting. Who may connect is for
:mod:`syncopate.collectives.mesh.admission` to say.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import select
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
import torch.distributed as dist

from syncopate.collectives import transport
from syncopate.collectives.backend.native import Native
from syncopate.collectives.mesh.address import own_address
from syncopate.collectives.mesh.admission import WELCOME_BYTES, Admission, Secret, secret_of
from syncopate.collectives.mesh.sockets import listener
from syncopate.collectives.messages.objects import Objects

CONNECT_S = 10.0
"""How long the ranks take at most to connect."""

_ATTEMPTS = 5
_AGAIN_S = 0.1
_POLL_S = 0.1
_NAMED = 3
_log = logging.getLogger("syncopate")


class Address(NamedTuple):
    """Where a rank listens, and the number that callers have to know."""

    host: str
    port: int
    nonce: bytes


class Met(NamedTuple):
    """What came of a handshake.

    Attributes:
        found: the connection to every rank that was reached; they do not block.
        faults: a sentence about every other rank.
    """

    found: dict[int, socket.socket]
    faults: list[str]

    def close(self) -> None:
        """Close the connections."""
        for connection in self.found.values():
            connection.close()


def connections(group: dist.ProcessGroup, timeout_s: float) -> dict[int, socket.socket] | None:
    """Connect every two ranks of ``group``; all of its ranks must call this.

    Args:
        group: any group that serves CPU tensors.
        timeout_s: how long to wait for a rank.

    Returns:
        The socket of every other rank; None on every rank where some pair could not connect, which
        the group's first rank logs.

    Raises:
        RuntimeError: a rank did not come.
    """
    rank, world_size = group.rank(), group.size()
    objects = Objects(Native(group), torch.device("cpu"))
    secret = secret_of(transport.job_store())
    with ExitStack() as stack:
        admission = address = None
        met = Met({}, [])
        try:
            server = listener(own_address())
            admission = Admission([server], secret, world_size)
            stack.callback(admission.close)
            host, port = server.getsockname()[:2]
            address = Address(host, port, admission.nonce)
        except OSError as error:
            met.faults.append(f"rank {rank} cannot listen: {error}")
        addresses = objects.all_gather(address)
        if admission is not None and None not in addresses:
            try:
                met = meet(rank, addresses, admission, secret, min(timeout_s, CONNECT_S))
            except OSError as error:
                met.faults.append(f"rank {rank} cannot connect to any other: {error}")
    try:
        faults = [fault for found in objects.all_gather(met.faults) for fault in found]
    except BaseException:
        met.close()
        raise
    if not faults:
        return met.found
    met.close()
    if rank == 0:
        say_why_not("; ".join(faults[:_NAMED]) + ("; ..." if len(faults) > _NAMED else ""))
    return None


def say_why_not(reason: str) -> None:
    """Log why there is no mesh; for one rank to say."""
    _log.warning("there is no mesh, so messages go through torch and take longer: %s", reason)


def meet(
    rank: int,
    addresses: Sequence[Address],
    admission: Admission,
    secret: Secret,
    limit_s: float,
) -> Met:
    """Call the ranks below ``rank`` and let those above in, all at once.

    Args:
        rank: this rank.
        addresses: of every rank.
        admission: at this rank's own.
        secret: of the run.
        limit_s: how long it may take.
    """
    found: dict[int, socket.socket] = {}
    faults: list[str] = []
    calls = {peer: _Call(peer, addresses[peer], rank, secret) for peer in range(rank)}
    above = set(range(rank + 1, len(addresses)))
    deadline_s = time.monotonic() + limit_s
    while (calls or above) and time.monotonic() < deadline_s:
        ready = _wait(admission, calls.values())
        for newcomer in admission.admit():
            if newcomer.rank not in above:
                admission.turn_away(newcomer)
            elif _welcomed(newcomer.connection, newcomer.welcome):
                above.remove(newcomer.rank)
                found[newcomer.rank] = newcomer.connection
        for peer, call in list(calls.items()):
            if call.connection is not None and call.connection.fileno() in ready:
                call.move()
            if call.answered or call.fault:
                del calls[peer]
            if call.answered and call.connection is not None:
                found[peer] = call.connection
            elif call.fault:
                faults.append(call.fault)
    for call in calls.values():
        call.end(f"no answer within {limit_s:g} s")
        faults.append(call.fault)
    faults += [f"rank {peer} did not connect to rank {rank}" for peer in sorted(above)]
    return Met(found, faults)


class _Call:
    """A call to a rank below: the connection under way, then its hello, then the welcome.

    Attributes:
        connection: while there is one.
        answered: whether the welcome came.
        fault: why there will be none; empty as long as there may.
    """

    def __init__(self, peer: int, address: Address, rank: int, secret: Secret) -> None:
        self.connection: socket.socket | None = None
        self.answered = False
        self.fault = ""
        self._who = f"rank {rank} cannot connect to rank {peer} at {address.host}:{address.port}"
        self._address = address
        self._rank = rank
        self._secret = secret
        self._hello = self._heard = b""
        self._attempts_left = _ATTEMPTS
        self._next_s = 0.0

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN if self._hello else select.POLLOUT

    def start(self) -> None:
        """Begin to connect, if it is time for an attempt."""
        if self.connection is not None or time.monotonic() < self._next_s:
            return
        self._attempts_left -= 1
        self._hello = self._heard = b""
        self.connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.connection.setblocking(False)
        code = begin_to_connect(self.connection, self._address)
        if code not in (0, errno.EINPROGRESS):
            self.end(os.strerror(code))

    def move(self) -> None:
        """Say the hello, or hear the welcome."""
        assert self.connection is not None
        try:
            if not self._hello:
                code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self.end(os.strerror(code))
                    return
                self._hello = self._secret.hello(self._address.nonce, self._rank)
                self.connection.sendall(self._hello)  # short enough to be taken whole
                return
            came = self.connection.recv(WELCOME_BYTES - len(self._heard))
        except BlockingIOError:
            return
        except OSError:
            came = b""
        self._heard += came
        if not came:
            self._again("the connection was closed")
        elif len(self._heard) == WELCOME_BYTES:
            self.answered = hmac.compare_digest(self._heard, self._secret.welcome(self._hello))
            if not self.answered:
                self._again("another program answered")

    def end(self, reason: str) -> None:
        """Give up."""
        self._hang_up()
        self.fault = f"{self._who}: {reason}"

    def _again(self, reason: str) -> None:
        self._hang_up()
        self._next_s = time.monotonic() + _AGAIN_S
        if not self._attempts_left:
            self.end(reason)

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def begin_to_connect(connection: socket.socket, address: Address) -> int:
    """Begin to connect a socket that does not block; return the kernel's error number."""
    return connection.connect_ex((address.host, address.port))


def _wait(admission: Admission, calls: Iterable[_Call]) -> set[int]:
    """Wait a moment for something to come; return the descriptors on which it did."""
    poll = select.poll()
    for waiting in admission.sockets:
        poll.register(waiting, select.POLLIN)
    for call in calls:
        call.start()
        if call.connection is not None:
            poll.register(call.connection, call.events)
    return {descriptor for descriptor, _ in poll.poll(_POLL_S * 1e3)}


def _welcomed(connection: socket.socket, welcome: bytes) -> bool:
    try:
        connection.sendall(welcome)
    except OSError:
        connection.close()  # it will come again, if it is still there
        return False
    return True
