"""A rank that all-reduces until a slow link is named or time is over: ``training.py SECONDS``.

The ranks look at their links more often than those of a user do. Rank 0 prints what is logged.
"""

from __future__ import annotations

import logging
import sys
import time

import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.collectives.health import monitor

WARNED = "warned: "
ENDED = "collectives: "

_NUMEL = 1 << 22
"""So many that a link of 1 Gbit/s is busy long enough in each collective to be judged."""


class Printer(logging.Handler):
    """Prints warnings, and keeps them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        self.kept.append(record.getMessage())
        print(f"{WARNED}{record.getMessage()}", flush=True)


def main() -> None:
    """Be a rank."""
    monitor._PUBLISH_S, monitor._COMPARE_S = 1.0, 0.5
    printer = Printer()
    logging.getLogger("syncopate").addHandler(printer)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    end_s = time.monotonic() + float(sys.argv[1])
    tensor, goes_on = torch.zeros(_NUMEL), torch.ones(1)
    calls = 0
    with Communicator() as communicator:
        while goes_on.item():
            communicator.all_reduce(tensor, algorithm="ring")
            calls += 1
            goes_on.fill_(time.monotonic() < end_s and not printer.kept)
            communicator.broadcast(goes_on, 0, algorithm="mst")
        rank = communicator.rank
    if rank == 0:
        print(f"{ENDED}{calls}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
