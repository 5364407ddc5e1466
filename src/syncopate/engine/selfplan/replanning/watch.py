"""Watch: sees the steps of a plan that has settled, and asks for a new one where they get slower.

Each rank sums its steps up in windows (``slowdown``), off the stamps that they have anyway. A rank
whose steps have become slower says so in what it reports with its gradients (``engine/trailer.py``)
until they are fast again. Nothing else is sent.

[Note: planning begins at one step]
Every rank reads the same reports of every backward. Where more than half of the ranks ask, all of
them know, and plan from the next backward on. That one begins on each rank after it has read the
reports of this one, also where this one failed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from syncopate.engine.engine import Engine
from syncopate.engine.selfplan.replanning.slowdown import Change, Slowdown, Window
from syncopate.engine.step import Step
from syncopate.tracing.clocks import Clock

WINDOW_STEPS, WINDOW_S = 10, 5.0
"""A window has at least so many steps, and lasts so long."""


class PlanWatch:
    """Watches the plan that an engine trains by.

    Attributes:
        asks: whether this rank asks for a new plan.
        due: whether the ranks have agreed to make one.
    """

    def __init__(
        self, engine: Engine, slowdown: Slowdown, plan_again: Callable[[Change | None], None]
    ) -> None:
        self.asks = self.due = False
        self._engine, self._slowdown, self._plan_again = engine, slowdown, plan_again
        self._forget()

    def _forget(self) -> None:
        self._last_s: float | None = None
        self._lasted_s = 0.0
        self._steps_s: list[float] = []
        self._waits_s: list[float] = []

    def __call__(self, step: Step) -> None:
        """Take a step that is over."""
        now_s = time.perf_counter()
        if self._engine.readiness.announce is not None:
            self._forget()  # within join() a step is more than a step
            return
        last_s, self._last_s = self._last_s, now_s
        if last_s is None:
            return
        self._steps_s.append(now_s - last_s)
        if (waited_s := waiting_s(step, self._engine.readiness.clock, now_s)) is not None:
            self._waits_s.append(waited_s)
        self._lasted_s += now_s - last_s
        if len(self._steps_s) >= WINDOW_STEPS and self._lasted_s >= WINDOW_S:
            waits_s = statistics.median(self._waits_s) if self._waits_s else None
            self._slowdown.add(Window(statistics.median(self._steps_s), waits_s))
            self.asks = self._slowdown.lasts
            self._forget()
            self._last_s = now_s

    def hear(self, asking: Sequence[int]) -> None:
        """Take the ranks that asked; see [Note: planning begins at one step]."""
        self.due = self.due or 2 * len(asking) > self._engine.communicator.world_size

    def begin(self) -> None:
        """Begin to plan, with the step whose backward begins."""
        self._engine.readiness.watch = None
        self._plan_again(self._slowdown.change)


def waiting_s(step: Step, clock: Clock, now_s: float) -> float | None:
    """Return how long a step waited for other ranks and messages; None where the host never waits.

    Args:
        step: over by now.
        clock: made its stamps.
        now_s: by ``time.perf_counter``.
    """
    began_s = clock.host_s(step.backward_end)
    if began_s is None:
        return None
    updating_s = clock.host_s(step.closing[0]) if step.closing else None
    total_s = (now_s if updating_s is None else updating_s) - began_s
    if step.called is not None and step.forward_start is not None:
        total_s += clock.between_s(step.called, step.forward_start)
    return total_s + sum(end_s - start_s for _, start_s, end_s in step.waits)
