"""Uneven inputs: a rank that runs out goes on taking part, as with DDP's join; none waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join

from syncopate.artifacts.cluster import Cluster
from syncopate.engine.distribute import distribute
from syncopate.engine.selfplan import payback
from syncopate.errors import EngineError
from tests.children import HANGS_S
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    Pair,
    average,
    buffers_of_a_forward,
    data,
    identical_everywhere,
    mlp,
    plan_of,
    run_cases,
)
from tests.multiprocess.harness import run_ranks

RANKS = 3


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def _train(counts: list[int], rank: int, model: Any, optimizer: Any, **options: Any) -> None:
    with model.join(**options):
        for step in range(counts[rank]):
            optimizer.zero_grad()
            if step % 2:
                with model.no_sync():
                    model(data(rank, 50 + step, 4, 8)).square().mean().backward()
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()


def _as_with_ddp(rank: int) -> None:
    for build, sizes in ((mlp, [2, 4]), (_plain, [1, 3])):
        for counts in ([2, 5, 3], [5, 1, 0], [3, 3, 3], [0, 0, 4]):
            for by_all in (True, False):
                pair = Pair(rank, build, sizes=sizes)
                options = {"divide_by_initial_world_size": by_all}
                train = partial(_train, counts, rank, **options)
                for _ in range(2):  # the second epoch begins as every forward does
                    train(pair.reference, pair.reference_optimizer)
                    train(pair.model, pair.optimizer)
                    reference = pair.reference.module.parameters()
                    for own, expected in zip(pair.model.parameters(), reference, strict=True):
                        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5)
                    identical_everywhere(
                        [*pair.model.parameters(), *buffers_of_a_forward(pair.model)]
                    )
                    # Momentum of a rank that stopped early stayed behind, with DDP as well.
                    for optimizer in (pair.optimizer, pair.reference_optimizer):
                        optimizer.state.clear()
                pair.close()


def _buffers_of_those_that_train(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[6])
    norm = pair.model[1]
    _train([1, 4, 2], rank, pair.model, pair.optimizer)
    # Rank 0 stopped after one step of three forwards; rank 1 went on.
    assert norm.num_batches_tracked.item() == 6
    identical_everywhere(norm.buffers())
    pair.run(lambda model, optimizer: model(data(rank, 0, 4, 8)).sum().backward())
    identical_everywhere(buffers_of_a_forward(pair.model))
    pair.close()


def _refused(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[2, 4])
    model, optimizer = pair.model, pair.optimizer
    with pytest.raises(EngineError, match=r"rank.? .*ran out of inputs.*throw_on_early"):
        _train([1, 3, 1], rank, model, optimizer, throw_on_early_termination=True)
    _train([2, 2, 2], rank, model, optimizer, throw_on_early_termination=True)
    _train([2, 2, 2], rank, model, optimizer, enable=False)
    with pytest.raises(EngineError, match=r"rank 1 differs.*what join\(\) is told"):
        _train([1, 1, 1], rank, model, optimizer, divide_by_initial_world_size=rank != 1)
    with pytest.raises(EngineError, match="within the block of another join"), model.join():
        _train([1, 1, 1], rank, model, optimizer)
    with pytest.raises(EngineError, match=r"use `with model.join\(\):`"):
        Join([model])
    identical_everywhere(model.parameters())
    pair.close()


def _errors_in_a_block(rank: int) -> None:
    """An error on one rank that goes on is named on all that train; those that ran out shadow."""
    for build in (mlp, _plain):
        pair = Pair(rank, build, sizes=[4] if build is _plain else [6])
        model, optimizer = pair.model, pair.optimizer
        errors: list[str] = []

        def step(number: int, broken: bool, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            output = model(data(rank, number, 4, 8))
            if broken:
                raise EngineError("boom")
            output.square().mean().backward()
            optimizer.step()

        with model.join():
            for number in range((1, 4, 5)[rank]):
                try:
                    step(number, rank == 2 and number == 2)
                except EngineError as error:
                    errors.append(str(error))
        if rank:
            assert "error between forward and backward" in errors[-1].lower()
        identical_everywhere(model.parameters())
        pair.close()


def _while_it_plans(rank: int) -> None:
    """Self-planning ends when a rank runs out, on all ranks, and training goes on."""
    torch.manual_seed(rank)
    model = _plain()
    payback.SHARE = 1e9  # nothing waits: steps here take milliseconds
    cluster = Cluster.flat(RANKS, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    model, optimizer = distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), cluster=cluster, timeout_s=TIMEOUT_S
    )
    _train([6, 9, 8], rank, model, optimizer)
    identical_everywhere(model.parameters())
    optimizer.zero_grad()
    model(data(rank, 1, 4, 8)).sum().backward()
    identical_everywhere(p.grad for p in model.parameters())
    assert not model.syncopate.readiness.held
    assert not model.syncopate.readiness.listeners
    model.syncopate.detach()


def _while_sharded_plans_compete(rank: int) -> None:
    """Not all ranks of a sharded plan could go on: the plan from before planning does."""
    torch.manual_seed(rank)
    model = _plain()
    payback.SHARE = 1e9  # nothing waits: steps here take milliseconds
    cluster = Cluster.flat(RANKS, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    model, optimizer = distribute(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        cluster=cluster,
        exchange="sharded",
        timeout_s=TIMEOUT_S,
    )
    engine = model.syncopate
    hangs_s = time.monotonic() + HANGS_S
    while engine.plan.exchange != "sharded":
        assert engine.planning
        assert time.monotonic() < hangs_s
        optimizer.zero_grad()
        model(data(rank, 0, 4, 8)).square().mean().backward()
        optimizer.step()
    assert engine.planning
    _train([2, 4, 3], rank, model, optimizer)
    assert not engine.planning
    assert engine.plan.exchange == "allreduce"
    identical_everywhere(model.parameters())
    engine.detach()


def _plain_averages(rank: int) -> None:
    """Sums are divided by all ranks or by those left, in float16 too, which is divided before."""
    for dtype in (torch.float32, torch.float16):
        for by_all in (True, False):
            model = nn.Linear(2, 1, bias=False, dtype=dtype)
            model, _ = distribute(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                plan=plan_of(model, RANKS),
                timeout_s=TIMEOUT_S,
            )
            seen = []
            with model.join(divide_by_initial_world_size=by_all):
                for _ in range((1, 2, 2)[rank]):
                    model.zero_grad()
                    model(torch.full((1, 2), 6.0 * (1 + rank), dtype=dtype)).sum().backward()
                    seen.append(model.weight.grad.tolist()[0][0])
            assert seen == [12.0, 10.0 if by_all else 15.0][: len(seen)]
            model.zero_grad()
            model(torch.full((1, 2), 6.0 * (1 + rank), dtype=dtype)).sum().backward()
            assert model.weight.grad.tolist()[0][0] == 12.0  # all ranks count again
            model.syncopate.detach()
    average([torch.ones(1)])


CASES: tuple[Callable[[int], None], ...] = (
    _as_with_ddp,
    _buffers_of_those_that_train,
    _refused,
    _errors_in_a_block,
    _while_it_plans,
    _while_sharded_plans_compete,
    _plain_averages,
)


def _every_case(rank: int, world_size: int) -> None:
    run_cases(CASES, rank)


def test_ranks_may_run_out_of_inputs() -> None:
    run_ranks(_every_case, RANKS)
