"""Self-planning: its course, its outcomes, and that ranks never disagree or wait in vain."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from syncopate.calibration import probing
from syncopate.engine.selfplan import cache, contest, payback, phases
from syncopate.engine.selfplan.ddp_buckets import first_plan
from syncopate.engine.selfplan.stepwise import Stepwise
from syncopate.errors import CalibrationError
from tests.children import HANGS_S, environment
from tests.multiprocess.engine.cases import TIMEOUT_S, data, distribute, plan_of
from tests.multiprocess.engine.selfplan_cases import (
    CLUSTER,
    EVERYTHING,
    MOST_STEPS,
    SelfPlanned,
    at_any_price,
    small_model,
    stderr,
)
from tests.multiprocess.harness import run_ranks

BEGINS = r"syncopate: begins on DDP's buckets, measures along the way .* after some \d+ steps"


class _Ahead(nn.Module):
    """The head runs without gradients before the body, though backward leaves it first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 8, bias=False)
        self.body = nn.Linear(8, 16, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.head(inputs.new_ones(1, 16))
        return self.head(self.body(inputs)) - target


Outcome = tuple[str, int, str, Any]


# DDP's and the plan's seconds a step, by rank, and which of them stays.
FORGED = {
    "faster": ((0.2, 0.2), (0.1, 0.1), ("wfbp", 8)),
    "slower": ((0.1, 0.1), (0.2, 0.2), ("threshold", 1)),
    # By the slowest rank alone the third would stay, by the fastest the second would go; counted
    # is the mean over ranks, which are as long in a step as each other.
    "slower on the slowest": ((0.2, 0.2), (0.1, 0.5), ("threshold", 1)),
    "faster on average": ((0.2, 0.6), (0.3, 0.3), ("wfbp", 8)),
}


def _forged(
    rank: int, world_size: int, ddp_s: tuple[float, ...], plan_s: tuple[float, ...]
) -> Outcome:
    payback.SHARE = EVERYTHING
    with stderr() as log:
        pair = SelfPlanned(rank, cluster=CLUSTER, plan="wfbp", channels=2, exchange="allreduce")
        pair.forge(ddp_s[rank], plan_s[rank])
        pair.settle(rank)
        pair.train(rank, 2)
        pair.check(tolerance=1e-3)
        engine = pair.model.syncopate
        assert engine.communicator.channels == 2
        assert engine.communicator.detector.expected.levels == CLUSTER.levels
        plan = engine.plan
        pair.close()
    return plan.policy, len(plan.buckets), log.getvalue(), engine.workload


def _measures_everything_itself(rank: int, world_size: int) -> None:
    at_any_price()
    with stderr() as log:
        pair = SelfPlanned(rank)
        steps = pair.settle(rank)
        pair.train(rank, 2)
        pair.check(tolerance=1e-3)
        engine = pair.model.syncopate
        assert engine.plan.world_size == world_size
        assert steps > phases.WARMUP + phases.SAMPLES
        assert engine.workload.fingerprint == engine.plan.fingerprint
        expected = engine.communicator.detector.expected
        assert expected.probes
        largest = max(point.nbytes for curve in expected.curves for point in curve.points)
        # The sizes that this model's buckets can have, and no others.
        assert engine.workload.nbytes <= largest <= 2 * engine.workload.nbytes + 4096
        lines = log.getvalue().splitlines()
        assert len(lines) == (2 if rank == 0 else 0), lines
        assert rank or re.match(BEGINS, lines[0])
        assert "syncopate-portions" not in {thread.name for thread in threading.enumerate()}
        pair.close()


def _knows_what_forward_uses_first_and_what_stays_whole(rank: int, world_size: int) -> None:
    at_any_price()
    for make, whole in ((torch.optim.SGD, ()), (torch.optim.Adafactor, (0, 1))):
        model: Any = _Ahead()
        optimizer = make(model.parameters(), lr=0.01)
        model, optimizer = distribute(model, optimizer, cluster=CLUSTER, timeout_s=TIMEOUT_S)
        for step in range(MOST_STEPS):
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if not model.syncopate.planning:
                break
        found = model.syncopate.workload
        assert [tensor.name for tensor in found.tensors] == ["head.weight", "body.weight"]
        assert found.forward_order == (0, 1)
        assert found.whole == whole
        assert not any(module._forward_pre_hooks for module in (model.head, model.body))
        model.syncopate.detach()


def _keeps_training_when_planning_fails(rank: int, world_size: int) -> None:
    at_any_price()

    def fail(*_: Any, **__: Any) -> None:
        raise CalibrationError("the network is made of string")

    before, probing.probe = probing.probe, fail
    with stderr() as log:
        pair = SelfPlanned(rank)
        pair.settle(rank)
        pair.train(rank, 2)
        pair.check(tolerance=1e-3)
        assert pair.model.syncopate.plan.policy == "threshold"
        assert ("made of string" in log.getvalue()) == (rank == 0)
        pair.close()
    probing.probe = before


def _is_ended_by_an_install(rank: int, world_size: int) -> None:
    at_any_price()
    with stderr():
        pair = SelfPlanned(rank)
        # In the midst of probing, whose thread must not outlive it.
        phases.PORTION = 1e-9
        for _ in range(MOST_STEPS):
            pair.train(rank, 1)
            if "syncopate-portions" in {thread.name for thread in threading.enumerate()}:
                break
        else:
            raise AssertionError("no network was probed")
        plan = plan_of(pair.model, world_size, [4, 4])
        pair.model.syncopate.install(plan)
        assert not pair.model.syncopate.planning
        assert "syncopate-portions" not in {thread.name for thread in threading.enumerate()}
        pair.train(rank, 30)
        assert pair.model.syncopate.plan == plan
        pair.check(tolerance=1e-3)
        pair.close()


def _leaves_alone_what_cannot_be_better(rank: int, world_size: int) -> None:
    payback.SHARE = EVERYTHING
    phases.least_step_s = lambda *_: 1e9
    with stderr() as log:
        pair = SelfPlanned(rank, cluster=CLUSTER)
        pair.settle(rank)
        assert pair.model.syncopate.plan.policy == "threshold"
        assert ("of what any plan can reach" in log.getvalue()) == (rank == 0)
        pair.close()


@pytest.mark.parametrize("forged", FORGED)
def test_outcomes_by_the_clock(forged: str) -> None:
    ddp_s, plan_s, stays = FORGED[forged]
    results = run_ranks(_forged, 2, ddp_s, plan_s)
    for rank, (policy, buckets, log, workload) in enumerate(results):
        assert (policy, buckets) == stays
        assert workload == results[0][3]
        said = log.splitlines()
        if rank:
            assert said == []
            continue
        assert re.match(BEGINS, said[0])
        if forged == "faster":
            assert re.fullmatch(
                r"syncopate: ideal overlap \(8 buckets\): kept, expected .*, measured 100.00 ms a "
                r"step, DDP's buckets \(1 bucket\) 200.00 ms; measuring took .*, which \d+ more "
                r"steps repay",
                said[1],
            ), said[1]
        if forged == "slower":
            assert said[1].endswith("100.00 ms a step, nothing is faster beyond noise"), said[1]


@pytest.mark.parametrize(
    "case",
    [
        _measures_everything_itself,
        _knows_what_forward_uses_first_and_what_stays_whole,
        _keeps_training_when_planning_fails,
        _is_ended_by_an_install,
        _leaves_alone_what_cannot_be_better,
    ],
)
def test_outcomes(case: Callable[[int, int], None]) -> None:
    run_ranks(case, 2)


def _weights(rank: int, **options: Any) -> tuple[Any, list[Tensor]]:
    """Train some steps; return the plan before the first of them, and the weights."""
    torch.manual_seed(0)
    model = small_model()
    model, optimizer = distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), timeout_s=TIMEOUT_S, **options
    )
    plan = model.syncopate.plan
    for step in range(4):
        optimizer.zero_grad()
        model(data(rank, step, 4, 8)).square().mean().backward()
        optimizer.step()
    assert model.syncopate.plan == plan
    model.syncopate.detach()
    return plan, [parameter.detach().clone() for parameter in model.parameters()]


