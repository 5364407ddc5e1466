"""Checkpoints: whole state by parameter, under every exchange, between exchanges, and back."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist

from syncopate.artifacts.plan import Plan
from syncopate.engine.distribute import distribute
from tests.multiprocess.checkpoints.cases import (
    OPTIMIZERS,
    Shapes,
    assert_same,
    exchange_plan,
    groups_of,
    train,
)
from tests.multiprocess.engine.cases import TIMEOUT_S, replicating
from tests.multiprocess.harness import Cases, run_ranks

WORLD_SIZE = 3
CHAIN = (
    ("allreduce", [5, 4], 1),
    ("sharded", [1, 5, 3], 1),
    ("sharded", [9], 1),
    ("sharded", [1] * 9, 4),
    ("sharded", [1] * 9, 2, 4),
    ("rooted", [2, 3, 4], 1),
    ("rooted", [1] * 9, 3),
    ("allreduce", [9], 1),
)
"""Exchanges with the sizes of their buckets, the parts of tensors, and how many buckets every rank
updates, one after the other."""

THROUGH_ALL = ("momentum", "adam", "adafactor")
"""Optimizers that go through the whole chain; the others go through every second link in turn."""


def _planned(
    model: Any, exchange: str, sizes: Any = None, parts: int = 1, replicated: int = 0
) -> Plan:
    return replicating(
        exchange_plan(model, dist.get_world_size(), exchange, sizes, parts), replicated
    )


def _start(build: Any, exchange: str, *buckets: Any) -> Any:
    """The same model twice: distributed, and plain; each with its optimizer."""
    torch.manual_seed(0)
    plain = Shapes()
    model = copy.deepcopy(plain)
    plan = _planned(model, exchange, *buckets)
    model, optimizer = distribute(model, build(groups_of(model)), plan=plan, timeout_s=TIMEOUT_S)
    return model, optimizer, plain, build(groups_of(plain))


def _survives_switches(rank: int, name: str) -> None:
    build = OPTIMIZERS[name]
    chain = CHAIN if name in THROUGH_ALL else CHAIN[list(OPTIMIZERS).index(name) % 2 :: 2]
    model, optimizer, plain, reference = _start(build, *chain[0])
    for place, (exchange, *buckets) in enumerate(chain):
        if place:
            model.syncopate.install(_planned(model, exchange, *buckets))
            assert_same(optimizer.state_dict(), reference.state_dict(), f"before {exchange}")
        steps = range(2 * place, 2 * place + 2)
        train(model, optimizer, rank, steps, plain=False)
        train(plain, reference, rank, steps, plain=True)
        saved = model.syncopate.state_dict(optimizer, everywhere=True)
        assert_same(saved["optimizer"], reference.state_dict(), f"under {exchange}")
        assert_same(saved["model"], plain.state_dict(), f"under {exchange}")
    model.syncopate.install(exchange_plan(model, WORLD_SIZE, "sharded", [4, 5]))
    train(model, optimizer, rank, [20], plain=False)
    train(plain, reference, rank, [20], plain=True)
    model.syncopate.detach()
    assert type(model) is Shapes
    assert_same(optimizer.state_dict(), reference.state_dict(), "detached")
    assert_same(model.state_dict(), plain.state_dict(), "detached")
    train(model, optimizer, rank, [21], plain=True)
    train(plain, reference, rank, [21], plain=True)
    assert_same(model.state_dict(), plain.state_dict(), "plain again")


def _all_switches(rank: int, world_size: int) -> None:
    with Cases() as case:
        for name in OPTIMIZERS:
            with case(f"with {name}"):
                _survives_switches(rank, name)


def test_no_optimizer_loses_its_state_between_exchanges():
    run_ranks(_all_switches, WORLD_SIZE)
