"""Devices that a test may lose: root could replace those of the machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

_MINOR = {"null": 3, "full": 7}


def device(folder: Path, name: str) -> Path:
    """Return a device of Linux in ``folder``, ``null`` or ``full``; the machine's but for root.

    Skips the test where root may not make one.
    """
    if not Path("/dev", name).exists():
        pytest.skip(f"there is no /dev/{name}")
    if os.geteuid() != 0:
        return Path("/dev", name)
    path = folder / name
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, _MINOR[name]))
        path.open("rb").close()
    except OSError as error:
        pytest.skip(f"root may not use a device of its own: {error}")
    return path
