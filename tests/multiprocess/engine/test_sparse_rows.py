"""Embeddings with sparse gradients where a step fails, ranks run out, or a backward enters late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncopate.artifacts.plan import DECOUPLED, SHARDED
from syncopate.engine.distribute import distribute
from syncopate.errors import EngineError
from tests.multiprocess.engine.cases import TIMEOUT_S, plan_of
from tests.multiprocess.harness import Cases, run_ranks


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.words(x))
        return found


def _built(exchange: str, ranks: int) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: Any = _Model()
    plan = plan_of(model, ranks, exchange=exchange)
    return distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), plan=plan, timeout_s=TIMEOUT_S
    )


def _step(model: Any, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    model(torch.arange(3) + 2 * rank + step).square().mean().backward()
    optimizer.step()


def _require_alike(model: Any) -> None:
    for name, weight in model.named_parameters():
        everyone = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, weight.detach())
        assert all(torch.equal(each, everyone[0]) for each in everyone), name


def _fails(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> None:
    def fail(_: Tensor) -> None:
        raise ValueError("a bad gradient")

    hooked = model.words if rank else nn.Linear(1, 1)
    hook = hooked.weight.register_hook(fail)
    refused = ValueError if rank else EngineError
    with pytest.raises(refused, match="a bad gradient" if rank else "rank 1"):
        _step(model, optimizer, rank, 0)
    hook.remove()


def _is_dense(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> None:
    optimizer.zero_grad()
    loss = model(torch.arange(3)).sum() + (model.words.weight.sum() if rank else 0.0)
    with pytest.raises(EngineError, match=r"gradient of 'words.weight' is not sparse, though"):
        loss.backward()


def _runs_out(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> None:
    with model.join():
        for step in range(3 + 2 * rank):
            _step(model, optimizer, rank, step)
    _require_alike(model)


def _enters_at_rows(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """The head is not called, and the loss reaches rows alone."""
    optimizer.zero_grad()
    model.words(torch.tensor([rank, 5])).sum().backward()
    rows = model.words.weight.grad.coalesce()
    assert rows.indices().tolist() == [[0, 1, 5]]
    assert rows.values()[:, 0].tolist() == [0.5, 0.5, 1.0]
    assert model.head.weight.grad is None
    optimizer.step()
    _require_alike(model)


def _every_way(rank: int, ranks: int, exchange: str) -> None:
    with Cases() as case:
        for meets in (_enters_at_rows, _is_dense, _runs_out, _fails):
            with case(meets.__name__.strip("_")):
                model, optimizer = _built(exchange, ranks)
                _step(model, optimizer, rank, 0)
                meets(model, optimizer, rank)
                for step in range(2):
                    _step(model, optimizer, rank, step)
                _require_alike(model)
                with pytest.raises(EngineError, match="must be dense with the sharded exchange"):
                    model.syncopate.install(plan_of(model, ranks, exchange=SHARDED))
                model.syncopate.detach()


@pytest.mark.parametrize("exchange", ["allreduce", DECOUPLED])
def test_a_step_with_rows(exchange: str) -> None:
    run_ranks(_every_way, 2, exchange)
