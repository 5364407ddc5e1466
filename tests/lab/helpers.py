"""What the lab's tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from syncopate.lab.state import hosts_file, state_file
from tests.children import HANGS_S, environment

PYTHON = [sys.executable, "-I", "-S", "-u"]
"""A Python that starts quickly: no site packages."""

NAMESPACES = Path("/var/run/netns")


def namespaces_of(run_id: str) -> list[str]:
    """Return the namespaces of a lab that exist."""
    return [path.name for path in NAMESPACES.glob(f"syn{run_id}*")]


def is_gone(run_id: str) -> bool:
    """Return whether nothing of a lab is left."""
    records = (state_file(run_id), hosts_file(run_id))
    return not namespaces_of(run_id) and not any(path.exists() for path in records)


def lab_command(*arguments: str, **options: object) -> subprocess.Popen[str]:
    """Start ``syncopate lab ...``; its output can be read."""
    return subprocess.Popen(
        [sys.executable, "-m", "syncopate", "lab", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = HANGS_S) -> bool:
    """Return whether ``condition`` came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def own_links() -> set[str]:
    """Return the interfaces of this machine's own network."""
    return set(os.listdir("/sys/class/net"))
