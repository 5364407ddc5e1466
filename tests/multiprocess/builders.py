"""Builders that tests name on the command line as ``tests.multiprocess.builders:...``."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn

from syncopate.errors import CalibrationError


def small():
    """Return a small model and its input."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), torch.ones(4, 8)


def refuses_on_rank_1():
    """Return a small model, except on rank 1."""
    if os.environ["RANK"] == "1":
        raise CalibrationError("no data on this host")
    return small()


def dies_on_rank_1():
    """Return a small model, except on rank 1."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return small()


def tells_that_it_waits():
    """Write ``waiting.<rank>`` and wait to be interrupted."""
    with open(f"waiting.{os.environ['RANK']}", "w") as file:
        file.write(str(os.getpid()))
    signal.sigwait([signal.SIGUSR1])
