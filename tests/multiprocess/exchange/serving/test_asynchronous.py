"""Servers that update at every push: no rank waits for another, and all end with one model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import syncopate
from syncopate.engine.distribute import distribute
from syncopate.paramserver.job import Job
from syncopate.protocol.rules import Rules
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere
from tests.multiprocess.exchange.cases import batch, failing_backward
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

AHEAD = 12


class Branches(nn.Module):
    """A layer that only some ranks use, and a normalised one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.rare = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, inputs: Tensor, rare: bool = False) -> Tensor:
        hidden = self.norm(self.first(inputs))
        found: Tensor = self.last(self.rare(hidden) if rare else hidden)
        return found


def slow(model: nn.Module) -> torch.optim.Optimizer:
    """Momentum SGD whose rate bears that every rank's gradient counts as a step."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, weight_decay=0.01)


@torch.no_grad()
def loss_of(model: Any) -> float:
    return float(model(batch(0, 0, 64, 5)).square().mean())


def started(job: Job, rank: int, rules: Rules) -> tuple[Any, Any, Any]:
    found = msgspec.structs.replace(job, rank=rank)
    store = syncopate.KVStore(rules, job=found, limits=QUICK)
    model: Any = Branches()
    told = distribute(model, slow(model), exchange=store, timeout_s=TIMEOUT_S)
    return store, *told


def step(model: Any, optimizer: Any, rank: int, num: int, rare: bool = False) -> None:
    model(batch(rank, num, 6, 5), rare).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def runs_ahead(rank: int, world_size: int, job: Job) -> None:
    """Rank 1 takes its steps while rank 0 stands still, and then both go on."""
    store, model, optimizer = started(job, rank, Rules(mode="asgd"))
    with store:
        if rank == 0:
            dist.barrier()
        else:
            for num in range(AHEAD):
                step(model, optimizer, rank, num, rare=num % 3 == 0)
            alone = Branches()
            theirs = slow(alone)
            for num in range(AHEAD):
                step(alone, theirs, rank, num, rare=num % 3 == 0)
            assert all(map(torch.equal, weights(model), weights(alone)))
            assert torch.equal(model.norm.running_mean, alone.norm.running_mean)
            dist.barrier()
        before = model.rare.weight.detach().clone()
        for num in range(AHEAD, AHEAD + 4 + rank):  # unequally many
            step(model, optimizer, rank, num, rare=bool(rank))
        mean = model.norm.running_mean.clone()
        with model.syncopate.global_weights():
            identical_everywhere([*model.parameters(), *model.buffers()])
        assert torch.equal(mean, model.norm.running_mean)
        assert not torch.equal(before, model.rare.weight)  # rank 0 never reached it
        model.syncopate.detach()
        identical_everywhere(model.parameters())


def test_nobody_waits_for_another_rank() -> None:
    rules = Rules(mode="asgd")
    with LocalServers(servers=2, workers=2, rules=rules) as job:
        run_ranks(runs_ahead, 2, job.job)
        assert job.ended() is None


def bounded(rank: int, world_size: int, job: Job, rules: Rules) -> None:
    store, model, optimizer = started(job, rank, rules)
    with store:
        before = loss_of(model)
        for num in range(30):
            step(model, optimizer, rank, num)
        with model.syncopate.global_weights():
            identical_everywhere(model.parameters())
            assert loss_of(model) < 0.5 * before


@pytest.mark.parametrize(
    "rules", [Rules(mode="asgd", staleness=1), Rules(mode="dc-asgd")], ids=["bounded", "dc"]
)
def test_other_asynchronous_rules_train(rules: Rules) -> None:
    with LocalServers(servers=1, workers=3, rules=rules) as job:
        run_ranks(bounded, 3, job.job, rules)


def fails_alone(rank: int, world_size: int, job: Job) -> None:
    """Rank 1's backward raises half-way; it zeroes its gradients and goes on, as rank 0 does."""
    store, model, optimizer = started(job, rank, Rules(mode="asgd"))
    with store:
        for num in range(6):
            if rank and num == 3:
                with failing_backward(model.norm):
                    step(model, optimizer, rank, num)
                optimizer.zero_grad()
            step(model, optimizer, rank, num)
        with model.syncopate.global_weights():
            identical_everywhere(model.parameters())


def test_a_step_that_fails_on_one_rank_is_its_own_affair() -> None:
    with LocalServers(servers=1, workers=2, rules=Rules(mode="asgd")) as job:
        run_ranks(fails_alone, 2, job.job)


def accumulated(rank: int, world_size: int, job: Job) -> None:
    """What accumulated under no_sync() is sent, though the last backward did not come by."""
    store, model, optimizer = started(job, rank, Rules(mode="asgd"))
    alone = Branches()
    theirs = slow(alone)
    with store:
        for num in range(6):
            with model.no_sync():
                model(batch(0, num, 6, 5), True).square().mean().backward()
            step(model, optimizer, 0, num + 100)
            alone(batch(0, num, 6, 5), True).square().mean().backward()
            step(alone, theirs, 0, num + 100)
            assert all(map(torch.equal, weights(model), weights(alone))), num


def test_what_accumulated_is_sent() -> None:
    with LocalServers(servers=1, workers=1, rules=Rules(mode="asgd")) as job:
        run_ranks(accumulated, 1, job.job)
