"""How a training goes on until what measuring costs is earned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from syncopate.engine.selfplan.payback import SHARE, Budget
from syncopate.engine.selfplan.phases import AT_ONCE, SelfPlanner


class Training(SelfPlanner):
    """A planner whose ranks need ``agreeing_s`` to agree, in a training of equal steps."""

    def __init__(self, step_s: float, agreeing_s: float) -> None:
        self._budget, self._agreeing_s = Budget(), agreeing_s
        self._budget.step_s = step_s
        self._meanwhile = None
        self.steps = 0

    def _agreed(self, value: Any) -> Any:
        self._budget.spend(self._agreeing_s)
        return value

    def _steps(self, count: int, *, held: bool = False) -> Any:
        for _ in range(count):
            self._budget.step_is_over()
            self.steps += 1
            yield
        return []

    @property
    def spent_s(self) -> float:
        """What agreeing has cost."""
        return self._budget.spent_s

    def taken(self, cost_s: float) -> int:
        """Return after how many steps so much may be spent."""
        course: Iterator[None] = self._afford(cost_s)
        for _ in course:
            assert self.steps < 1000
        return self.steps


@pytest.mark.parametrize("agreeing_s", [0.0, 0.1, 0.6, 2.0])
def test_it_is_earned_also_where_ranks_take_long_to_agree(agreeing_s: float) -> None:
    training = Training(1.0, agreeing_s)
    steps = training.taken(0.8)
    # The last time that ranks agree comes when all before it is earned.
    cost_s = 0.8 + training.spent_s - agreeing_s
    assert cost_s / SHARE <= steps + 1e-6
    assert steps <= cost_s / SHARE + AT_ONCE


def test_nothing_is_waited_for_that_costs_nothing() -> None:
    assert Training(1.0, 0.0).taken(0.0) == 0
