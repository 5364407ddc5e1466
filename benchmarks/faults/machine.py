"""Machine: how much of it other processes take, so that a round that they disturbed is seen."""

from __future__ import annotations

import os
import time
from pathlib import Path

QUIET = 0.1
"""A round is disturbed where others take more than this part of the processors in a block of it."""

_LOOK_S, _PATIENCE_S = 0.5, 5.0
_BUSY = (0, 1, 2, 7)
"""Columns of ``/proc/stat``: user, nice, system, stolen."""


class Others:
    """What processes that are no ranks of this lab take from now on."""

    def __init__(self) -> None:
        """Begin to count."""
        self._since_s, self._before_s = time.perf_counter(), _others_s()

    def share(self) -> float:
        """Return which part of all processors they took since then, in [0, 1]."""
        lasted_s = time.perf_counter() - self._since_s
        took_s = _others_s() - self._before_s
        return min(max(took_s / lasted_s / (os.cpu_count() or 1), 0.0), 1.0)


def calm() -> None:
    """Return when others leave the machine alone, or do not for a while."""
    until_s = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < until_s:
        others = Others()
        time.sleep(_LOOK_S)
        if others.share() <= QUIET:
            return


def _others_s() -> float:
    """Return the processor time of all processes, without this rank and its brothers."""
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = sum(int(columns[place]) for place in _BUSY)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it is over
        if int(fields[1]) == os.getppid():
            ticks -= int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
