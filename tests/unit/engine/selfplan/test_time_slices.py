"""TimeSlices: work that pauses where it reports, and ends when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from syncopate.engine.selfplan.time_slices import TimeSlices
from syncopate.output import Progress


class Rank0:
    """Decides as it is told, whatever the clock says."""

    def __init__(self, *late: bool) -> None:
        self.late = list(late)

    def broadcast_object(self, _: Any) -> bool:
        return self.late.pop(0) if self.late else False


def portions(work: Callable[[Progress], Any], *late: bool) -> TimeSlices[Any]:
    return TimeSlices(Rank0(*late), work)  # type: ignore[arg-type]


def three(done: list[int]) -> Callable[[Progress], str]:
    def work(progress: Progress) -> str:
        for index in range(3):
            progress("step", index / 3)
            done.append(index)
        return "result"

    return work


def test_it_pauses_only_where_rank_0_says_so() -> None:
    done: list[int] = []
    work = portions(three(done), False, True, False)
    assert not work.resume(1.0)
    assert done == [0]
    assert work.resume(1.0)
    assert done == [0, 1, 2]
    assert work.result == "result"


def test_nothing_runs_between_portions() -> None:
    done: list[int] = []
    work = portions(three(done), True, True, True)
    for count in (0, 1, 2):
        assert not work.resume(0.0)
        assert len(done) == count
        assert work._thread is not None
        work._thread.join(0.02)
        assert len(done) == count
    assert work.resume(0.0)


def test_what_it_raises_is_raised_where_it_is_resumed() -> None:
    def fail(progress: Progress) -> None:
        progress("step", 0.0)
        raise ValueError("made of string")

    work = portions(fail, True)
    assert not work.resume(1.0)
    with pytest.raises(ValueError, match="made of string"):
        work.resume(1.0)


def test_stopped_it_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    cleaned: list[bool] = []

    def work(progress: Progress) -> None:
        try:
            progress("step", 0.0)
        finally:
            cleaned.append(True)

    paused = portions(work, True)
    assert not paused.resume(1.0)
    paused.stop()
    assert cleaned == [True]
    assert threading.active_count() == before
    untouched = portions(work)
    untouched.stop()
    assert threading.active_count() == before