def _kept(rank: int, world_size: int, folder: str) -> None:
    os.environ[cache.VARIABLE] = folder
    payback.SHARE = EVERYTHING
    with stderr() as log:
        pair = SelfPlanned(rank, cluster=CLUSTER, plan="wfbp", channels=1, exchange="allreduce")
        pair.forge(0.2, 0.1)
        pair.settle(rank)
        chosen = pair.model.syncopate.plan
        pair.close()
        assert (f"the next run starts with it ({folder}" in log.getvalue()) == (rank == 0)
    options = {"cluster": CLUSTER, "plan": "wfbp", "channels": 1, "exchange": "allreduce"}
    with stderr() as log:
        first, second = _weights(rank, **options), _weights(rank, **options)
        assert first[0] == second[0] == chosen
        assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
        assert ("cache=False measures again" in log.getvalue()) == (rank == 0)
    with stderr() as log:
        # Kept for what was asked, and for nothing else.
        for other in (
            {**options, "plan": "single"},
            {**options, "cluster": replace(CLUSTER, name="other")},
            {**options, "channels": 2},
            {**options, "cache": False},
        ):
            assert _weights(rank, **other)[0] == first_plan("Sequential", _tensors(), world_size)
        assert "cache=False measures again" not in log.getvalue()
    _depends_on_no_clock(rank, world_size, chosen, options)


