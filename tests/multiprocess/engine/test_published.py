"""Published figures of a real training: what Prometheus fetches, scalars, files, and refusals."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import syncopate
from syncopate.errors import InvalidValueError
from syncopate.metrics.place import VARIABLE
from tests.children import HANGS_S
from tests.multiprocess.engine.cases import data, mlp, plan_of
from tests.multiprocess.harness import run_ranks

STEPS, EVERY = 11, 5
SIZES = [2, 3, 1]


class Writer:
    """Keeps scalars as a SummaryWriter gets them."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[int, float]] = {}

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any) -> None:
        self.seen.setdefault(tag, {})[global_step] = scalar_value


def _distributed(world_size: int, exchange: str) -> Any:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(model, world_size, SIZES, exchange=exchange)
    return syncopate.distribute(model, optimizer, plan=plan)


def _steps(model: Any, optimizer: Any, rank: int) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(data(rank, step, 4, 8)).sum().backward()
        optimizer.step()


def fetched(address: str) -> dict[str, float]:
    """Return the samples at an address, without their labels."""
    with urllib.request.urlopen(address, timeout=HANGS_S) as answer:
        lines = answer.read().decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, value in values}


def _publishes(rank: int, world_size: int, exchange: str) -> tuple[Any, ...]:
    model, optimizer = _distributed(world_size, exchange)
    writer = Writer()
    published = syncopate.publish(model, writer=writer, metrics=0, every=EVERY)
    _steps(model, optimizer, rank)
    model.syncopate.ready()
    found = fetched(published.address)
    nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
    model.syncopate.detach()
    return writer.seen, found, fetched(published.address), nbytes


@pytest.mark.parametrize("exchange", ["allreduce", "decoupled", "sharded"])
def test_each_rank_publishes_its_own_figures(exchange: str) -> None:
    for scalars, metrics, after, nbytes in run_ranks(_publishes, 2, exchange):
        # Of ten steps two fives are over, and the eleventh says so.
        assert set(scalars) == {
            f"syncopate/{name}"
            for name in ("step_s", "waiting_s", "exposed_s", "nbytes", "busbw_bytes_per_s")
        }
        last = int(metrics["syncopate_iteration"])
        assert last in (8, 9)  # of a step that ends in the next forward that has to be over
        for values in scalars.values():
            assert len(values) == 2
            assert max(values) == last
        assert metrics["syncopate_steps_total"] == last + 1
        assert metrics["syncopate_plan"] == 1
        assert metrics["syncopate_step_seconds"] == scalars["syncopate/step_s"][last] > 0
        assert metrics["syncopate_communicated_bytes_total"] >= (last + 1) * nbytes
        assert metrics["syncopate_waiting_seconds_total"] >= 0
        assert after == {}  # the training is over


def _asked(rank: int, world_size: int, folder: Path) -> str:
    os.environ[VARIABLE] = str(folder)
    model, optimizer = _distributed(world_size, "allreduce")
    _steps(model, optimizer, rank)
    from syncopate.metrics import endpoint  # noqa: PLC0415

    endpoint._current[0].close()  # as the end of the process does
    return (folder / f"rank-{rank}.prom").read_text()


def test_the_environment_asks_for_files(tmp_path: Path) -> None:
    for rank, text in enumerate(run_ranks(_asked, 2, tmp_path)):
        assert f'syncopate_steps_total{{rank="{rank}",model="Sequential"}} 10\n' in text


def _fails(rank: int, world_size: int) -> int:
    model, optimizer = _distributed(world_size, "allreduce")

    class Broken:
        def add_scalar(self, tag: str, scalar_value: Any, global_step: Any) -> None:
            raise OSError("the disk is full")

    syncopate.publish(model, writer=Broken(), every=1)
    _steps(model, optimizer, rank)
    return len(model.syncopate.readiness.listeners)


def test_a_writer_that_fails_ends_no_training() -> None:
    assert run_ranks(_fails, 2) == [0, 0]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({}, "writer is not given"),
        ({"writer": 3}, "one with add_scalar"),
        ({"metrics": "x:99999"}, "metrics is 'x:99999'"),
        ({"metrics": 0, "every": 0}, "every is 0"),
    ],
)
def test_what_cannot_be_published_is_refused(told: dict[str, Any], said: str) -> None:
    class Distributed(torch.nn.Linear):
        syncopate = object()

    with pytest.raises(InvalidValueError, match=said):
        syncopate.publish(Distributed(1, 1), **told)


def test_a_model_that_is_not_distributed_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"syncopate\.distribute was called with"):
        syncopate.publish(torch.nn.Linear(1, 1), metrics=0)
