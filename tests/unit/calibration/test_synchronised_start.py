"""Durations count from the moment agreed, by each rank's own clock."""

from __future__ import annotations

from typing import Any

import pytest

from syncopate.calibration import timing
from syncopate.calibration.timing import SynchronisedStart
from syncopate.tracing.merge import ClockOffset

OFFSETS = (ClockOffset(0.0, 0.0), ClockOffset(50.0, 0.001))


class Clock:
    """Stands for the module ``time``; sleeping takes as long as it is asked to, and ``late_s``."""

    def __init__(self, now_s: float, late_s: float = 0.0) -> None:
        self.now_s = now_s
        self.late_s = late_s
        self.slept_s: list[float] = []

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept_s.append(seconds)
        self.now_s += seconds + self.late_s


class Rank:
    """A rank whose rank 0 names moments by ``ahead_s`` on a clock that ``offset_s`` separates."""

    world_size = 2

    def __init__(self, rank: int, named_s: float | None = None) -> None:
        self.rank = rank
        self.named_s = named_s
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1

    def broadcast_object(self, value: Any) -> Any:
        return value if self.named_s is None else self.named_s


def timed(monkeypatch, clock: Clock, rank: Rank, work_s: float, **options: Any) -> float:
    monkeypatch.setattr(timing, "time", clock)

    def work() -> None:
        clock.now_s += work_s

    return SynchronisedStart(rank, **options).timed(work)


def test_rank_0_names_a_moment_ahead_and_sleeps_until_then(monkeypatch):
    clock, rank = Clock(100.0), Rank(0)
    assert timed(monkeypatch, clock, rank, 0.25, shared_clock=True) == pytest.approx(0.25)
    assert clock.slept_s == [pytest.approx(timing._AHEAD_S)]
    assert rank.barriers == 1


def test_waking_up_late_is_part_of_the_duration(monkeypatch):
    clock = Clock(100.0, late_s=0.5)
    found = timed(monkeypatch, clock, Rank(0), 0.25, shared_clock=True)
    assert found == pytest.approx(0.75)


def test_a_moment_long_gone_is_not_waited_for(monkeypatch):
    clock = Clock(100.0)
    found = timed(monkeypatch, clock, Rank(1, named_s=99.0), 0.25, shared_clock=True)
    assert clock.slept_s == [0.0]
    assert found == pytest.approx(1.25)


def test_other_clocks_are_translated(monkeypatch):
    """Rank 1's clock is 50 s ahead of rank 0's, which names the moment 10.004."""
    monkeypatch.setattr(timing, "clock_offsets", lambda communicator: OFFSETS)
    clock = Clock(60.0)
    assert timed(monkeypatch, clock, Rank(1, named_s=10.004), 0.25) == pytest.approx(0.25)
    assert clock.slept_s == [pytest.approx(0.004)]
