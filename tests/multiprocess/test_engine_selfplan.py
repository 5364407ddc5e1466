"""Self-planning: its course, its two outcomes, and that ranks never disagree or wait in vain."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from syncopate.cluster import Cluster
from syncopate.engine import selfplan
from syncopate.engine.selfplan import PROFILED, TURN_STEPS, TURNS, WARMUP, SelfPlanner
from syncopate.errors import CalibrationError
from tests.children import environment
from tests.multiprocess.engine_cases import TIMEOUT_S, Pair, data, distribute, plan_of
from tests.multiprocess.harness import run_ranks

COURSE = WARMUP + PROFILED + 1 + 2 * TURNS * TURN_STEPS


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 2)
    )


class _SelfPlanned(Pair):
    """A pair whose Syncopate half plans for itself."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__(rank, _model)
        model, optimizer = self.model, self.optimizer
        model.syncopate.detach()
        self.model, self.optimizer = distribute(model, optimizer, timeout_s=TIMEOUT_S, **options)

    def train(self, rank: int, steps: int) -> None:
        for step in range(steps):

            def train(model: Any, optimizer: Any, step: int = step) -> None:
                optimizer.zero_grad()
                with model.no_sync():
                    model(data(rank, 2 * step, 4, 8)).square().mean().backward()
                model(data(rank, 2 * step + 1, 4, 8)).square().mean().backward()
                optimizer.step()

            self.run(train)
            # What a rank does between its steps is its own affair.
            self.model.eval()
            for _ in range(step % 3 + rank):
                with torch.no_grad():
                    self.model(data(rank, 0, 4, 8))
                self.model(data(rank, 0, 4, 8)).sum()
            self.model.train()


def _forge(safe_s: float, plan_s: float) -> Any:
    measure = SelfPlanner._compare

    def forged(self: Any, *plans: Any) -> Generator[None, Any, tuple[float, float]]:
        measured = yield from measure(self, *plans)
        assert all(seconds > 0 for seconds in measured)
        return safe_s, plan_s

    return forged


def _outcomes(rank: int, world_size: int) -> list[tuple[str, int, str, Any]]:
    log = io.StringIO()
    sys.stderr = log
    cluster = Cluster.flat(world_size, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    measure = SelfPlanner._compare
    results = []
    for times_s in ((0.2, 0.1), (0.1, 0.2)):
        SelfPlanner._compare = _forge(*times_s)
        pair = _SelfPlanned(rank, cluster=cluster, policy="wfbp", channels=2)
        pair.train(rank, COURSE - 1)
        assert not re.search("measured", log.getvalue())
        pair.train(rank, 3)
        pair.check(tolerance=1e-3)
        engine = pair.model.syncopate
        assert engine.communicator.channels == 2
        assert engine.communicator.watch.expected is cluster
        results.append(
            (engine.plan.policy, len(engine.plan.buckets), log.getvalue(), engine.workload)
        )
        log.seek(0)
        log.truncate()
        pair.close()
    SelfPlanner._compare = measure
    _calibrates(rank, world_size, log)
    _keeps_training_when_planning_fails(rank, log)
    _is_ended_by_an_install(rank, world_size)
    return results


def _calibrates(rank: int, world_size: int, log: io.StringIO) -> None:
    selfplan.CALIBRATION_BUDGET_S = 1.0
    pair = _SelfPlanned(rank)
    pair.train(rank, COURSE + 1)
    pair.check(tolerance=1e-3)
    assert pair.model.syncopate.plan.world_size == world_size
    assert ("syncopate: plan 'optimal'" in log.getvalue()) == (rank == 0), log.getvalue()
    pair.close()


def _keeps_training_when_planning_fails(rank: int, log: io.StringIO) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CalibrationError("the network is made of string")

    calibrate, selfplan.calibrate = selfplan.calibrate, fail
    pair = _SelfPlanned(rank)
    pair.train(rank, WARMUP + PROFILED + 3)
    pair.check(tolerance=1e-3)
    assert pair.model.syncopate.plan.policy == "threshold"
    assert ("made of string" in log.getvalue()) == (rank == 0)
    pair.close()
    selfplan.calibrate = calibrate


def _is_ended_by_an_install(rank: int, world_size: int) -> None:
    pair = _SelfPlanned(rank)
    pair.train(rank, WARMUP + 2)
    plan = plan_of(pair.model, world_size, [4, 4])
    pair.model.syncopate.install(plan)
    pair.train(rank, COURSE)
    assert pair.model.syncopate.plan == plan
    pair.check(tolerance=1e-3)
    pair.close()


def test_both_outcomes() -> None:
    results = run_ranks(_outcomes, 2, timeout_s=200)
    for rank, ((kept, many, said, workload), (back, few, said_back, _)) in enumerate(results):
        assert (kept, many) == ("wfbp", 8)
        assert (back, few) == ("threshold", 1)
        assert workload == results[0][0][3]
        assert workload.tensors[0].name.startswith("4.")
        assert 0 < sum(t.backward_s for t in workload.tensors) <= workload.backward_s * 1.000001
        assert workload.forward_s > 0
        assert workload.update_s > 0
        if rank == 0:
            assert re.fullmatch(
                r"syncopate: plan 'wfbp' \(8 buckets\) expects .*, measured 100.00 ms per "
                r"iteration, DDP's 1 bucket 200.00 ms: kept\n",
                said,
            ), said
            assert said_back.endswith("not faster, so back to DDP's\n")
        else:
            assert said == said_back == ""


def test_a_configured_log_gets_the_line_and_standard_error_does_not() -> None:
    cluster = Cluster.flat(1, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    warned = replace(cluster, warnings=("host3 is slow",))
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    class Alone:
        class communicator:  # noqa: N801
            rank = 0

    logger, handler = logging.getLogger("syncopate"), Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for known in (None, cluster, warned):
            SelfPlanner(Alone, "m", known, "optimal", 1)._say("hello")  # type: ignore[arg-type]
    finally:
        logger.removeHandler(handler)
    assert lines == ["hello", "hello", "hello; warning: host3 is slow"]


_LONELY = """
import torch, syncopate
from torch import nn
model = nn.Linear(4, 2)
model, optimizer = syncopate.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print("ranks", model.syncopate.communicator.world_size)
"""


def test_one_process_without_torchrun_is_a_world_of_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LONELY],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "ranks 1\n", done.stderr
    assert "Warning" not in done.stderr
