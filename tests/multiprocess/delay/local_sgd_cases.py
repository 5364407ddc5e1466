"""What the tests of local SGD share: it and DiLoCo, literally, for p workers in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.contest.diloco import DiLoCo, fragments_of
from torch import Tensor, nn

from syncopate.delay import LocalSGD
from syncopate.engine.distribute import distribute
from tests.multiprocess.delay.cases import Loss, loss_of
from tests.multiprocess.engine.cases import TIMEOUT_S, in_parts, plan_of

MakeOptimizers = Callable[[nn.Module], Sequence[torch.optim.Optimizer]]


_NEVER = 1 << 30


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


class Outer(Workers):
    """DiLoCo's algorithms on p workers in one process, after synchronous steps.

    Algorithm 1 of DiLoCo, and with several fragments Algorithm 2 of Streaming DiLoCo.
    """

    def __init__(
        self,
        model: nn.Module,
        made: MakeOptimizers,
        how: DiLoCo,
        workers: int,
        loss: Loss = loss_of,
    ) -> None:
        alone = LocalSGD(period=_NEVER, warm_up=how.warm_up)  # which averages nothing here
        super().__init__(model, made, alone, workers, loss)
        self.how, self.outer_steps = how, 0
        self.whole = copy.deepcopy(model)
        self.outer = torch.optim.SGD(self.whole.parameters(), lr=0.7, momentum=0.9, nesterov=True)

    def iterate(self) -> None:
        """Do one iteration on all workers, and the outer step that may follow."""
        super().iterate()
        how, local = self.how, self.num - self.how.warm_up
        apart = how.period // how.fragments
        with torch.no_grad():
            if local <= 0:
                for theta, mean in zip(self.whole.parameters(), self.means(), strict=True):
                    theta.copy_(mean)
                return
            if local % apart == (apart - how.overlap) % apart:
                self.sent = self.means()
            if local % apart == 0:
                self.step()

    def step(self) -> None:
        """Step with the fragment that is next, by what was sent of it."""
        names = [{id(p) for p in part} for part in self.fragments()]
        chosen = names[self.outer_steps % len(names)]
        self.outer_steps += 1
        everyone = zip(*(model.parameters() for model in self.models), strict=True)
        for theta, sent in zip(self.whole.parameters(), self.sent, strict=True):
            theta.grad = theta - sent if id(theta) in chosen else None
        self.outer.step()
        for theta, several in zip(self.whole.parameters(), everyone, strict=True):
            for own in several if id(theta) in chosen else ():
                own.copy_(theta.lerp(own, self.how.kept))

    def fragments(self) -> list[nn.ParameterList]:
        """Return the parameters of the common weights, fragment by fragment."""
        return fragments_of(self.whole, self.how.fragments)


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
