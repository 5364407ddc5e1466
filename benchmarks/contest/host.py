"""Host: what one host of a lab does through all turns of a benchmark with parameter servers.

    python -m contest.host schedule.json

A worker goes through the turns in processes of its own for each, which it forks, so that it imports
torch once. Servers and the scheduler are commands, and this script loads nothing but the standard
library for them. A host that has no part in a turn is not ahead of the others: worker 0 marks each
turn as it begins it, with a file, and commands wait for that. The schedule has ``workers``, the
number of hosts that are, and of each of the ``turns`` the ``path`` of what workers are told,
``limit_s``, and the ``commands`` of other hosts, by their number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.05


def main() -> int:
    """Go through the turns; return the exit code, 0 unless the host itself is at fault."""
    schedule = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ["RANK"])
    if rank < schedule["workers"]:
        from contest import served  # noqa: PLC0415 - the others have no need of torch

        for turn in schedule["turns"]:
            if rank == 0:
                _mark(turn).touch()
            served.work_apart(Path(turn["path"]), rank)
        return 0
    for turn in schedule["turns"]:
        command = turn["commands"].get(str(rank))
        if command is not None:
            while not _mark(turn).exists():
                time.sleep(_POLL_S)
            try:
                subprocess.run(command, timeout=turn["limit_s"], check=False)
            except subprocess.TimeoutExpired:
                print(f"{command} took too long", file=sys.stderr)
    return 0


def _mark(turn: dict[str, Any]) -> Path:
    """Return the file that is there when a turn has begun."""
    return Path(turn["path"]).with_suffix(".begun")


if __name__ == "__main__":
    sys.exit(main())
