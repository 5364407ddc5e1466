"""Payback: what measuring cost, and when it is repaid."""

from __future__ import annotations

import pytest

from syncopate.engine.selfplan import payback
from syncopate.engine.selfplan.payback import Budget, Costs, pays_after
from tests.clock import set_clock


def test_a_gain_repays_what_measuring_cost() -> None:
    assert pays_after(10.0, 1.0, 0.8) == 50
    assert pays_after(0.0, 1.0, 0.8) == 0
    assert pays_after(10.0, 0.8, 1.0) is None
    assert pays_after(10.0, 1.0, 1.0) is None


def test_costs_are_longer_steps_and_the_work_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    set_clock(monkeypatch, payback.__name__, perf_counter=lambda: now_s[0])
    costs = Costs()
    # An evaluation of 50 s is a pause of the training's own.
    for step_s, planning_s in ((1.0, 0.5), (1.5, 0.0), (50.0, 0.25), (1.0, 0.0)):
        now_s[0] += step_s
        costs.step_is_over()
        now_s[0] += planning_s
        costs.planning_is_over()
    assert costs.beyond(1.0) == pytest.approx(0.5 + 0.75)
    assert costs.beyond(10.0) == 0.0


@pytest.mark.parametrize(("steps_s", "beyond_s"), [((1.0, 2.9), 1.9), ((1.0, 3.1), 0.0)])
def test_a_step_of_three_times_the_usual_holds_a_pause(
    monkeypatch: pytest.MonkeyPatch, steps_s: tuple[float, float], beyond_s: float
) -> None:
    now_s = [100.0]
    set_clock(monkeypatch, payback.__name__, perf_counter=lambda: now_s[0])
    costs = Costs()
    usual_s, long_s = steps_s
    for step_s in (usual_s, usual_s, usual_s, long_s):
        now_s[0] += step_s
        costs.step_is_over()
        costs.planning_is_over()
    assert costs.beyond(1.0) == pytest.approx(beyond_s)


def test_what_is_spent_stays_within_the_share_of_the_time_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payback, "SHARE", 0.1)
    budget = Budget()
    assert budget.steps_until(1.0) == 0  # nothing is known of steps yet
    budget.step_s = 2.0
    assert budget.steps_until(1.0) == 5
    for _ in range(5):
        budget.step_is_over()
    assert budget.steps_until(1.0) == 0
    budget.spend(1.0)
    budget.spend(-3.0)  # what was faster has cost nothing
    assert budget.spent_s == 1.0
    assert budget.steps_until(0.0) == 0
    assert budget.steps_until(0.5) == 3


def test_half_of_what_a_faster_plan_gains_may_be_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payback, "SHARE", 0.1)
    budget = Budget()
    budget.step_s, budget.gain_s = 2.0, 0.4
    assert budget.steps_until(4.0) == 10
    for _ in range(10):
        budget.step_is_over()
    budget.gain(10)
    assert budget.steps_until(4.0) == 0
    assert budget.steps_until(4.4) == 1


def test_a_pause_of_the_training_s_own_costs_little() -> None:
    budget = Budget()
    budget.step_s = 2.0
    assert budget.beyond_s([2.5, 1.5, 3.0]) == 1.0
    assert budget.beyond_s([1.0, 2.0]) == 0.0
    # An evaluation of a minute would have to be earned in 25 minutes.
    assert budget.beyond_s([2.0, 62.0]) == 4.0
