"""Kernel: the few things a lab asks of Linux through pyroute2, and its refusals made readable.

pyroute2 is installed on Linux alone, so only functions import it: the rest of the lab, its
topologies above all, loads anywhere.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from syncopate.errors import SyncopateError

if TYPE_CHECKING:
    from pyroute2 import IPRoute

NAMESPACES = Path("/var/run/netns")
"""Where named network namespaces are mounted; ``ip netns`` finds them there too."""


_PATIENCE_S = 60
"""What pyroute2 allows its short-lived processes; its own 2 s are few beside busy ranks."""


def add_namespace(name: str) -> None:
    """Make a named network namespace."""
    from pyroute2 import config, netns  # noqa: PLC0415 - see the module

    config.default_communicate_timeout = config.default_create_socket_timeout = _PATIENCE_S
    netns.create(name)


def remove_namespace(name: str) -> None:
    """Remove a named network namespace; pass over one that does not exist."""
    from pyroute2 import netns  # noqa: PLC0415 - see the module

    with suppress(FileNotFoundError):
        netns.remove(name)


def netlink(namespace: str) -> IPRoute:
    """Return a netlink socket inside a network namespace, which must exist; close it after use."""
    from pyroute2 import IPRoute  # noqa: PLC0415 - see the module

    return IPRoute(netns=namespace, flags=0)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the kernel's refusals inside the block into errors for people.

    Args:
        what: what is being done, such as ``"make the link of host0"``.

    Raises:
        SyncopateError: the kernel refused; the message says why and what to do.
    """
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415 - see the module

    try:
        yield
    except NetlinkError as error:
        raise SyncopateError(_sentence(what, error.code, str(error.args[-1]))) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise SyncopateError(_sentence(what, error.errno or 0, reason)) from error


def _sentence(what: str, code: int, reason: str) -> str:
    hint = ""
    if code in (errno.EPERM, errno.EACCES):
        hint = "; run it as root, and in a container with --privileged"
    elif code in (errno.EOPNOTSUPP, errno.ENOENT):
        hint = (
            "; the kernel may lack a module: a lab needs veth, bridge and sch_tbf "
            "(try `modprobe -a veth bridge sch_tbf`)"
        )
    return f"cannot {what}: {reason}{hint}"
