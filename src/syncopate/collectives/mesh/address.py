"""Address: where other ranks reach this one, found as Gloo finds it.

``GLOO_SOCKET_IFNAME`` names the interface, else the host's name resolves to it. Ranks listen there
and nowhere else, so it has to be an address of this machine.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

from syncopate.collectives.mesh import sockets

_ELSEWHERE = ("192.0.2.1", 9)
"""An address of no network (RFC 5737): the way to it is the way to everywhere."""


def own_address() -> str:
    """Return the IPv4 address by which other ranks may reach this one, as Gloo chooses it."""
    for find in (_of_the_interface, _of_the_host_name, _towards_the_store, _towards_elsewhere):
        with suppress(OSError, ImportError, KeyError):
            found = find()
            if found and sockets.is_here(found):
                return found
    return "127.0.0.1"


def addresses_towards(store: tuple[str, int]) -> list[str]:
    """Return this host's addresses for ranks that reach the rendezvous store; the best one first.

    Where the store's host has an interface that is not the one of :func:`own_address`, ranks may
    reach either.
    """
    found = [own_address()]
    with suppress(OSError):
        found.append(sockets.address_towards(store))
    return sorted(dict.fromkeys(found), key=_is_loopback)


def _of_the_interface() -> str:
    import fcntl  # noqa: PLC0415 - not everywhere

    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if not name:
        return ""
    request_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        packed = struct.pack("256s", name[:15].encode())
        answer = fcntl.ioctl(any_socket.fileno(), request_address, packed)
    return socket.inet_ntoa(answer[20:24])


def _of_the_host_name() -> str:
    found = socket.gethostbyname(socket.gethostname())
    return "" if _is_loopback(found) else found


def _towards_the_store() -> str:
    """Return the address on the way to the master, unless there are hosts that it does not reach.

    Many a system resolves its own name to a loopback address.
    """
    found = _towards((os.environ["MASTER_ADDR"], 9))
    return "" if _several_hosts() and _is_loopback(found) else found


def _towards_elsewhere() -> str:
    return _towards(_ELSEWHERE) if _several_hosts() else ""


def _several_hosts() -> bool:
    """Say whether the launcher has told that other hosts take part."""
    here, all_ranks = (os.environ.get(name) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    return None not in (here, all_ranks) and here != all_ranks


def _towards(address: tuple[str, int]) -> str:
    return sockets.address_towards(address, socket.AF_INET)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
