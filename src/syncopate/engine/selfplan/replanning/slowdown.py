"""Slowdown: when steps take longer than they usually do, by more than noise and for long.

A rank looks at windows of steps, of each the median: a pause of the training's own (garbage
collection, a checkpoint, an evaluation) makes one step longer, and no median.

[Note: usual]
The first :data:`REFERENCE` windows say what is usual, and how far medians lie apart without a
cause. Where they are slower than the plan was when it was chosen, by what counts as slower, that
counts instead. What is usual stays, so that steps that grow slowly are noticed too. When windows
become faster, they are the usual ones from then on.

[Note: hysteresis]
One window says nothing: :data:`PATIENCE` in a row must be slower. After a plan that turned out to
be the best still, ranks do not ask for so many windows, and twice as many after each further one.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

REFERENCE = 5
"""Windows that say what is usual."""

PATIENCE = 3
"""Slower windows in a row that count."""

SLOWER = 0.2
"""By which share of a step a window must be slower at least."""

DEVIATIONS = 6.0
"""By how many median deviations of the usual windows it must be slower as well."""

QUIET = 8
"""Windows without a question after a plan that stayed; twice as many each further time."""

CAUSE = 0.25
"""The share of what steps take longer that makes a part of them a cause."""


class Window(NamedTuple):
    """What the steps of a window took, in the median.

    Attributes:
        step_s: from the end of the step before to the step's own.
        waiting_s: of it, waits for other ranks and their messages; None: not known.
    """

    step_s: float
    waiting_s: float | None = None


class Change(NamedTuple):
    """How one rank's steps became slower: what they took before, and take since."""

    usual: Window
    now: Window


class Slowdown:
    """Whether steps have become slower, window by window; see the module.

    Args:
        measured_s: what a step took when the plan was chosen; 0: not measured in this run.
        quiet: windows, besides those that say what is usual, in which nothing is asked.
    """

    def __init__(self, measured_s: float = 0.0, quiet: int = 0) -> None:
        self._measured_s, self._quiet = measured_s, quiet
        self._usual: Window | None = None
        self._noise_s = 0.0
        self._first: list[Window] = []
        self._last: deque[Window] = deque(maxlen=PATIENCE)

    def add(self, window: Window) -> None:
        """Take the next window."""
        if self._usual is None:
            self._first.append(window)
            if len(self._first) == REFERENCE:
                self._learn()
            return
        self._quiet = max(self._quiet - 1, 0)
        self._last.append(window)
        slowest_s = max(one.step_s for one in self._last)
        if len(self._last) == PATIENCE and slowest_s < self._usual.step_s / (1 + SLOWER):
            self._usual = middle(self._last)

    def _learn(self) -> None:
        """Say what is usual; see [Note: usual]."""
        usual = middle(self._first)
        far_s = statistics.median(abs(one.step_s - usual.step_s) for one in self._first)
        self._noise_s = DEVIATIONS * far_s
        if 0 < (1 + SLOWER) * self._measured_s < usual.step_s:
            usual = Window(self._measured_s)
        self._usual = usual

    @property
    def lasts(self) -> bool:
        """Whether the last windows were all slower than usual, and the question is allowed."""
        if self._usual is None or len(self._last) < PATIENCE or self._quiet:
            return False
        beyond_s = max(SLOWER * self._usual.step_s, self._noise_s)
        return min(one.step_s for one in self._last) > self._usual.step_s + beyond_s

    @property
    def change(self) -> Change | None:
        """How the last windows differ from the usual ones; None where nothing is usual yet."""
        if self._usual is None or not self._last:
            return None
        return Change(self._usual, middle(self._last))


def middle(windows: Sequence[Window]) -> Window:
    """Return the medians of some windows, at least one."""
    waits = [one.waiting_s for one in windows if one.waiting_s is not None]
    return Window(
        statistics.median(one.step_s for one in windows),
        statistics.median(waits) if len(waits) == len(windows) else None,
    )


LINKS = "messages"
COMPUTATION = "computation"


def causes_of(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return what takes longer: :data:`LINKS`, :data:`COMPUTATION`, both; none: not known.

    A rank that computes longer lets the others wait. So the rank that waits least tells what
    messages take, and the mean over ranks how much longer a step is.

    Args:
        changes: of the ranks, at least one.
    """
    before = [one.usual.waiting_s for one in changes if one.usual.waiting_s is not None]
    now = [one.now.waiting_s for one in changes if one.now.waiting_s is not None]
    if min(len(before), len(now)) < len(changes):
        return ()
    longer_s = statistics.fmean(one.now.step_s - one.usual.step_s for one in changes)
    waiting_s = min(now) - min(before)
    parts = {LINKS: waiting_s, COMPUTATION: longer_s - waiting_s}
    return tuple(name for name, part_s in parts.items() if part_s >= CAUSE * longer_s)
