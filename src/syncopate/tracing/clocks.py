"""Clocks: what stamps moments of the computation, on the host and on a device.

On a CPU it is the host's clock; on a CUDA device, where launching runs ahead of computing, an event
in the stream. Events are read after the iteration, so nothing waits inside it.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Stamps moments in the course of the computation."""

    name: str

    def stamp(self) -> Any:
        """Note the present moment of the computation."""

    def between_s(self, start: Any, end: Any) -> float:
        """Return the seconds from one stamp to another; call :meth:`finish` first."""

    def host_s(self, stamp: Any) -> float | None:
        """Return the host's ``time.perf_counter`` at a stamp; None where it is not known."""

    def reached(self, stamp: Any) -> bool:
        """Say whether the computation has come to a stamp, without blocking."""

    def finish(self) -> None:
        """Wait until the computation up to here is done."""


class HostClock:
    """``time.perf_counter``: right wherever calls return when the work is done."""

    name = "time.perf_counter"

    def stamp(self) -> float:
        """Return the host's time."""
        return time.perf_counter()

    def between_s(self, start: float, end: float) -> float:
        """Return the difference."""
        return end - start

    def host_s(self, stamp: float) -> float:
        """Return the stamp."""
        return stamp

    def reached(self, stamp: float) -> bool:
        """Return True: the work is done when the call returns."""
        return True

    def finish(self) -> None:
        """Do nothing: the work is done when the call returns."""


class CudaClock:
    """CUDA events in the current stream."""

    name = "CUDA events"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stamp(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the time between the events on the device."""
        return float(start.elapsed_time(end)) * 1e-3

    def host_s(self, stamp: torch.cuda.Event) -> None:
        """Return None: the device's clock is its own."""

    def reached(self, stamp: torch.cuda.Event) -> bool:
        """Ask the event."""
        return bool(stamp.query())  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Synchronise the device."""
        torch.cuda.synchronize(self._device)


def clock_for(device: torch.device) -> Clock:
    """Return the clock that tells the time of computation on ``device``."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
