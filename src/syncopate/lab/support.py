"""Support: whether this machine can emulate hosts at all, in one clear sentence."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from syncopate.errors import MissingPackageError, SyncopateError

_CAP_NET_ADMIN = 12
_CAP_SYS_ADMIN = 21


def why_not() -> str | None:
    """Return what keeps this machine or user from running a lab, or None when nothing does."""
    if sys.platform != "linux":
        return (
            f"a lab needs Linux (network namespaces) and this is {sys.platform}; use a Linux "
            "virtual machine, or `--local` of the other commands for ranks without emulated links"
        )
    if not Path("/proc/self/ns/net").exists() or not Path("/proc/self/ns/uts").exists():
        return "a lab needs network and UTS namespaces, which this kernel was built without"
    if not _has_capabilities():
        hint = (
            "start the container with --privileged"
            if os.geteuid() == 0
            else "run it as root, such as with sudo"
        )
        return (
            "a lab needs the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN to make network "
            f"namespaces, and this process lacks them; {hint}"
        )
    if importlib.util.find_spec("pyroute2") is None:
        return str(MissingPackageError("a lab", "pyroute2"))
    return None


def require() -> None:
    """Refuse to go on where a lab cannot run.

    Raises:
        SyncopateError: the reason, and what to do about it.
    """
    reason = why_not()
    if reason is not None:
        raise SyncopateError(reason)


def _has_capabilities() -> bool:
    wanted = 1 << _CAP_NET_ADMIN | 1 << _CAP_SYS_ADMIN
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & wanted == wanted
    return False
