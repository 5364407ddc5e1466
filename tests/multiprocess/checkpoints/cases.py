"""What the tests of checkpoints share: a model of many shapes, optimizers, and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from syncopate.artifacts.plan import ALLREDUCE, EXCHANGES, ROOTED, SHARDED, Plan
from syncopate.recipe import Recipe
from tests.multiprocess.engine.cases import average, data, in_parts, plan_of

Optimizers = dict[str, Callable[[Iterable[Any]], torch.optim.Optimizer]]

OPTIMIZERS: Optimizers = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01, t0=1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}
"""Every optimizer of torch that treats each element alike, and one that looks at whole tensors."""


class Shapes(nn.Module):
    """Parameters of many shapes: a scalar, strides of their own, two dtypes, one never reached."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.first = nn.Linear(20, 7)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.one = nn.Parameter(torch.ones(1))
        self.unused = nn.Parameter(torch.ones(3, 2))
        self.last = nn.Linear(7, 2, dtype=torch.float64)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, images: Tensor) -> Tensor:
        """Return two numbers per image of 3 x 4 x 4."""
        hidden = self.first(self.image(images).flatten(1)).relu() * self.scale + self.one
        found: Tensor = self.last(hidden.double()) + self.frozen
        return found


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """The trained parameters in two groups, the smaller ones with a learning rate of their own."""
    trained = [p for p in model.parameters() if p.requires_grad]
    small = [p for p in trained if p.dim() < 2]
    large = [p for p in trained if p.dim() >= 2]
    return [{"params": large}, {"params": small, "lr": 0.02}]


def exchange_plan(
    model: nn.Module,
    world_size: int,
    exchange: str,
    sizes: Iterable[int] | None = None,
    parts: int = 1,
) -> Plan:
    """The plan of ``plan_of``, carried out by ``exchange``; roots go round the ranks but the last.

    So under ``rooted`` one rank owns nothing.
    """
    plan = in_parts(plan_of(model, world_size, sizes), model, parts)
    kind = EXCHANGES[exchange]
    buckets = []
    for index, bucket in enumerate(plan.buckets):
        root = index % max(world_size - 1, 1) if exchange == ROOTED else 0
        algorithms = {ALLREDUCE: ("ring", ""), SHARDED: ("ring", "ring"), ROOTED: ("mst", "mst")}
        push, pull = algorithms[exchange]
        buckets.append(
            msgspec.structs.replace(
                bucket,
                push=Recipe(kind.push, push, root),
                pull=Recipe(kind.pull, pull, root) if kind.pull else None,
            )
        )
    return msgspec.structs.replace(plan, exchange=exchange, buckets=tuple(buckets))


def loss_of(model: Any, rank: int, step: int, seed: int = 0) -> Tensor:
    """The loss of one batch that differs by rank and step."""
    found: Tensor = model(data(rank + seed, step, 4, 3, 4, 4)).square().mean()
    return found


def train(
    model: Any, optimizer: torch.optim.Optimizer, rank: int, steps: Iterable[int], *, plain: bool
) -> None:
    """Train on batches that differ by rank and step; ``plain`` averages gradients by hand."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        if plain:
            reached = [p for p in model.parameters() if p.grad is not None]
            for parameter, grad in zip(reached, average(p.grad for p in reached), strict=True):
                parameter.grad = grad
        optimizer.step()


def assert_same(here: Any, there: Any, where: str = "", *, exact: bool = False) -> None:
    """Assert that two states are alike in structure, dtypes and shapes, and in values."""
    if isinstance(there, Tensor):
        assert isinstance(here, Tensor), where
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(here, there, **tolerance, msg=lambda text: f"{where}: {text}")
    elif isinstance(there, dict):
        assert here.keys() == there.keys(), where
        for key, value in there.items():
            assert_same(here[key], value, f"{where}.{key}", exact=exact)
    elif isinstance(there, list | tuple):
        assert len(here) == len(there), where
        for place, (one, other) in enumerate(zip(here, there, strict=True)):
            assert_same(one, other, f"{where}[{place}]", exact=exact)
    else:
        assert here == there, where
