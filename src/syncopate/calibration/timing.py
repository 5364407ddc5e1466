"""Timing: clocks that measurements go by, and which of their samples count.

[Note: synchronised start]
Ranks leave a barrier at different moments, and on machines that share processors those lie apart by
as much as a small collective takes. So a duration that begins at a barrier says as much of the
barrier as of what follows it. Here rank 0 names a moment some milliseconds ahead, every rank sleeps
until its own clock says so, and the duration counts from that moment, whenever the rank really woke
up (Hunold and Carpen-Amarie, "Reproducible MPI benchmarking is still not as easy as you think",
IEEE TPDS 27(12), 2016).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import device_of, synchronize
from syncopate.output import Progress, say
from syncopate.tracing.offsets import clock_offsets

_AHEAD_S = 4e-3


class SynchronisedStart:
    """Times what all ranks do together, from moments agreed beforehand: [Note: synchronised start].

    Args:
        communicator: the ranks; every one must make this, and call :meth:`timed` alike.
        shared_clock: whether all ranks are known to read one clock, however their hosts are called.
    """

    def __init__(self, communicator: Communicator, *, shared_clock: bool = False) -> None:
        self._communicator = communicator
        self._device = device_of(communicator)
        offsets = None if shared_clock else clock_offsets(communicator)
        self._offset_s = 0.0 if offsets is None else offsets[communicator.rank].seconds

    def timed(self, work: Callable[[], object]) -> float:
        """Run ``work`` from the next agreed moment; return the seconds until this rank is done."""
        self._communicator.barrier()
        ahead_s = self._communicator.broadcast_object(time.perf_counter() + _AHEAD_S)
        start_s: float = ahead_s + self._offset_s
        time.sleep(max(start_s - time.perf_counter(), 0.0))
        work()
        synchronize(self._device)
        return time.perf_counter() - start_s


class Stopwatch:
    """Measures how long measuring takes, without what passes inside its reports.

    Self-planning measures beside a training, and pauses for many steps where measuring reports its
    progress (:mod:`syncopate.engine.selfplan.time_slices`). A budget is for measuring alone.

    Args:
        progress: takes the reports, if any.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._since_s = time.perf_counter()

    def __call__(self, what: str, done: float) -> None:
        """Report ``what`` is measured, and how much of the whole is done."""
        began_s = time.perf_counter()
        say(self._progress, what, done)
        self._since_s += time.perf_counter() - began_s

    @property
    def spent_s(self) -> float:
        """Seconds outside of reports."""
        return time.perf_counter() - self._since_s


def lower_quartile(samples_s: Sequence[float]) -> float:
    """Return the sample that a quarter lie below, which a busy machine moves little.

    Disturbances only ever lengthen a duration; the minimum itself would hang on one lucky sample.

    Args:
        samples_s: at least one duration.
    """
    return sorted(samples_s)[len(samples_s) // 4]


def lowest_decile(samples_s: Sequence[float]) -> float:
    """Return the sample that a tenth lie below; the minimum of fewer than ten.

    For what has a hard floor, such as a message on an idle link.

    Args:
        samples_s: at least one duration.
    """
    return sorted(samples_s)[len(samples_s) // 10]
