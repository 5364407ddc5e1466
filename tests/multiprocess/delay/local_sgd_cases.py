"""What the tests of local SGD share: post-local SGD, literally, for p workers in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from syncopate.delay import LocalSGD
from syncopate.engine.distribute import distribute
from tests.multiprocess.delay.cases import Loss, loss_of
from tests.multiprocess.engine.cases import TIMEOUT_S, in_parts, plan_of

MakeOptimizers = Callable[[nn.Module], Sequence[torch.optim.Optimizer]]


class Workers:
    """p workers with a model and optimizers each, in one process (Lin et al. 2020, Algorithm 2).

    Args:
        model: where all begin.
        made: makes the optimizers of a worker.
        method: period and warm-up.
        workers: how many.
        loss: of a worker in an iteration.

    Attributes:
        num: the iteration that comes next.
    """

    def __init__(
        self,
        model: nn.Module,
        made: MakeOptimizers,
        method: LocalSGD,
        workers: int,
        loss: Loss = loss_of,
    ) -> None:
        self.models = [copy.deepcopy(model) for _ in range(workers)]
        self.optimizers = [list(made(each)) for each in self.models]
        self.method, self.loss, self.num = method, loss, 0

    def iterate(self) -> None:
        """Do one iteration on all workers."""
        for rank, model in enumerate(self.models):
            self.loss(model, rank, self.num).backward()
        if self.num < self.method.warm_up:
            for several in zip(*(model.parameters() for model in self.models), strict=True):
                mean = torch.stack([each.grad for each in several]).mean(0)
                for each in several:
                    each.grad = mean.clone()
        for optimizers in self.optimizers:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        self.num += 1
        own = self.num - self.method.warm_up
        if own > 0 and own % self.method.period == 0:
            means = self.means()
            with torch.no_grad():
                for model in self.models:
                    for parameter, mean in zip(model.parameters(), means, strict=True):
                        parameter.copy_(mean)

    def weights(self, rank: int) -> list[Tensor]:
        """Return the weights of one worker."""
        return [parameter.detach().clone() for parameter in self.models[rank].parameters()]

    def means(self) -> list[Tensor]:
        """Return the average of all workers' weights."""
        everyone = [self.weights(rank) for rank in range(len(self.models))]
        return [torch.stack(several).mean(0) for several in zip(*everyone, strict=True)]


def locally(
    model: nn.Module,
    optimizer: Any,
    world_size: int,
    method: LocalSGD | None,
    *,
    parts: int = 1,
    **plan: Any,
) -> tuple[Any, Any]:
    """Distribute ``model`` on a plan of one bucket a tensor or part, with local SGD."""
    given = in_parts(plan_of(model, world_size, **plan), model, parts).delayed(method)
    return distribute(model, optimizer, plan=given, timeout_s=TIMEOUT_S)
