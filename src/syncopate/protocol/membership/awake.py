"""Awake: a clock that leaves out a process's own pauses, so that they do not count as silence.

A process that was stopped (SIGSTOP, a suspended machine, swapping) wakes with messages unread. By
the wall clock all others were silent meanwhile, though it is this process that did not listen.
"""

from __future__ import annotations

LONGEST_S = 1.0
"""A process that works looks at the clock at least this often; what is beyond is a pause."""


class AwakeClock:
    """A clock that stands still while the process that reads it does."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._paused_s = 0.0

    def at(self, now_s: float) -> float:
        """Return ``now_s``, from a monotonic clock, less all pauses so far."""
        if self._last_s is not None:
            self._paused_s += max(now_s - self._last_s - LONGEST_S, 0.0)
        self._last_s = now_s
        return now_s - self._paused_s
