"""The environment of the commands that tests start: they import from this tree, as the tests do.

A virtual environment may hold another copy of the package, such as that of another checkout. What
``PYTHONPATH`` names comes before it, so this tree goes in front, and what was there stays behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

HANGS_S = 600.0
"""The limit of what a test waits for: what runs longer hangs.

Tests share their machine, and what takes 30 s alone has taken more than 200.
"""

_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def environment(*folders: Path, **added: str) -> dict[str, str]:
    """Return this process's environment for a child that is to import from this tree.

    What a launcher told this process is left out: the child starts ranks of its own.

    Args:
        folders: whose modules come before those of this tree.
        added: further variables.
    """
    inherited = os.environ.get("PYTHONPATH")
    path = [
        *map(str, folders),
        str(REPOSITORY / "src"),
        str(REPOSITORY),
        *([inherited] if inherited else []),
    ]
    clean = {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}
    return clean | {"PYTHONPATH": os.pathsep.join(path)} | added


def run_command(line: str, folder: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of ours in a folder; return how it ended and what it wrote.

    Args:
        line: what follows ``syncopate``.
        folder: where it runs.
        launcher: what starts Python there, such as torchrun with its options.
    """
    return subprocess.run(
        [*(launcher or (sys.executable,)), "-m", "syncopate", *line.split()],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=HANGS_S,
    )


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a Python of its own; return how it ended and what it wrote."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=HANGS_S,
    )
