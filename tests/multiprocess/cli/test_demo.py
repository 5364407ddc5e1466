"""The demo on two ranks: what its trainers exchange, and that its chapters fit together."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from pathlib import Path

import pytest
import torch
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.demo.pace import Computation
from syncopate.cli.demo.result import DemoResult
from syncopate.cli.demo.story import Settings, tell
from syncopate.cli.demo.trainer import Trainer, Wrap, optimizer_of, with_ddp, with_plan
from syncopate.collectives import Communicator
from syncopate.planning import predict
from syncopate.zoo import digits, resnet20
from tests.multiprocess.engine.cases import plan_of
from tests.multiprocess.harness import run_ranks

BATCH = 4


def _weights_after(wrap: Wrap, communicator: Communicator, steps: int = 2) -> bytes:
    torch.manual_seed(0)
    trainer = Trainer(resnet20(BATCH).model, digits(), communicator, BATCH, wrap)
    for _ in range(steps):
        trainer.step()
    if hasattr(trainer.model, "syncopate"):
        trainer.close()
    weights = torch.cat([p.detach().flatten() for p in trainer.bare.parameters()])
    assert weights.isfinite().all()
    return weights.numpy().tobytes()


def _weights(rank: int, world_size: int) -> dict[str, bytes]:
    communicator = Communicator(timeout_s=60)
    plan = plan_of(resnet20(BATCH).model, world_size)
    ways: dict[str, Wrap] = {"plan": with_plan(plan), "ddp": with_ddp, "alone": lambda *own: own}
    return {name: _weights_after(wrap, communicator) for name, wrap in ways.items()}


def test_ranks_agree_under_a_plan_and_ddp_and_part_alone():
    first, second = run_ranks(_weights, 2)
    assert first["plan"] == second["plan"]
    assert first["ddp"] == second["ddp"]
    assert first["alone"] != second["alone"]


def _computed(rank: int, world_size: int) -> tuple[float, bool, bool]:
    """Return a turn's figure, whether its gradients are this rank's own, and what it left behind.

    Ranks pair inputs and targets differently, so that gradients of others would show.
    """
    task = resnet20(BATCH)
    task = dataclasses.replace(task, inputs=task.inputs.roll(rank, 0))
    task.loss().backward()  # type: ignore[no-untyped-call]
    own = [p.grad.clone() for p in task.model.parameters() if p.grad is not None]
    before = [p.detach().clone() for p in task.model.parameters()]
    optimizer = optimizer_of(task.model)
    stepped: list[list[torch.Tensor]] = []

    def note(*_: object) -> None:
        stepped.append([p.grad.clone() for p in task.model.parameters() if p.grad is not None])

    optimizer.register_step_pre_hook(note)
    seconds = Computation(task, optimizer).turn(Communicator(timeout_s=60), warmup=1, iterations=3)
    assert len(stepped) == 4
    assert len(own) == len(stepped[0])
    unchanged = all(map(torch.equal, before, task.model.parameters()))
    return seconds, all(map(torch.equal, own, stepped[0])), unchanged


def test_computation_alone_exchanges_no_gradient_and_all_ranks_hear_the_same():
    (first_s, *first), (second_s, *second) = run_ranks(_computed, 2)
    assert first == second == [True, True]
    assert first_s == second_s > 0


def _told(rank: int, world_size: int, folder: Path) -> tuple[bytes, str]:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    settings = Settings(
        output=folder, batch=8, calibration_s=1.0, profiled=2, rounds=2, iterations=1, epochs=1
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = tell(Communicator(timeout_s=60), settings)
    result = structs.replace(result, wall_s=0.0)  # each rank's own
    return result.to_json(), printed.getvalue()


def test_the_story_holds_the_plans_against_the_pace_it_measured(tmp_path):
    (found, printed), (elsewhere, silence) = run_ranks(_told, 2, tmp_path)
    assert (elsewhere, silence) == (found, "")
    told = DemoResult.from_json(found)
    workload = Workload.load(tmp_path / "workload.json")
    cluster = Cluster.load(tmp_path / "cluster.json")
    pace = told.pace
    assert pace is not None
    assert pace.profiled_s == workload.compute_s
    assert len(pace.samples_s) == 2
    now = workload.scaled(pace.measured_s / workload.compute_s)
    *policies, ddp = told.policies
    assert (ddp.name, ddp.predicted_s, ddp.paced_s) == ("ddp", None, None)
    assert len(policies) == 6
    for policy in policies:
        plan = Plan.load(tmp_path / f"plan-{policy.name}.json")
        assert policy.predicted_s == plan.prediction.iteration_s
        expected = predict(now, plan, cluster)
        assert policy.paced_s == pytest.approx(expected.iteration_s)
        assert len(policy.samples_s) == 2
    assert "largest" not in printed  # the tables of the commands are for --full
    assert len(printed.splitlines()) <= 2 * 45
    assert f"open {tmp_path / 'report.html'}" in printed.splitlines()[-1]
    assert (tmp_path / "report.html").read_bytes().lower().startswith(b"<!doctype html>")
    assert f"a change of pace by {pace.change:+.1%}" in printed
    assert f"off by {told.median_error:.1%} at the pace of the comparison" in printed
    assert f"by {told.median_planned_error:.1%} as planned" in printed
