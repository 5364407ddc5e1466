"""Stopwatch: how long measuring took, without what passes inside its reports.

Self-planning measures beside a training, and pauses where measuring reports its progress, for many
steps at times (:mod:`syncopate.engine.selfplan.time_slices`). A budget is for measuring alone.
"""

from __future__ import annotations

import time

from syncopate.output import Progress, say


class Stopwatch:
    """Runs from the start, and stands still inside reports, which are made by calling it.

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
