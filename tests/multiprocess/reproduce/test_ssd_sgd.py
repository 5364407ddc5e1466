"""SSD-SGD's accuracy study on real ranks: runs are trainings, alike for equal seeds."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

import ssd_sgd_runs as runs
import syncopate
from syncopate.delay import Delay
from tests.multiprocess.harness import run_ranks

RANKS = 2
LR = 0.02
"""At the study's 0.05 GLU is close to diverging in so few steps, and rounding decides."""
PLACES = (
    runs.Place("digits", runs.SSGD, 0),
    runs.Place("digits", "glu-2", 0),
    runs.Place("digits", "glu-2", 0),
    runs.Place("digits", runs.ASGD, 0),
)


def _trained(rank: int, ranks: int) -> list[tuple[runs.Run, list[Delay | None]]]:
    """Return each run, and the delays that it distributed with."""
    work = runs.WORKLOADS["digits"]()
    quick = runs.setting_of("digits", work, ranks, quick=True)
    setting = replace(quick, batch_size=32, epochs=1, lr=LR, warm_up_scale=50)
    delays: list[Delay | None] = []
    distribute = syncopate.distribute

    def recorded(*args: Any, delay: Delay | None = None, **options: Any) -> Any:
        delays.append(delay)
        return distribute(*args, delay=delay, **options)

    syncopate.distribute = recorded
    found = []
    for place in PLACES:
        delays.clear()
        found.append((runs.train(place, work, setting, rank, ranks), list(delays)))
    return found


def test_runs_are_trainings() -> None:
    first, second = run_ranks(_trained, RANKS)
    ssgd, delayed, again, served = (run for run, _ in first)
    late = Delay(k=2, warm_up=11, local_update="glu", loc_lr=4 * LR)
    assert [delays for _, delays in first] == [[None], [late], [late], []]
    assert [run.warm_up for run, _ in first] == [0, 11, 11, 0]
    # Of ten classes; what is tested after the last epoch are the weights of the end.
    assert all(run.accuracy > 0.3 for run, _ in first)
    assert all(run.curve == (run.accuracy,) for run in (ssgd, delayed))
    assert replace(delayed, seconds=0.0) == replace(again, seconds=0.0)
    assert served.curve == ()
    assert [run.curve for run, _ in second] == [()] * len(PLACES)
