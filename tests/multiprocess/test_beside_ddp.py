"""Programs that meddle with training, beside DDP: the same weights, or one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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


CASES = {
    case.__name__.strip("_"): case
    for case in (
        _gradient_hooks_that_come_late,
        _types_there_and_back,
    )
}


def _every_exchange(rank: int, world_size: int, case: str) -> None:
    for exchange in EXCHANGES:
        with noted(f"under {exchange}"):
            CASES[case](rank, exchange)


@pytest.mark.parametrize("case", CASES)
def test_a_program_trains_as_under_ddp(case: str) -> None:
    run_ranks(_every_exchange, 2, case, timeout_s=120)
