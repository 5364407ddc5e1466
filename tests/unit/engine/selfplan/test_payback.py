"""Payback: what measuring cost, and when it is repaid."""

from __future__ import annotations

import pytest

from syncopate.engine.selfplan import payback
from syncopate.engine.selfplan.payback import Costs, pays_after


def test_a_gain_repays_what_measuring_cost() -> None:
    assert pays_after(10.0, 1.0, 0.8) == 50
    assert pays_after(0.0, 1.0, 0.8) == 0
    assert pays_after(10.0, 0.8, 1.0) is None
    assert pays_after(10.0, 1.0, 1.0) is None


def test_costs_are_longer_steps_and_the_work_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(payback.time, "perf_counter", lambda: now_s[0])
    costs = Costs()
    # An evaluation of 50 s is a pause of the training's own.
    for step_s, planning_s in ((1.0, 0.5), (1.5, 0.0), (50.0, 0.25), (1.0, 0.0)):
        now_s[0] += step_s
        costs.step_is_over()
        now_s[0] += planning_s
        costs.planning_is_over()
    assert costs.beyond(1.0) == pytest.approx(0.5 + 0.75)
    assert costs.beyond(10.0) == 0.0
