"""Ownership: which engine exchanges which parameter, and what is said of those left out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.engine.buckets import Trainable
from syncopate.engine.model import ownership
from syncopate.errors import EngineError


class _Engine:
    """What ownership asks of an engine's inventory."""

    def __init__(self, model: nn.Module, *left_out: str) -> None:
        named = dict(model.named_parameters())
        self.model_name = type(model).__name__
        self.parameters = {id(p) for p in named.values()}
        self.owned = {id(p): name for name, p in named.items() if name not in left_out}


@pytest.fixture
def owner() -> Iterator[tuple[nn.Module, Any]]:
    """A model whose first bias is every rank's own, and its engine."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    engine: Any = _Engine(model, "0.bias")
    ownership.claim(engine)
    yield model, engine
    ownership.release(engine)


def _trainables(model: nn.Module) -> list[Trainable]:
    return [Trainable(i, n, p) for i, (n, p) in enumerate(model.named_parameters())]


def _require_free(model: nn.Module) -> None:
    ownership.require_free(model, _trainables(model))


def test_a_second_owner_is_refused(owner: Any) -> None:
    model, engine = owner
    tied = nn.Linear(2, 2)
    tied.weight = model[1].weight
    with pytest.raises(EngineError, match=r"'weight' of this Linear is '1.weight' of a Sequential"):
        _require_free(tied)
    ownership.require_free(tied, [Trainable(0, "bias", tied.bias)])
    _require_free(nn.Linear(2, 2))
    tied.weight = model[0].bias
    _require_free(tied)
    ownership.release(engine)
    _require_free(model)


def test_a_model_that_was_dropped_owns_nothing() -> None:
    engine: Any = _Engine(model := nn.Linear(2, 2))
    engine.itself = engine  # only the garbage collector frees it
    ownership.claim(engine)
    del engine
    _require_free(model)


def test_the_optimizer_may_train_what_some_model_holds(owner: Any) -> None:
    model, _ = owner
    loss = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": loss.parameters()}])
    message = (
        r"parameter 0 of the optimizer's group 1 \(shape \(1, 2\)\) is in no distributed model"
    )
    with pytest.raises(EngineError, match=message):
        ownership.require_averaged(optimizer)
    loss.weight.requires_grad_(False)
    with pytest.raises(
        EngineError, match=r"parameter 1 of the optimizer's group 1 \(shape \(1,\)\)"
    ):
        ownership.require_averaged(optimizer)
    other: Any = _Engine(loss)
    ownership.claim(other)
    ownership.require_averaged(optimizer)
    ownership.release(other)


def test_ddp_around_a_distributed_model(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = owner
    trainables = _trainables(model)

    class Outer:
        module = nn.Sequential(nn.Linear(2, 2), model)
        parameters_to_ignore: tuple[str, ...] = ()

    ownership.require_alone(engine, trainables)
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", Outer)
    with pytest.raises(EngineError, match=r"around a Sequential .* the gradient of '0.weight'"):
        ownership.require_alone(engine, trainables)
    Outer.parameters_to_ignore = ("1.0.weight", "1.1.weight")
    with pytest.raises(EngineError, match=r"the gradient of '1.bias'"):
        ownership.require_alone(engine, trainables)
    Outer.parameters_to_ignore = ("1.0.weight", "1.1.weight", "1.1.bias")
    ownership.require_alone(engine, trainables)
    Outer.module = nn.Sequential(nn.Linear(2, 2))
    ownership.require_alone(engine, trainables)


def test_hooks_of_the_dropped_go_with_the_next_owner() -> None:
    kept, gone, elsewhere = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    for layer in (kept, gone, elsewhere):
        parameter: weakref.ref[torch.Tensor] = weakref.ref(layer.weight)
        layer.weight.requires_grad_(layer is not kept)  # which may be frozen just then
        ownership.orphan({"weight": parameter})
        assert layer.weight.requires_grad == (layer is not kept)
        layer.weight.requires_grad_(True)
        with pytest.raises(EngineError, match="'weight' is trained, but the model"):
            layer(torch.ones(1, 2)).sum().backward()
    ownership.orphan({})  # of one that was detached
    del gone, layer
    gc.collect()
    ownership.adopt(nn.Sequential(kept))
    kept(torch.ones(1, 2)).sum().backward()
    with pytest.raises(EngineError, match="'weight' is trained"):
        elsewhere(torch.ones(1, 2)).sum().backward()
    assert sum(layer() is not None for layer, _ in ownership._orphans) == len(ownership._orphans)
    ownership.adopt(elsewhere)
