"""Programs that meddle with training, beside DDP: the same weights, or one clear sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import checkpoint

from syncopate.errors import EngineError
from tests.multiprocess.engine_cases import Pair, data, mlp, noted, plan_of
from tests.multiprocess.harness import run_ranks

EXCHANGES = ("allreduce", "sharded")


def pair_of(
    rank: int, exchange: str, model: Callable[[], nn.Module] = mlp, *args: Any, **options: Any
) -> Pair:
    """Return a model under DDP and under the engine, with two gradients a bucket."""

    def plan(own: nn.Module, ranks: int) -> Any:
        count = sum(1 for parameter in own.parameters() if parameter.requires_grad)
        sizes = [2] * (count // 2) + [1] * (count % 2)
        return plan_of(own, ranks, sizes, exchange=exchange)

    return Pair(rank, model, *args, plan=plan, **options)


def sides(pair: Pair) -> list[tuple[Any, torch.optim.Optimizer]]:
    """Return both models with their optimizers."""
    return [(pair.reference, pair.reference_optimizer), (pair.model, pair.optimizer)]


def trains(pair: Pair, rank: int, steps: int = 3, **options: Any) -> None:
    """Train both in the same way, and compare them after each step."""
    for step in range(steps):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()

        pair.run(train)
        with noted(f"after step {step}"):
            pair.check(**options)


# -- hooks on gradients -------------------------------------------------------------------------


class _Twice(nn.Module):
    """Uses one layer twice, and another under re-entrant checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.first(x).relu()).relu()
        return checkpoint(self.last, hidden, use_reentrant=True)  # type: ignore[no-any-return]


def _gradient_hooks_that_come_late(rank: int, exchange: str) -> None:
    for build in (mlp, _Twice):
        pair = pair_of(rank, exchange, build)
        for model, _ in sides(pair):
            for place, parameter in enumerate(model.parameters()):

                def scale(p: Tensor, by: float = 1.5 + place + rank) -> None:
                    assert p.grad is not None
                    p.grad.mul_(by)

                def replace(p: Tensor, by: float = 0.25 * (rank + 1)) -> None:
                    assert p.grad is not None
                    p.grad = p.grad.clamp(-by, by)

                parameter.register_post_accumulate_grad_hook(replace if place % 2 else scale)
        trains(pair, rank)
        pair.close()


def _types_there_and_back(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange)
    trains(pair, rank, 1)
    # Autograd adds to these gradients elsewhere from now on; DDP would not notice.
    for parameter in pair.model.parameters():
        parameter.data = parameter.data.double()
        parameter.data = parameter.data.float()
    trains(pair, rank, 2)
    pair.close()


# -- optimizers ---------------------------------------------------------------------------------


class _Clipping(torch.optim.SGD):
    """Clips each whole gradient in a helper of its step, which is inherited."""

    def _init_group(self, group: Any, *lists: Any) -> Any:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(parameter.grad.norm().clamp(min=0.05) * 20)
        return super()._init_group(group, *lists)  # type: ignore[no-untyped-call]


def _a_helper_of_a_known_optimizer(rank: int, exchange: str) -> None:
    build = partial(_Clipping, lr=0.1, momentum=0.9)
    if exchange == "sharded":
        with pytest.raises(EngineError, match=r"known whether _Clipping may update a part"):
            pair_of(rank, exchange, mlp, build)
        return
    pair = pair_of(rank, exchange, mlp, build)
    trains(pair, rank)
    pair.close()


def _renormalising(optimizer: Any, *_: Any) -> None:
    """A hook after the step: every weight of the groups gets a norm of one at most."""
    for group in optimizer.param_groups:
        assert len(group["params"]) == group["count"]
        for parameter in group["params"]:
            parameter.data.div_(parameter.detach().norm().clamp(min=1.0))


def _clipping(optimizer: Any, *_: Any) -> None:
    """A hook before the step: clip by the norm of everything, and choose a learning rate by it."""
    for group in optimizer.param_groups:
        assert len(group["params"]) == group["count"]
        norm = nn.utils.clip_grad_norm_(group["params"], 0.3)
        group["lr"] = 0.1 / (1.0 + norm.item())


def _centralising(optimizer: Any, *_: Any) -> None:
    """A hook before the step: each gradient loses the mean of each of its columns."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.sub_(parameter.grad.mean(dim=0, keepdim=True))


def _hooks_on_the_step(rank: int, exchange: str) -> None:
    def build(parameters: Iterable[nn.Parameter], early: bool) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        optimizer.param_groups[0]["count"] = len(optimizer.param_groups[0]["params"])
        if early:
            register(optimizer)
        return optimizer

    def register(optimizer: torch.optim.Optimizer) -> None:
        gone = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        optimizer.register_step_pre_hook(_centralising)
        optimizer.register_step_pre_hook(_clipping)
        optimizer.register_step_post_hook(_renormalising)
        gone.remove()

    for early in (True, False):
        pair = pair_of(rank, exchange, mlp, partial(build, early=early))
        for _, optimizer in sides(pair):
            if not early:
                register(optimizer)
        trains(pair, rank)
        pair.optimizer.load_state_dict(whole(pair))
        pair.reference_optimizer.load_state_dict(pair.reference_optimizer.state_dict())
        trains(pair, rank)
        with pair.model.syncopate.whole_state(pair.optimizer):
            twin: Any = copy.deepcopy(pair.optimizer)
        assert not twin._optimizer_step_pre_hooks
        assert not twin._optimizer_step_post_hooks
        pair.close()
        held: Any = pair.optimizer
        assert [*held._optimizer_step_pre_hooks.values()] == [_centralising, _clipping]
        assert [*held._optimizer_step_post_hooks.values()] == [_renormalising]


def _global_hooks_on_the_step(rank: int, exchange: str) -> None:
    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.param_groups[0]["count"] = len(optimizer.param_groups[0]["params"])
        return optimizer

    pair = pair_of(rank, exchange, mlp, build)
    hooks = [
        register_optimizer_step_pre_hook(_clipping),
        register_optimizer_step_post_hook(_renormalising),
    ]
    trains(pair, rank)
    for hook in hooks:
        hook.remove()
    pair.close()


def whole(pair: Pair) -> Any:
    """Return the state of the engine's optimizer as one process has it."""
    return pair.model.syncopate.state_dict(pair.optimizer, everywhere=True)["optimizer"]


CASES = {
    case.__name__.strip("_"): case
    for case in (
        _gradient_hooks_that_come_late,
        _types_there_and_back,
        _a_helper_of_a_known_optimizer,
        _hooks_on_the_step,
        _global_hooks_on_the_step,
    )
}


def _every_exchange(rank: int, world_size: int, case: str) -> None:
    for exchange in EXCHANGES:
        with noted(f"under {exchange}"):
            CASES[case](rank, exchange)


@pytest.mark.parametrize("case", CASES)
def test_a_program_trains_as_under_ddp(case: str) -> None:
    run_ranks(_every_exchange, 2, case, timeout_s=120)
