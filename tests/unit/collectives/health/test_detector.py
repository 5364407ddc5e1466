"""The failure detector: one diagnosis, whichever channels fail together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from syncopate.collectives.health.blame import Call, Notice, Verdict
from syncopate.collectives.health.detector import FailureDetector
from syncopate.errors import CollectiveError
from tests.children import HANGS_S
from tests.unit.collectives.health.fakes import CALL


def test_channels_that_fail_together_wait_for_one_diagnosis() -> None:
    detector: Any = object.__new__(FailureDetector)
    told: list[Verdict] = []
    detector._broken = None
    detector._diagnosing = threading.Lock()
    detector._monitor = SimpleNamespace(tell=told.append)
    begun, again, diagnosed = threading.Event(), threading.Event(), []

    def diagnose(call: Call, error: RuntimeError, waited_s: float) -> Verdict:
        diagnosed.append(str(error))
        (again if begun.is_set() else begun).set()
        again.wait(1.0)  # a second diagnosis, which there must not be, would begin by then
        return Verdict((len(diagnosed),), f"by {error}")

    detector._diagnose = diagnose
    found: list[CollectiveError] = []

    def fail(channel: str) -> None:
        found.append(detector._failed(CALL, RuntimeError(channel), 1.0))

    threads = [threading.Thread(target=fail, args=(f"channel {n}",)) for n in range(2)]
    threads[0].start()
    assert begun.wait(HANGS_S)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert diagnosed == ["channel 0"]
    assert told == [Verdict((1,), "by channel 0")]
    assert {(error.ranks, str(error)) for error in found} == {(found[0].ranks, str(found[0]))}
    assert found[0].ranks == (1,)


@pytest.mark.parametrize(
    ("broken", "error", "says"),
    [
        (None, ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
        (None, KeyboardInterrupt(), None),
        (("#1", Verdict((1,), "rank 1 was lost")), ZeroDivisionError("a bug"), None),
    ],
)
def test_a_rank_that_raises_amid_a_collective_tells_the_others(
    broken: tuple[str, Verdict] | None, error: BaseException, says: str | None
) -> None:
    detector: Any = object.__new__(FailureDetector)
    announced: list[Notice] = []
    told: list[Verdict] = []
    later: list[Callable[[], None]] = []
    detector._broken, detector._rank, detector._interrupted = broken, 2, False
    detector._monitor = SimpleNamespace(tell=told.append)
    detector._in_flight = SimpleNamespace(leave=lambda _: None)
    detector._announce, detector._disconnect = announced.append, Mock(return_value=())
    detector._monitor.tell_if_it_lives = later.append
    detector._ended(CALL, error, 1.0)
    assert told == ([] if broken else [Verdict((2,), "rank 2 was interrupted")])
    assert [each.text for each in announced] == ([] if says is None else [says])
    assert [each.kind for each in announced] == ["error"] * len(announced)
    assert detector._disconnect.call_count == len(announced)
    assert len(later) == isinstance(error, KeyboardInterrupt)
    for tell in later:  # the process that was to end lives on
        tell()
        assert [each.text for each in announced] == ["KeyboardInterrupt"]
        assert detector._disconnect.call_count == 1
