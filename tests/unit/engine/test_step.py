"""Spans of steps whose stamps were made by hand: every lane, the order, and the host's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.engine import step as step_module
from syncopate.engine.step import Sent, Step, StepRecorder
from syncopate.recipe import Recipe

SKEW_S = 1000.0
"""How far the clock of the stamps is behind that of the host."""


class FakeClock:
    """A clock of a device: its stamps are seconds since something else than the host's."""

    name = "fake"

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.finished = 0

    def stamp(self) -> float:
        return self.now_s

    def finish(self) -> None:
        self.finished += 1

    def between_s(self, start: float, end: float) -> float:
        return end - start


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StepRecorder:
    clock: Any = FakeClock(now_s=5.0)
    monkeypatch.setattr(
        step_module, "time", SimpleNamespace(perf_counter=lambda: clock.now_s + SKEW_S)
    )
    recorder = StepRecorder(3, clock)
    assert clock.finished == 1  # before the host's clock is read: the device may be behind
    return recorder


def push(bucket: int, when_s: tuple[float, float], channel: int = 0) -> Sent:
    """Make a push; its times are the host's already."""
    handle: Any = SimpleNamespace(
        started_s=SKEW_S + when_s[0], finished_s=SKEW_S + when_s[1], wait=lambda: None
    )
    recipe = Recipe("all_reduce", f"algorithm {bucket}", channel=channel)
    return Sent(bucket, recipe, 100 + bucket, handle)


def shown(recorder: StepRecorder, last: tuple[float, float] | None = None) -> list[tuple[Any, ...]]:
    spans = recorder.spans(last)
    assert {span.rank for span in spans} <= {3}
    return [
        (span.iteration, span.lane, span.start_s - SKEW_S, span.end_s - SKEW_S) for span in spans
    ]


def test_a_step_fills_every_lane_on_the_clock_of_the_host(recorder: StepRecorder) -> None:
    step = Step(forward_start=10.0, backward_start=12.0, backward_end=16.0, end=17.0)
    step.pushes += [push(0, (13.0, 15.0)), push(1, (14.0, 17.0), channel=1)]
    recorder.steps += [Step(1.0, 2.0, 3.0, 4.0), step]
    assert shown(recorder, (17.5, 18.0)) == [
        (0, "forward", 1.0, 2.0),
        (0, "backward", 2.0, 3.0),
        (0, "wait", 3.0, 4.0),
        (1, "forward", 10.0, 12.0),
        (1, "backward", 12.0, 16.0),
        (1, "wait", 16.0, 17.0),
        (1, "push", 13.0, 15.0),
        (1, "push", 14.0, 17.0),
        (1, "update", 17.5, 18.0),
    ]
    pushes = [span for span in recorder.spans() if span.lane == "push"]
    assert [(s.name, s.channel, s.nbytes, s.detail) for s in pushes] == [
        ("bucket 0", 0, 100, "algorithm 0"),
        ("bucket 1", 1, 101, "algorithm 1"),
    ]


def test_an_update_belongs_to_the_step_before_it(recorder: StepRecorder) -> None:
    for start in (10.0, 20.0, 30.0):
        update = (start - 2, start - 1) if start > 10 else None
        recorder.steps.append(
            Step(start, start + 1, start + 2, start + 3, update=update, earlier=[])
        )
    updates = [row for row in shown(recorder) if row[1] == "update"]
    assert updates == [(0, "update", 18.0, 19.0), (1, "update", 28.0, 29.0)]


def test_micro_batches_come_first_and_a_second_backward_has_no_forward(
    recorder: StepRecorder,
) -> None:
    step = Step(forward_start=None, backward_start=30.0, backward_end=31.0, end=32.0)
    step.earlier = [(10.0, 11.0, 12.0), (20.0, 21.0, 22.0)]
    recorder.steps.append(step)
    assert shown(recorder) == [
        (0, "forward", 10.0, 11.0),
        (0, "backward", 11.0, 12.0),
        (0, "forward", 20.0, 21.0),
        (0, "backward", 21.0, 22.0),
        (0, "backward", 30.0, 31.0),
        (0, "wait", 31.0, 32.0),
    ]


def test_stamps_out_of_order_are_a_span_without_length(recorder: StepRecorder) -> None:
    """A device's clock ticks coarsely: an end may seem to come before its start."""
    recorder.steps.append(Step(10.0, 12.0, 11.5, 11.4))
    assert [row for row in shown(recorder) if row[1] != "forward"] == [
        (0, "backward", 12.0, 12.0),
        (0, "wait", 11.5, 11.5),
    ]
