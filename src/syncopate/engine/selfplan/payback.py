"""Payback: what measuring may cost a training, what it did, and when a better plan has repaid it.

[Note: a share of the time]
A run of any length takes at most a tenth longer than with DDP's buckets. So measuring spends
what training has earned: before anything that costs time, such as a held step or the turn of a plan
that may be slower, the training goes on until all of it is within :data:`SHARE` of the time so far.
Where training goes on by a plan that is faster than DDP's buckets, half of what that gains may be
spent as well. Learning takes as many steps as that takes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

_PAUSE = 3.0
"""A step this many times as long as usual holds a pause of the training's own."""

SHARE = 0.04
"""What measuring may take of the training's time."""

_SPENT_OF_GAINS = 0.5


class Budget:
    """The seconds that measuring may spend now; see [Note: a share of the time].

    Attributes:
        step_s: what an ordinary step takes, on DDP's buckets; 0 as long as that is not known.
        gain_s: what a step takes less by the plan that trains meanwhile.
        spent_s: what measuring has cost.
    """

    def __init__(self) -> None:
        self._earned_s = 0.0
        self.step_s = self.gain_s = self.spent_s = 0.0

    def step_is_over(self) -> None:
        """Note a step of the training."""
        self._earned_s += SHARE * self.step_s

    def spend(self, seconds: float) -> None:
        """Add the time of a measurement beyond ordinary steps, at least 0."""
        self.spent_s += max(seconds, 0.0)

    def beyond_s(self, steps_s: Sequence[float]) -> float:
        """Return the time of steps beyond as many ordinary ones; at least 0.

        A pause of the training's own, such as an evaluation, counts as three steps at most.
        """
        longest_s = _PAUSE * self.step_s
        taken_s = sum(min(own_s, longest_s) for own_s in steps_s)
        return max(taken_s - len(steps_s) * self.step_s, 0.0)

    def gain(self, steps: int) -> None:
        """Note that so many steps were taken by the faster plan."""
        self._earned_s += _SPENT_OF_GAINS * self.gain_s * steps

    def steps_until(self, cost_s: float) -> int:
        """Return how many more ordinary steps it takes until ``cost_s`` may be spent."""
        each_s = SHARE * self.step_s + _SPENT_OF_GAINS * self.gain_s
        if not each_s > 0:
            return 0
        return max(math.ceil((self.spent_s + cost_s - self._earned_s) / each_s - 1e-9), 0)


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
    """Return after how many more steps of ``after_s``, which took ``before_s``, a cost is repaid.

    None without a gain.
    """
    gain_s = before_s - after_s
    return None if gain_s <= 0 else max(round(cost_s / gain_s), 0)
