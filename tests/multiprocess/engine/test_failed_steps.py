"""A step that fails on one rank: the others learn of it, and all go on as if it had not been."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, SERVERLESS
from syncopate.errors import EngineError
from tests.multiprocess.engine.cases import (
    buffers_of_a_forward,
    data,
    identical_everywhere,
    plan_of,
)
from tests.multiprocess.engine.error_cases import distributed, error_of, small_net, train_step
from tests.multiprocess.harness import run_ranks


class _Bomb(torch.autograd.Function):
    """Passes through, and raises in backward when armed."""

    armed = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if _Bomb.armed:
            raise ValueError("boom")
        return gradient


class _Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(_Bomb.apply(self.norm(self.first(x))))


def _as_without(model: nn.Module, twin: nn.Module, rank: int, steps: Iterable[int]) -> None:
    """Assert that ``model`` has the weights of ``twin`` after ``steps`` of which none failed."""
    twin, optimizer = distributed(twin, plan=plan_of(twin, dist.get_world_size()))
    for step in steps:
        train_step(twin, optimizer, rank, step)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    twin.syncopate.detach()


def _survives(rank: int, world_size: int) -> None:
    torch.manual_seed(rank)
    for sizes in ([2, 2, 2], [6], [1] * 6):
        model = _Fragile()
        twin = copy.deepcopy(model)
        model, optimizer = distributed(model, plan=plan_of(model, world_size, sizes))
        train_step(model, optimizer, rank, 0)
        # Every rank fails, at the same place: the next step is as if nothing had been.
        _Bomb.armed = True
        with pytest.raises(ValueError, match="boom"):
            train_step(model, optimizer, rank, 1)
        _Bomb.armed = False
        train_step(model, optimizer, rank, 2)
        identical_everywhere([*model.parameters(), *buffers_of_a_forward(model)])
        # One rank fails: the others learn which, and no rank steps on half a gradient.
        _Bomb.armed = rank == 1
        before = [p.detach().clone() for p in model.parameters()]
        error = error_of(partial(train_step, model, optimizer, rank, 3))
        _Bomb.armed = False
        if rank == 1:
            assert str(error) == "boom"
        else:
            assert "backward failed on rank 1" in str(error)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        # An error under no_sync: what follows is exchanged again.
        with pytest.raises(ZeroDivisionError), model.no_sync():
            raise ZeroDivisionError
        train_step(model, optimizer, rank, 5)
        identical_everywhere([*model.parameters(), *buffers_of_a_forward(model)])
        _as_without(model, twin, rank, (0, 2, 5))
        model.syncopate.detach()
    _fails_behind_the_last_launch(rank, world_size)


def _fails_behind_the_last_launch(rank: int, world_size: int) -> None:
    """Too late for the others in this step: all refuse the next one, and name the rank."""
    model = small_net()
    twin = copy.deepcopy(model)
    model, optimizer = distributed(model, plan=plan_of(model, world_size, [2, 2, 2]))
    train_step(model, optimizer, rank, 0)
    optimizer.zero_grad()
    output = model(_Bomb.apply(data(rank, 1, 4, 8).requires_grad_()))
    _Bomb.armed = rank == 1
    if rank == 1:
        with pytest.raises(ValueError, match="boom"):
            output.square().mean().backward()
    else:
        output.square().mean().backward()
    _Bomb.armed = False
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(EngineError, match="backward failed on rank 1"):
        train_step(model, optimizer, rank, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    train_step(model, optimizer, rank, 3)  # said once, and in step again
    _as_without(model, twin, rank, (0, 3))
    model.syncopate.detach()


def _sets_gradients_to_zero(rank: int, world_size: int, exchange: str) -> None:
    """In place, before the failed rank has heard what came of its backward."""

    def train(steps: Iterable[int]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = _Fragile()
        plan = plan_of(model, world_size, [2, 2, 2], exchange=exchange)
        model, optimizer = distributed(model, plan=plan)

        def attempt(step: int) -> None:
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()

        for step in steps:
            _Bomb.armed = step == 2 and rank == 1
            error = error_of(partial(attempt, step))
            assert (error is not None) == (step == 2), error
            _Bomb.armed = False
            optimizer.zero_grad(set_to_none=False)
        model.syncopate.detach()
        return [weight.detach().clone() for weight in model.parameters()]

    assert all(map(torch.equal, train(range(5)), train((0, 1, 3, 4))))


@pytest.mark.parametrize("exchange", SERVERLESS)
def test_gradients_that_are_set_to_zero_after_a_failed_backward_stay_so(exchange: str) -> None:
    run_ranks(_sets_gradients_to_zero, 2, exchange)


def _fails_in_the_loss(rank: int, world_size: int) -> list[str]:
    """The error comes before backward reaches the model, on one rank only."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    model, optimizer = distributed(model, plan=plan_of(model, world_size))

    def attempt(step: int, broken: bool, model: Any = model, optimizer: Any = optimizer) -> None:
        optimizer.zero_grad()
        output = model(data(rank, step, 4, 8))
        if broken:
            raise ValueError("boom")
        output.square().mean().backward()
        optimizer.step()

    attempt(0, False)
    before = [p.detach().clone() for p in model.parameters()]
    # Several forwards for one backward are no reason to refuse it, where all ranks do the same,
    # nor is a look at the data that belongs to no step.
    with model.no_sync():
        for _ in range(rank):
            model(data(rank, 0, 4, 8))
    model.eval()
    for _ in range(rank):
        model(data(rank, 0, 4, 8))
    model.train()
    model(data(rank, 1, 4, 8))
    (model(data(rank, 2, 4, 8)).mean() + model(data(rank, 3, 4, 8)).mean()).backward()
    errors = [str(error_of(partial(attempt, 4, rank == 1)))]
    if rank == 1:
        errors.append(str(error_of(partial(attempt, 5, False))))
    assert "rank 1 ran a training forward that saw no backward" in errors[-1], errors
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    attempt(6, False)
    identical_everywhere(model.parameters())
    _as_without(model, twin, rank, (0, 6))
    model.syncopate.detach()
    # With buffers the rank that goes on meets the others' buckets.
    found = []
    for exchange in (ALLREDUCE, DECOUPLED):
        plan = plan_of(small_net(), world_size, exchange=exchange)
        model, optimizer = distributed(small_net(), plan=plan)
        attempt(0, False, model, optimizer)
        attempt(1, False, model, optimizer)
        errors = [str(error_of(partial(attempt, 2, rank == 1, model, optimizer)))]
        if rank == 1:
            errors.append(str(error_of(partial(attempt, 3, False, model, optimizer))))
        found.append(errors[-1])
        error_of(model.syncopate.detach)
    return found


def test_an_error_in_the_loss_of_one_rank_is_found_on_all() -> None:
    for errors in run_ranks(_fails_in_the_loss, 3):
        for error in errors:
            assert re.search("rank 1 in broadcast .*after an error between", error), errors


def test_failed_backwards() -> None:
    run_ranks(_survives, 2)
