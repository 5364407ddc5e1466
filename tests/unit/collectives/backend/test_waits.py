"""Waits for Gloo end when they are interrupted, whatever Gloo does, and keep what it still uses."""

from __future__ import annotations

import datetime
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from syncopate.collectives.backend import waits
from syncopate.collectives.backend.waits import GlooWaits
from syncopate.collectives.transport import failure_kind
from tests.children import HANGS_S


class Group:
    """Stands for a process group."""


class Work:
    """A collective that ends when the test says so, with an error if it says so."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: RuntimeError | None = None

    def is_completed(self) -> bool:
        return self.ended.is_set()

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        if not self.ended.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "TURN_S", 0.01)
    monkeypatch.setattr(waits, "PATIENCE_S", 0.02)


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + HANGS_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("ending", ["wait", "run"])
def test_a_slow_collective_is_waited_for(ending: str) -> None:
    work, group_waits = Work(), GlooWaits(Group())  # type: ignore[arg-type]
    threading.Timer(0.2, work.ended.set).start()
    if ending == "wait":
        group_waits.wait(work)
    else:
        group_waits.run(work.wait)
    assert work.ended.is_set()


@pytest.mark.parametrize("ending", ["wait", "run"])
def test_what_it_failed_with_is_raised(ending: str) -> None:
    work, group_waits = Work(), GlooWaits(Group())  # type: ignore[arg-type]
    work.error = RuntimeError("Connection closed by peer")
    work.ended.set()
    calls: dict[str, Callable[[], Any]] = {
        "wait": lambda: group_waits.wait(work),
        "run": lambda: group_waits.run(work.wait),
    }
    with pytest.raises(RuntimeError, match="closed by peer"):
        calls[ending]()


def test_work_that_has_failed_and_never_counts_as_completed_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "TURN_S", 30.0)
    tries = []

    class Failed(Work):
        def wait(self, timeout: datetime.timedelta | None = None) -> None:
            tries.append(timeout)
            raise RuntimeError("Read error: Connection reset by peer")

    with pytest.raises(RuntimeError, match="reset by peer"):
        GlooWaits(Group()).wait(Failed())  # type: ignore[arg-type]
    assert len(tries) == 1


def test_an_interrupted_wait_ends_and_the_group_stays_until_gloo_has_ended() -> None:
    work, group = Work(), Group()
    there = weakref.ref(group)
    group_waits = GlooWaits(group)  # type: ignore[arg-type]
    threading.Timer(0.1, group_waits.interrupt).start()
    with pytest.raises(RuntimeError) as caught:
        group_waits.wait(work)
    assert failure_kind(caught.value) == "interrupted"
    assert not work.ended.is_set()
    del group, group_waits, caught
    gc.collect()
    assert there() is not None, "to destroy the group now would wait for Gloo"
    work.ended.set()
    assert comes_true(lambda: there() is None)


def test_messages_that_are_interrupted_are_left_to_their_thread() -> None:
    work, group_waits = Work(), GlooWaits(Group())  # type: ignore[arg-type]
    threading.Timer(0.1, group_waits.interrupt).start()
    with pytest.raises(RuntimeError) as caught:
        group_waits.run(work.wait)
    assert failure_kind(caught.value) == "interrupted"
    left = [each for each in threading.enumerate() if each.name == "syncopate-gloo"]
    assert all(each.daemon for each in left)
    work.ended.set()
    for each in left:
        each.join(HANGS_S)
        assert not each.is_alive()


def test_who_was_interrupted_may_still_end_well_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "PATIENCE_S", 60.0)
    work, group_waits = Work(), GlooWaits(Group())  # type: ignore[arg-type]
    group_waits.interrupt()
    threading.Timer(0.1, work.ended.set).start()
    group_waits.wait(work)