def _tensors() -> list[tuple[str, int, str]]:
    return [(name, p.numel(), "float32") for name, p in small_model().named_parameters()]


def _depends_on_no_clock(rank: int, world_size: int, kept: Any, options: dict[str, Any]) -> None:
    safe = first_plan("Sequential", _tensors(), world_size)
    with stderr() as log:
        pair = SelfPlanned(rank, deterministic=True)
        assert not pair.model.syncopate.planning
        pair.train(rank, 30)
        assert pair.model.syncopate.plan == replace(safe, model=pair.model.syncopate.plan.model)
        pair.close()
        assert ("may not depend on clocks" in log.getvalue()) == (rank == 0)
    # One that was kept depends on none any more.
    assert _weights(rank, deterministic=True, **options)[0] == kept
    torch.use_deterministic_algorithms(True)
    try:
        assert _weights(rank)[0] == safe
        assert _weights(rank, **options)[0] == kept
    finally:
        torch.use_deterministic_algorithms(False)
    with stderr():
        pair = SelfPlanned(rank, deterministic=False)
        assert pair.model.syncopate.planning
        pair.close()


def test_a_kept_plan_starts_the_next_run_with_the_same_bits(tmp_path: Path) -> None:
    run_ranks(_kept, 2, str(tmp_path / "plans"))
    (only,) = (tmp_path / "plans").iterdir()
    settled = cache.Settled.load(only)
    assert settled.name == contest.IDEAL
    assert (settled.step_s, settled.ddp_step_s) == (0.1, 0.2)
    assert {turns.name for turns in settled.contest} == {contest.DDP, contest.IDEAL}


def test_a_configured_log_gets_the_line_and_standard_error_does_not() -> None:
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
        Stepwise(Alone)._say("hello")  # type: ignore[arg-type]
        assert len(logger.handlers) == 1
    finally:
        logger.removeHandler(handler)
    assert lines == ["hello"]


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
        timeout=HANGS_S,
        check=False,
    )
    assert done.stdout == "ranks 1\n", done.stderr
    assert "Warning" not in done.stderr
