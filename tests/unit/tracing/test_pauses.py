"""Pauses: named by the script or noted of the garbage collector, and put where they belong."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import syncopate
from syncopate.engine.selfplan.stepwise import Stepwise
from syncopate.errors import UnknownNameError
from syncopate.tracing import capture, pauses
from syncopate.tracing.capture import Capture
from syncopate.tracing.recorder import Event, Recorder, spans_of
from syncopate.tracing.run import read_run
from tests.clock import set_clock
from tests.unit.tracing.test_capture import Subject


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A capture with a rank that trains; it writes when it is stopped."""
    monkeypatch.setattr(capture, "_current", [])
    monkeypatch.setattr(capture, "_subjects", set())
    one = Capture(tmp_path)
    one.start()
    subject = Subject(0, 1, 0.0)
    one._attach(subject)
    yield one, subject
    one.stop()


@contextlib.contextmanager
def clocked(monkeypatch: pytest.MonkeyPatch, *times_s: float) -> Iterator[None]:
    """Let ``time.perf_counter`` give these; the collector, which reads it too, runs when asked."""
    left = list(times_s)
    enabled = gc.isenabled()
    gc.disable()
    try:
        set_clock(monkeypatch, capture.__name__, pauses.__name__, perf_counter=lambda: left.pop(0))
        yield
        assert left == []
    finally:
        monkeypatch.undo()
        if enabled:
            gc.enable()


def paused(tmp_path: Path) -> list[tuple[str, int, float, float]]:
    """Return name, iteration, start and end of the pauses of a run."""
    found = [span for span in read_run(tmp_path).timeline.spans if span.lane == "wait"]
    return [(span.name, span.iteration, span.start_s, span.end_s) for span in found]


def test_a_pause_belongs_to_the_iteration_that_it_holds_up(
    begun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two iterations, in the midst of one, before all and behind all."""
    one, subject = begun
    for iteration in range(3):
        subject.step(iteration, 10.0 * iteration + 10, 10.0 * iteration + 18)
    with clocked(monkeypatch, 1.0, 2.0, 18.5, 19.0, 33.0, 34.0, 39.0, 40.0):
        for name in ("input", "checkpoint", "evaluation", "checkpoint"):
            with syncopate.pause(name):
                pass
    one.stop()
    assert paused(tmp_path) == [("checkpoint", 1, 8.5, 9.0), ("evaluation", 2, 23.0, 24.0)]


def test_long_garbage_collections_are_noted_and_short_ones_not(
    begun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, subject = begun
    subject.step(0, 10.0, 20.0)
    with clocked(monkeypatch, 12.0, 12.0 + pauses.SHORTEST_S / 2, 13.0, 13.5):
        gc.collect()
        gc.collect()
    one.stop()
    gc.collect()
    assert one._pauses.take() == []
    assert paused(tmp_path) == [("garbage collection", 0, 3.0, 3.5)]


def test_what_a_first_run_does_to_find_its_plan_is_a_pause(
    begun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the listener of a step, which the engine calls between its messages and its update."""
    one, subject = begun
    listeners: list[Any] = []
    readiness = SimpleNamespace(
        listeners=listeners, held=False, clock=SimpleNamespace(stamp=lambda: 0.0)
    )
    engine: Any = SimpleNamespace(
        readiness=readiness,
        plan_with=lambda stop: None,
        planning_is_over=lambda: None,
        delay=None,
    )
    planner = Stepwise(engine)
    planner.begin(planner._steps(2))
    for iteration in range(3):
        subject.step(iteration, 10.0 * iteration + 10, 10.0 * iteration + 18)
    with clocked(monkeypatch, 18.5, 19.0, 28.5, 29.5):
        for _ in range(2):
            listeners[0](None)
    assert listeners == []
    one.stop()
    assert paused(tmp_path) == [("self-planning", 1, 8.5, 9.0), ("self-planning", 2, 18.5, 19.5)]


def test_without_a_capture_nothing_happens_and_other_names_are_refused() -> None:
    with syncopate.pause("checkpoint"):
        pass
    with (
        pytest.raises(UnknownNameError, match="unknown pause 'lunch'; known: input, garbage"),
        syncopate.pause("lunch"),
    ):
        pass


def test_only_waits_are_named_by_their_detail() -> None:
    recorder = Recorder()
    recorder.add([Event("wait", 0.0, 1.0, detail="checkpoint"), Event("push", 0.0, 1.0, bucket=0)])
    names = [span.name for span in spans_of(recorder.records(), recorder.texts, 0)]
    assert names == ["checkpoint", "bucket 0"]
