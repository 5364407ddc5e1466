"""A rank that dies in backward, in the update of its part or in forward: the others name it."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
import torch

from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.optimizers import declare_optimizer
from syncopate.errors import CollectiveError, EngineError
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of
from tests.multiprocess.exchange.cases import batch, odd_with
from tests.multiprocess.harness import run_ranks

CULPRIT = 1
DIES_AT = 2
LOST = re.compile(rf"rank {CULPRIT} (\(\S+\) )?was lost")
SOON_S = 20.0
"""Bound on any failure here; in fact a few seconds, on a machine that others load too."""


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(torch.optim.SGD):
    """Dies amid the update of its second parameter."""

    dies = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            if number and self.dies:
                die()
            parameter.add_(parameter.grad, alpha=-0.1)


declare_optimizer(Deadly, "element")


def dies(rank: int, world_size: int, exchange: str, where: str) -> dict[str, Any]:
    model, optimizer = odd_with(Deadly, world_size, exchange)
    for step in range(20):
        if rank == CULPRIT and step == DIES_AT:
            optimizer.dies = where == "update"
            if where == "forward":
                model.middle.register_forward_pre_hook(die)
            if where == "backward":
                model.middle.weight.register_hook(die)
        began_s = time.monotonic()
        try:
            optimizer.zero_grad()
            model(batch(rank, step, 4, 5)).square().mean().backward()
            optimizer.step()
        except CollectiveError as error:
            took_s = time.monotonic() - began_s
            # What is looked at later says so too, and does not hang.
            with pytest.raises(CollectiveError):
                model.syncopate.communicator.barrier()
            return {"ranks": error.ranks, "text": str(error), "took_s": took_s, "step": step}
    return {}


@pytest.mark.parametrize(
    ("exchange", "where"),
    [("sharded", "backward"), ("sharded", "update"), ("sharded", "forward"), ("rooted", "update")],
)
def test_the_others_name_a_rank_that_dies(exchange: str, where: str) -> None:
    results = run_ranks(dies, 3, exchange, where, may_die=[CULPRIT])
    assert results[CULPRIT] is None
    for rank in (0, 2):
        found = results[rank]
        assert found["ranks"] == (CULPRIT,), results
        assert LOST.search(found["text"]), found["text"]
        assert found["took_s"] < SOON_S
        assert found["step"] in (DIES_AT, DIES_AT + 1)


def raises(rank: int, world_size: int, exchange: str) -> None:
    """A rank raises beside its model and lives on; then all ranks train the same model again."""
    model, optimizer = odd_with(torch.optim.SGD, world_size, exchange)

    def train(steps: int) -> None:
        for step in range(steps):
            optimizer.zero_grad()
            if rank == CULPRIT and step == DIES_AT:
                raise ZeroDivisionError
            model(batch(rank, step, 4, 5)).square().mean().backward()
            optimizer.step()

    with pytest.raises(ZeroDivisionError if rank == CULPRIT else CollectiveError):
        train(2 * DIES_AT)
    began_s = time.monotonic()
    # At once, though the others are in the middle of a step.
    with pytest.raises(EngineError, match=r"distributed already; call \.syncopate\.detach\(\)"):
        distribute(model, optimizer)
    with suppress(CollectiveError):
        model.syncopate.detach()
    assert time.monotonic() - began_s < SOON_S
    assert {type(parameter.grad) for parameter in model.parameters()} <= {type(None), torch.Tensor}
    assert {type(parameter) for parameter in model.parameters()} == {torch.nn.Parameter}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(model, world_size, exchange=exchange)
    distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)
    train(DIES_AT)
    identical_everywhere(model.parameters())


@pytest.mark.parametrize("exchange", ["allreduce", "decoupled", "sharded", "rooted"])
def test_a_model_is_distributed_again_after_a_rank_raised(exchange: str) -> None:
    run_ranks(raises, 3, exchange)
