"""Watch: how steps become windows, what a step waited, and when the ranks have agreed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from syncopate.engine.selfplan.replanning import watch
from syncopate.engine.selfplan.replanning.slowdown import Window
from syncopate.engine.selfplan.replanning.watch import PlanWatch, waiting_s
from syncopate.engine.step import Step
from syncopate.tracing.clocks import HostClock, clock_for


class Windows:
    """Takes windows, and wants a new plan after some."""

    change = "a change"

    def __init__(self, patience: int = 3) -> None:
        self.found: list[Window] = []
        self._patience = patience

    def add(self, window: Window) -> None:
        self.found.append(window)

    @property
    def lasts(self) -> bool:
        return len(self.found) >= self._patience


class Rank:
    """One of some ranks, with a clock that only its steps move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int = 2) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(watch, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        self.readiness: Any = SimpleNamespace(announce=None, clock=HostClock(), watch=None)
        communicator = SimpleNamespace(world_size=ranks)
        engine: Any = SimpleNamespace(readiness=self.readiness, communicator=communicator)
        self.windows: Any = Windows()
        self.begun: list[Any] = []
        self.watch = self.readiness.watch = PlanWatch(engine, self.windows, self.begun.append)

    def train(self, count: int, step_s: float = 1.0, waiting_s: float = 0.25) -> None:
        for _ in range(count):
            self.now_s += step_s
            self.watch(Step(backward_end=self.now_s - waiting_s))


def test_a_window_is_the_median_of_enough_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.train(1)  # nothing is known of how long it took
    rank.train(4)
    rank.train(1, 500.0)  # an evaluation
    rank.train(4)
    assert rank.windows.found == []
    rank.train(1)
    assert rank.windows.found == [Window(1.0, 0.25)]
    rank.train(10, 2.0, 0.5)
    assert rank.windows.found[1:] == [Window(2.0, 0.5)]


def test_a_window_lasts_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.train(1)
    rank.train(79, 1 / 16)
    assert rank.windows.found == []
    rank.train(1, 1 / 16)
    assert rank.windows.found == [Window(1 / 16, 0.25)]


def test_steps_within_join_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.train(9)
    rank.readiness.announce = print
    rank.train(50, 30.0)
    rank.readiness.announce = None
    rank.train(1, 30.0)  # it began within
    rank.train(9)
    assert rank.windows.found == []
    rank.train(1)
    assert rank.windows.found == [Window(1.0, 0.25)]


def test_it_asks_by_its_own_windows_and_plans_by_those_of_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank(monkeypatch, ranks=4)
    rank.train(30)
    assert not rank.watch.asks
    rank.train(1)
    assert rank.watch.asks
    rank.watch.hear([0, 3])
    assert not rank.watch.due
    rank.watch.hear([0, 1, 3])
    assert rank.watch.due
    rank.watch.hear([])  # what was agreed stays
    assert rank.watch.due
    assert rank.begun == []
    rank.watch.begin()
    assert rank.begun == ["a change"]
    assert rank.readiness.watch is None


def test_what_a_step_waits() -> None:
    clock = HostClock()
    # Averages are there at once when backward returns.
    assert waiting_s(Step(called=1.0, forward_start=1.5, backward_end=4.0), clock, 6.0) == 2.5
    # Weights are waited for in the forward, and the reports before the optimizer's step.
    step = Step(called=1.0, forward_start=1.0, backward_end=4.0, closing=(4.5, 6.0))
    step.waits = [(0, 1.0, 1.25), (1, 2.0, 2.5)]
    assert waiting_s(step, clock, 6.0) == 0.5 + 0.75
    # A second backward of one graph has no forward.
    assert waiting_s(Step(backward_end=4.0), clock, 6.0) == 2.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_no_wait_is_known() -> None:
    clock = clock_for(torch.device("cuda"))
    assert waiting_s(Step(backward_end=clock.stamp()), clock, 1.0) is None
