"""The demo's trainers, under a plan and DDP's, on the same model and the same digits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain, count

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.plan import Plan
from syncopate.collectives import Communicator
from syncopate.engine.distribute import distribute
from syncopate.engine.engine import Engine
from syncopate.zoo import Digits

LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4

Wrap = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]
"""A way of training: takes a model and its optimizer, returns those to train with."""


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that all of the demo trains with."""
    return torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )


def with_plan(plan: Plan) -> Wrap:
    """Return the way of training that exchanges gradients under ``plan``."""
    return lambda model, optimizer: distribute(model, optimizer, plan=plan)


def with_ddp(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Exchange gradients as plain DistributedDataParallel does."""
    return DistributedDataParallel(model), optimizer


class Trainer:
    """A model that trains on this rank's share of the digits, one iteration at a time.

    Args:
        model: trained in place.
        data: the digits.
        communicator: tells this rank its share.
        batch: samples per rank and iteration.
        wrap: the way of training.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Digits,
        communicator: Communicator,
        batch: int,
        wrap: Wrap,
    ) -> None:
        self.data = data
        self.batch = batch
        self.rank, self.world_size = communicator.rank, communicator.world_size
        self.initial = copy.deepcopy(model.state_dict())
        self.bare = model
        self.model, self.optimizer = wrap(model, optimizer_of(model))
        self._endless = chain.from_iterable(map(self._epoch_batches, count()))

    def install(self, plan: Plan) -> None:
        """Train under another plan from the next iteration on; only for a trainer with a plan."""
        self.engine.install(plan)

    @property
    def engine(self) -> Engine:
        """The engine that runs the plan; only a trainer with a plan has one."""
        engine = self.model.syncopate
        assert isinstance(engine, Engine)
        return engine

    def close(self) -> None:
        """Give the model back and leave the process groups; only for a trainer with a plan."""
        self.engine.detach()

    def step(self) -> None:
        """Run one whole iteration on the next batch of an endless stream."""
        self._step(*next(self._endless))

    def epoch(self, number: int) -> float:
        """Train one epoch; return this rank's mean loss."""
        losses = [self._step(*batch) for batch in self._epoch_batches(number)]
        return float(torch.stack(losses).mean())

    def restart(self) -> None:
        """Go back to the initial weights and a fresh optimizer."""
        self.bare.load_state_dict(self.initial)
        self.optimizer.state.clear()

    def _step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def _epoch_batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.data.batches(
            self.batch, epoch=number, rank=self.rank, world_size=self.world_size
        )
