"""Spans of steps whose stamps were made by hand: every lane, the order, and the host's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.artifacts.timeline import Span
from syncopate.engine import step as step_module
from syncopate.engine.step import Sent, Step, StepRecorder
from syncopate.recipe import Recipe
from syncopate.tracing.clocks import HostClock
from syncopate.tracing.recorder import Recorder, spans_of

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

    def reached(self, stamp: float) -> bool:
        return stamp <= self.now_s

    def between_s(self, start: float, end: float) -> float:
        return end - start

    def host_s(self, stamp: float) -> None:
        return None


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StepRecorder:
    clock: Any = FakeClock(now_s=5.0)
    monkeypatch.setattr(
        step_module, "time", SimpleNamespace(perf_counter=lambda: clock.now_s + SKEW_S)
    )
    recorder = StepRecorder(Recorder(), clock)
    assert clock.finished == 1  # before the host's clock is read: the device may be behind
    return recorder


def push(bucket: int, when_s: tuple[float, float], channel: int = 0, **over: Any) -> Sent:
    """Make a push; its times are the host's already."""
    handle: Any = SimpleNamespace(
        launched_s=SKEW_S + when_s[0] - 0.5,
        started_s=SKEW_S + when_s[0],
        finished_s=SKEW_S + when_s[1],
        wait=lambda: None,
        done=lambda: over.get("done", True),
    )
    recipe = Recipe("all_reduce", f"algorithm {bucket}", channel=channel)
    return Sent(bucket, recipe, 100 + bucket, handle, over.get("ready"))


def spans(recorder: StepRecorder) -> tuple[Span, ...]:
    return spans_of(recorder.recorder.records(), recorder.recorder.texts, 3)


def take(recorder: StepRecorder, *steps: Step, last: tuple[float, float] | None = None) -> None:
    """Let steps be over, and the last one too."""
    clock: Any = recorder._clock
    clock.now_s = 1e6
    for number, step in enumerate(steps):
        step.number = number
        recorder(step)
    recorder.closed(last)
    recorder.finish(wait=True)


def shown(recorder: StepRecorder) -> list[tuple[Any, ...]]:
    return [
        (span.iteration, span.lane, span.start_s - SKEW_S, span.end_s - SKEW_S)
        for span in spans(recorder)
    ]


def test_a_step_fills_every_lane_on_the_clock_of_the_host(recorder: StepRecorder) -> None:
    step = Step(forward_start=10.0, backward_start=12.0, backward_end=16.0, end=17.0)
    step.pushes += [push(0, (13.0, 15.0), ready=12.25), push(1, (14.0, 17.0), channel=1)]
    step.waits = [(2, SKEW_S + 11.0, SKEW_S + 11.5)]
    take(recorder, Step(1.0, 2.0, 3.0, 4.0), step, last=(17.5, 18.0))
    assert shown(recorder) == [
        (0, "forward", 1.0, 2.0),
        (0, "backward", 2.0, 3.0),
        (0, "wait", 3.0, 4.0),
        (1, "forward", 10.0, 12.0),
        (1, "backward", 12.0, 16.0),
        (1, "wait", 16.0, 17.0),
        (1, "wait", 11.0, 11.5),
        (1, "push", 13.0, 15.0),
        (1, "push", 14.0, 17.0),
        (1, "update", 17.5, 18.0),
    ]
    pushes = [span for span in spans(recorder) if span.lane == "push"]
    assert [(s.name, s.channel, s.nbytes, s.detail) for s in pushes] == [
        ("bucket 0", 0, 100, "algorithm 0"),
        ("bucket 1", 1, 101, "algorithm 1"),
    ]
    assert [(s.ready_s, s.launched_s) for s in pushes] == [
        (SKEW_S + 12.25, SKEW_S + 12.5),
        (None, SKEW_S + 13.5),
    ]


def test_an_update_belongs_to_the_step_before_it(recorder: StepRecorder) -> None:
    steps = [
        Step(start, start + 1, start + 2, start + 3, update=(start - 2, start - 1))
        for start in (10.0, 20.0, 30.0)
    ]
    take(recorder, *steps, last=(38.0, 39.0))
    recorder.closed((38.0, 39.0))  # said twice
    recorder.finish(wait=False)
    updates = [row for row in shown(recorder) if row[1] == "update"]
    assert updates == [(n, "update", 18.0 + 10 * n, 19.0 + 10 * n) for n in range(3)]


def test_micro_batches_come_first_and_a_second_backward_has_no_forward(
    recorder: StepRecorder,
) -> None:
    step = Step(forward_start=None, backward_start=30.0, backward_end=31.0, end=32.0)
    step.earlier = [(10.0, 11.0, 12.0), (20.0, 21.0, 22.0)]
    take(recorder, step)
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
    take(recorder, Step(10.0, 12.0, 11.5, 11.4))
    assert [row for row in shown(recorder) if row[1] != "forward"] == [
        (0, "backward", 12.0, 12.0),
        (0, "wait", 11.5, 11.5),
    ]


def test_a_step_is_noted_when_all_of_it_is_over(recorder: StepRecorder) -> None:
    clock: Any = recorder._clock
    late, done = Step(6.0, 7.0, 8.0, 9.0), {"done": False}
    late.pulls = [push(0, (8.0, 9.0))]
    late.pulls[0].handle.done = lambda: done["done"]  # type: ignore[method-assign]
    clock.now_s = 8.5
    recorder(late)
    assert shown(recorder) == []  # the device has not come so far
    clock.now_s = 100.0
    recorder(Step(10.0, 11.0, 12.0, 13.0, number=1))
    assert shown(recorder) == []  # weights are on their way; the next step waits for its turn
    done["done"] = True
    recorder(Step(20.0, 21.0, 22.0, 23.0, number=2))
    assert [row[:2] for row in shown(recorder) if row[1] in ("forward", "pull")] == [
        (0, "forward"),
        (0, "pull"),
        (1, "forward"),
        (2, "forward"),
    ]


def test_what_never_ends_is_dropped_and_counted(recorder: StepRecorder) -> None:
    clock: Any = recorder._clock
    clock.now_s = 1e6
    for number in range(step_module._MOST_PENDING + 3):
        step = Step(6.0, 7.0, 8.0, 9.0, number=number)
        step.pulls = [push(0, (8.0, 9.0), done=False)]
        recorder(step)
    assert recorder.recorder.dropped == 3 * 2
    assert shown(recorder) == []


def test_steps_under_way_when_nobody_listens_any_more_are_left_out(
    recorder: StepRecorder,
) -> None:
    clock: Any = recorder._clock
    clock.now_s = 1e6
    for number in range(3):
        step = Step(6.0, 7.0, 8.0, 9.0, number=number)
        step.pulls = [push(0, (8.0, 9.0), done=number < 1)]
        recorder(step)
    recorder.finish(wait=False)
    assert {row[0] for row in shown(recorder)} == {0}
    assert recorder.recorder.dropped == 0, "there was room for all that was over"


def test_stamps_of_the_host_s_own_clock_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the processor does between a stamp and a second look at the clock."""
    late = SimpleNamespace(perf_counter=lambda: 9.0)
    monkeypatch.setattr(step_module, "time", late)
    clock = HostClock()
    monkeypatch.setattr(clock, "stamp", lambda: 5.0)
    assert StepRecorder(Recorder(), clock)._host_s(6.0) == 6.0
