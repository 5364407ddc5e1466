"""Address: where other ranks reach this one, found as Gloo finds it.

``GLOO_SOCKET_IFNAME`` names the interface, else the host's name resolves to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct


def own_address() -> str:
    """Return the IPv4 address by which other ranks may reach this one, as Gloo chooses it."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if name:
        with contextlib.suppress(OSError, ImportError):
            return _interface_address(name)
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found
    with (
        contextlib.suppress(OSError, KeyError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        # Connecting a datagram socket sends nothing, but shows which interface leads there.
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _interface_address(name: str) -> str:
    import fcntl  # noqa: PLC0415 - not everywhere

    request_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        packed = struct.pack("256s", name[:15].encode())
        answer = fcntl.ioctl(any_socket.fileno(), request_address, packed)
    return socket.inet_ntoa(answer[20:24])
