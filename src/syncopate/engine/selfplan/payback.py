"""Payback: what measuring cost a training, and after how many steps a better plan has repaid it."""

from __future__ import annotations

import statistics
import time

_PAUSE = 3.0
"""A step this many times as long as usual holds a pause of the training's own."""


class Costs:
    """What the steps took since self-planning began, its own work included."""

    def __init__(self) -> None:
        self._steps_s: list[float] = []
        self._planning_s = 0.0
        self._since_s = time.perf_counter()

    def step_is_over(self) -> None:
        """Note the end of a step; planning begins."""
        now_s = time.perf_counter()
        self._steps_s.append(now_s - self._since_s)
        self._since_s = now_s

    def planning_is_over(self) -> None:
        """Note that the training goes on."""
        now_s = time.perf_counter()
        self._planning_s += now_s - self._since_s
        self._since_s = now_s

    def beyond(self, step_s: float) -> float:
        """Return how much longer it took than steps of ``step_s`` would have; at least 0.

        A pause of the training's own, such as an evaluation, counts as an ordinary step.
        """
        limit_s = _PAUSE * statistics.median(self._steps_s)
        spent_s = sum(step_s if own > limit_s else own for own in self._steps_s)
        return max(spent_s + self._planning_s - step_s * len(self._steps_s), 0.0)


def pays_after(cost_s: float, before_s: float, after_s: float) -> int | None:
    """Return after how many more steps a gain has repaid a cost; None without a gain.

    Args:
        cost_s: what measuring took.
        before_s: a step without the plan.
        after_s: a step with it.
    """
    gain_s = before_s - after_s
    return None if gain_s <= 0 else max(round(cost_s / gain_s), 0)
