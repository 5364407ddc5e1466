"""Models of full size beside DDP: every exchange, and ``distribute`` without arguments.

What is right for a few thousand gradients may be wrong for 25 million: buckets are many, messages
are cut into blocks, one bucket is on its way while the next is gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, ROOTED, SERVED, SHARDED
from syncopate.delay import SGD, Delay, LocalSGD
from syncopate.engine.selfplan.ddp_buckets import carried_by, first_plan
from syncopate.paramserver.job import Job
from syncopate.protocol.rules import Rules
from syncopate.zoo import char_gpt, resnet50
from syncopate.zoo.task import Task
from tests.multiprocess.harness import Cases, run_ranks
from tests.multiprocess.paramserver.servers import CALM, LocalServers

RANKS, STEPS = 2, 3
BATCH = 2
DEFAULT = "without arguments"

EXCHANGES = (DEFAULT, ALLREDUCE, DECOUPLED, SHARDED, ROOTED)

WARMING_UP = {
    "delayed, in its warm-up": (SHARDED, Delay(k=4, warm_up=STEPS, local_update=SGD)),
    "averaged, in its warm-up": (ALLREDUCE, LocalSGD(period=4, warm_up=STEPS + 1)),
}
"""Exchanges that train as DDP does for as long as this: name -> exchange and delay."""


def _resnet50() -> Task:
    return resnet50(BATCH * RANKS, image_size=32)


def _char_gpt() -> Task:
    return char_gpt(BATCH * RANKS)


MODELS: dict[str, Callable[[], Task]] = {"ResNet-50": _resnet50, "character GPT": _char_gpt}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "ResNet-50": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "character GPT": lambda p: torch.optim.AdamW(p, lr=1e-3),
}

Wrap = Callable[[nn.Module, torch.optim.Optimizer], tuple[Any, torch.optim.Optimizer]]


def _ddp(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, torch.optim.Optimizer]:
    return DistributedDataParallel(model), optimizer


def _ours(exchange: str, delay: Delay | LocalSGD | None = None) -> Wrap:
    """Return what trains by DDP's buckets, carried by ``exchange``."""

    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        if exchange == DEFAULT:
            return syncopate.distribute(model, optimizer)
        sizes = [(name, p.numel(), "float32") for name, p in model.named_parameters()]
        plan = first_plan("full size", sizes, RANKS, exchange)
        return syncopate.distribute(model, optimizer, plan=plan.delayed(delay) if delay else plan)

    return wrap


def _served(store: syncopate.KVStore) -> Wrap:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        sizes = [(name, p.numel(), "float32") for name, p in model.named_parameters()]
        plan = carried_by(SERVED, first_plan("full size", sizes, RANKS), store.num_servers)
        return syncopate.distribute(model, optimizer, plan=plan, exchange=store)

    return wrap


def _trained(name: str, rank: int, wrap: Wrap) -> dict[str, torch.Tensor]:
    """Return weights after some steps on a share of the batch, and rank 0's buffers."""
    task = MODELS[name]()
    own = slice(BATCH * rank, BATCH * (rank + 1))
    inputs, targets = task.inputs[own], task.targets[own]
    model, optimizer = wrap(task.model, OPTIMIZERS[name](task.model.parameters()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        task.loss_fn(model(inputs), targets).backward()
        optimizer.step()
    kept = task.model.state_dict() if rank == 0 else dict(task.model.named_parameters())
    found = {key: value.detach().clone() for key, value in kept.items()}
    if hasattr(model, "syncopate"):
        model.syncopate.detach()
    return found


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    wrong = [key for key, value in found.items() if not torch.equal(value, expected[key])]
    assert not wrong


def _beside_ddp(rank: int, world_size: int, name: str) -> None:
    expected = _trained(name, rank, _ddp)
    start = MODELS[name]().model.state_dict()
    assert any(not torch.equal(value, start[key]) for key, value in expected.items())
    rows = {name: _ours(name) for name in EXCHANGES}
    rows |= {name: _ours(*row) for name, row in WARMING_UP.items()}
    with Cases() as case:
        for kind, wrap in rows.items():
            with case(kind):
                _same(_trained(name, rank, wrap), expected)


@pytest.mark.parametrize("name", MODELS)
def test_every_exchange_trains_models_of_full_size_as_ddp_does(name: str) -> None:
    run_ranks(_beside_ddp, RANKS, name)


def _served_beside_ddp(rank: int, world_size: int, name: str, job: Job) -> None:
    expected = _trained(name, rank, _ddp)
    own = msgspec.structs.replace(job, rank=rank)
    with syncopate.KVStore(Rules(), job=own, limits=CALM) as store:
        found = _trained(name, rank, _served(store))
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_servers_train_models_of_full_size_as_ddp_does(name: str) -> None:
    with LocalServers(workers=RANKS) as job:
        run_ranks(_served_beside_ddp, RANKS, name, job.job)
        assert job.ended() is None
