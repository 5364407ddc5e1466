"""The failure detector: one diagnosis, whichever channels fail together."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from syncopate.collectives.health.blame import Call, Verdict
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
