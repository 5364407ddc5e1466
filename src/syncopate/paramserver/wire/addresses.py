"""Addresses: hosts and ports, as sockets and ZeroMQ write them."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from syncopate.errors import InvalidValueError


def endpoint(host: str, port: int) -> str:
    """Return the ZeroMQ address of a host and port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_local(host: str) -> bool:
    """Say whether ``host`` is this machine, for this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def numeric(host: str) -> str:
    """Return the address of a host name, as sockets are bound to it.

    Raises:
        InvalidValueError: it has none.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        rule = f"the name or address of a host ({error.strerror or error})"
        raise InvalidValueError("host", host, rule) from None
