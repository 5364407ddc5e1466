"""A rank that all-reduces until a slow link is named or time is over."""

from __future__ import annotations

import logging
import time

import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.collectives.health import monitor

_NUMEL = 1 << 22
"""So many that a link of 1 Gbit/s is busy long enough in each collective to be judged."""


class Kept(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.messages.append(record.getMessage())


def train(seconds: float) -> tuple[int, list[str]]:
    """Be a rank, which looks at its links more often than those of a user do.

    Returns:
        How many collectives there were, and what was warned of.
    """
    monitor._PUBLISH_S, monitor._COMPARE_S = 1.0, 0.5
    kept = Kept()
    logging.getLogger("syncopate").addHandler(kept)
    dist.init_process_group("gloo")
    end_s = time.monotonic() + seconds
    tensor, goes_on = torch.zeros(_NUMEL), torch.ones(1)
    calls = 0
    with Communicator() as communicator:
        while goes_on.item():
            communicator.all_reduce(tensor, algorithm="ring")
            calls += 1
            goes_on.fill_(time.monotonic() < end_s and not kept.messages)
            communicator.broadcast(goes_on, 0, algorithm="mst")
    dist.destroy_process_group()
    return calls, kept.messages
