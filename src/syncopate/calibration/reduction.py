"""Reduction: γ, the time to add one byte of one buffer to another.

All ranks add at the same time, as they do inside an all-reduce, because ranks of one host share
its memory and cores.
"""

from __future__ import annotations

import statistics
import time

import torch

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import device_of, synchronize
from syncopate.output import Progress, say
from syncopate.units import MIB

_SIZE_BYTES = 4 * MIB
_ROUNDS = 15
_WARM_UPS = 3


def measure_reduction(communicator: Communicator, progress: Progress | None = None) -> float:
    """Return γ in seconds per byte: the median over rounds, then over ranks; alike on all ranks.

    Args:
        communicator: the ranks; all of them must call this.
        progress: called before every round.
    """
    device = device_of(communicator)
    say(progress, "additions", 0.0)
    total = torch.zeros(_SIZE_BYTES // 4, device=device)
    say(progress, "additions", 0.0)
    part = torch.ones_like(total)
    samples_s = []
    for index in range(_WARM_UPS + _ROUNDS):
        say(progress, "additions", index / (_WARM_UPS + _ROUNDS))
        communicator.barrier()
        synchronize(device)
        start_s = time.perf_counter()
        total.add_(part)
        synchronize(device)
        samples_s.append(time.perf_counter() - start_s)
    medians_s = communicator.all_gather_object(statistics.median(samples_s[_WARM_UPS:]))
    return float(statistics.median(medians_s)) / _SIZE_BYTES
