"""The accelerator: what it distributes, what it leaves alone, and what it refuses."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from syncopate.errors import EngineError

pytest.importorskip("accelerate", reason="accelerate is not installed (.[frameworks])")

from syncopate.integrations import SyncopateAccelerator, accelerate


class Kind(Enum):
    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    FSDP = "FSDP"


def accelerator(kind: Kind) -> Any:
    def prepare_model(model: nn.Module, placed: Any, *, evaluation_mode: bool) -> nn.Module:
        assert (placed, evaluation_mode) == (None, True)
        return model

    return SimpleNamespace(
        use_distributed=kind is not Kind.NO, distributed_type=kind, prepare_model=prepare_model
    )


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What ``distribute`` is called with."""
    calls: list[tuple[Any, ...]] = []

    def distribute(model: object, optimizers: object, **options: object) -> None:
        calls.append((model, optimizers, options))

    monkeypatch.setattr(accelerate, "distribute", distribute)
    return calls


def test_a_model_gets_its_own_optimizers(given: list[tuple[Any, ...]]) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped: Any = SimpleNamespace(optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    prepare, ranks = accelerate.prepare_distributed, accelerator(Kind.MULTI_CPU)
    options = {"exchange": "sharded"}
    assert prepare(ranks, model, [own, wrapped], options) is model
    assert prepare(ranks, other, [own, wrapped], {}) is other
    assert prepare(ranks, nn.Linear(2, 2), [own, wrapped], {}) is not None
    assert [call[1:] for call in given] == [([own], options), ([wrapped.optimizer], {}), (None, {})]


def test_what_is_left_alone(given: list[tuple[Any, ...]]) -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    known: Any = nn.Linear(2, 2)
    known.syncopate = object()
    plain = nn.Linear(2, 2)
    for kind, model in (
        (Kind.MULTI_CPU, frozen),
        (Kind.FSDP, frozen),
        (Kind.MULTI_CPU, known),
        (Kind.NO, plain),
    ):
        assert accelerate.prepare_distributed(accelerator(kind), model, [], {}) is model
    assert given == []


def test_another_parallelism_is_refused(given: list[tuple[Any, ...]]) -> None:
    with pytest.raises(EngineError, match="Accelerate is set up for FSDP, which exchanges"):
        accelerate.prepare_distributed(accelerator(Kind.FSDP), nn.Linear(2, 2), [], {})
    assert given == []


def test_one_process_trains_without_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    model = nn.Linear(2, 2)
    ours = SyncopateAccelerator(cpu=True, distribute_options={"exchange": "sharded"})
    found, optimizer = ours.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert found is model
    assert not hasattr(model, "syncopate")
    before = model.weight.detach().clone()
    ours.backward(found(torch.ones(1, 2)).sum())
    optimizer.step()
    assert not torch.equal(model.weight, before)
