"""Stopwatch: what passes inside reports does not count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from syncopate.calibration import timing


def test_it_stands_still_inside_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    clock.perf_counter = lambda: clock.now_s
    monkeypatch.setattr(timing, "time", clock)
    reports: list[tuple[str, float]] = []

    def progress(what: str, done: float) -> None:
        reports.append((what, done))
        clock.now_s += 50.0

    watch = timing.Stopwatch(progress)
    clock.now_s += 2.0
    watch("links", 0.25)
    assert watch.spent_s == 2.0
    clock.now_s += 1.0
    watch("links", 1.5)
    assert watch.spent_s == 3.0
    assert reports == [("links", 0.25), ("links", 1.0)]
