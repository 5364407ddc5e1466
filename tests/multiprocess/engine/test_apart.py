"""One rank goes another way than the others; they hear what it did."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch import nn

from syncopate.engine.distribute import distribute
from syncopate.errors import CollectiveError, EngineError
from tests.multiprocess.engine.cases import TIMEOUT_S, data, mlp, plan_of
from tests.multiprocess.harness import run_ranks


def _leaves_a_step_out(rank: int, world_size: int) -> str:
    model, optimizer = alone("sharded")
    try:
        for step in range(3):
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            if step or not rank:
                optimizer.step()
    except CollectiveError as error:
        return str(error)
    return ""


def alone(exchange: str) -> tuple[Any, torch.optim.Optimizer]:
    """Return a model with buffers under the engine alone."""
    own = mlp()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    plan = plan_of(own, 2, [2, 2, 2], exchange=exchange)
    model, _ = distribute(own, optimizer, plan=plan, timeout_s=TIMEOUT_S)
    return model, optimizer


def test_a_step_that_one_rank_leaves_out_is_named() -> None:
    for said in run_ranks(_leaves_a_step_out, 2):
        assert "rank 0 in all_gather (ring) #" in said
        assert "rank 1 in reduce_scatter (native) #" in said
        assert "all of them run a step(), or none" in said
        assert "some rank left one out" in said


def _ends_by_itself(rank: int, world_size: int, exchange: str, ending: int) -> str:
    model, _ = alone(exchange)
    model(data(rank, 0, 4, 8)).sum().backward()
    if rank == ending:
        model[0].weight = nn.Parameter(torch.ones(8, 8))
    try:
        for step in range(3):
            model(data(rank, step, 4, 8)).sum().backward()
    except EngineError as error:
        # As Python does with an uncaught exception.
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    except CollectiveError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("exchange", ["allreduce", "sharded"])
@pytest.mark.parametrize("ending", [0, 1])
def test_what_ends_one_rank_is_heard_on_the_others(exchange: str, ending: int) -> None:
    found = run_ranks(_ends_by_itself, 2, exchange, ending, may_die=(ending,))
    said = found[1 - ending]
    assert f"rank {ending} failed by itself: EngineError: '0.weight' was replaced after" in said
