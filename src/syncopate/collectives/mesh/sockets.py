"""Sockets: what the kernel knows of TCP connections: that the other host is gone, what was sent."""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from syncopate.ports import bound

SILENCE = frozenset(
    {
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.ENETDOWN,
    }
)
"""Errors of a connection whose other end did not answer, rather than close it."""

_TCP_INFO = struct.Struct("=120xQ40xQQ")
"""Of Linux's ``struct tcp_info``: ``tcpi_bytes_acked``, ``tcpi_busy_time``, ``tcpi_rwnd_limited``.
The times are in microseconds."""

_MOST_PROBES = 60
_BACKLOG = 1024


def keep_alive(connection: socket.socket, limit_s: float) -> None:
    """Let the kernel probe the other end every second or so, and give it up after ``limit_s``.

    With 0 it never does. The connection does not block any more either way. Linux sends no probe
    while something that was sent has not been acknowledged: that has a limit of its own there.
    """
    connection.setblocking(False)
    if not limit_s:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS calls the first of them otherwise.
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    period_s = max(1, round(limit_s / _MOST_PROBES))
    for option, value in (
        (idle, period_s),
        (getattr(socket, "TCP_KEEPINTVL", None), period_s),
        (getattr(socket, "TCP_KEEPCNT", None), max(1, round(limit_s / period_s) - 1)),
        (getattr(socket, "TCP_USER_TIMEOUT", None), round(limit_s * 1e3)),
    ):
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Sending(NamedTuple):
    """What a connection has sent so far, as the kernel of the sender counts.

    Attributes:
        nbytes: bytes that the other end's kernel has acknowledged.
        busy_s: time in which any were under way, without that in which the other end had no room
            for more; counted in ticks of the kernel, 1 to 10 ms.
    """

    nbytes: int
    busy_s: float


def sending(connection: socket.socket) -> Sending | None:
    """Return what a connection has sent; None where the kernel does not count it.

    Linux does since 4.10. Another thread may close the connection meanwhile.
    """
    if sys.platform != "linux":
        return None
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(found) < _TCP_INFO.size:
        return None
    nbytes, busy_us, no_room_us = _TCP_INFO.unpack(found)
    return Sending(nbytes, max(busy_us - no_room_us, 0) / 1e6)


def signalled(connections: Iterable[socket.socket]) -> list[socket.socket]:
    """Return the connections with something to read or to report."""
    known = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for descriptor in known:
        poll.register(descriptor, select.POLLIN)
    return [known[descriptor] for descriptor, _ in poll.poll(0)]


def listener(host: str) -> socket.socket:
    """Return a socket that listens on an address of this machine and no other, without blocking.

    Its port is any free one, or one of those of :mod:`syncopate.ports`.

    Raises:
        OSError: it is no address of this machine, or no port is free.
        InvalidValueError: the range of ports is none.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = bound(lambda port: socket.create_server((host, port), family=family, backlog=_BACKLOG))
    made.setblocking(False)
    return made


def answers(address: tuple[str, int], limit_s: float) -> bool:
    """Say whether a socket listens at ``address``, within ``limit_s`` seconds."""
    try:
        with socket.create_connection(address, timeout=limit_s):
            return True
    except OSError:
        return False


def is_here(host: str) -> bool:
    """Say whether ``host`` is an address of this machine: only then can it be bound."""
    with suppress(OSError):
        for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
                return True
    return False


def address_towards(address: tuple[str, int], family: int = socket.AF_UNSPEC) -> str:
    """Return this host's address on the way to ``address``, of that family; sends nothing."""
    family, kind, *_, target = socket.getaddrinfo(*address, family, socket.SOCK_DGRAM)[0]
    # Connecting a datagram socket sends nothing, but shows which interface leads there.
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
