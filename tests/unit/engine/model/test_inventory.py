"""Inventory: every way in which a parameter becomes another is seen, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from syncopate.engine.buckets import Trainable
from syncopate.engine.model.inventory import Inventory
from syncopate.errors import EngineError


def _model() -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Linear(2, 2))
    model[3].requires_grad_(False)
    return model


def _inventory(model: nn.Module, ignored: tuple[str, ...] = ()) -> Inventory:
    named = [(name, p) for name, p in model.named_parameters() if name not in ignored]
    trained = [(name, p) for name, p in named if p.requires_grad]
    trainables = [Trainable(index, name, p) for index, (name, p) in enumerate(trained)]
    return Inventory(model, trainables, ignored)


def _put(key: str, module: nn.Module) -> Callable[[Any], Any]:
    return lambda model: setattr(model, key, module)


def _scalar(model: Any) -> None:
    """One element, equal to the one before: another object all the same."""
    model[2].bias = nn.Parameter(model[2].bias.detach().clone())


CHANGES: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (_put("0", nn.Linear(4, 3)), "'0.weight' was replaced"),
    (_put("2", nn.Linear(3, 2).requires_grad_(False)), "'2.weight' was distributed and is not in"),
    (_put("3", nn.Linear(2, 2)), "'3.weight' was added"),
    (_put("1", nn.PReLU()), "'1.weight' was added"),
    (_put("4", nn.Linear(2, 2)), "'4.weight' was added"),
    (_scalar, "'2.bias' was replaced"),
    (lambda m: m[1].register_parameter("slope", nn.Parameter(torch.ones(1))), "'1.slope' was add"),
    (lambda m: m.__delitem__(2), "'2.weight' was distributed and is not in the model any more"),
    (lambda m: m[3].bias.requires_grad_(True), "'3.bias' was frozen when distribute was called"),
    (lambda m: m.double(), "'0.weight' was 12 elements of torch.float32 on cpu .* torch.float64"),
    (lambda m: m[2].half(), "'2.weight' was 6 elements of torch.float32 .* 6 .* torch.float16"),
    (lambda m: setattr(m[2].bias, "data", torch.ones(5)), "'2.bias' was 2 .* and is 5 elements"),
)


@pytest.mark.parametrize(("change", "complaint"), CHANGES)
def test_a_change_is_refused_at_every_look(change: Callable[[Any], Any], complaint: str) -> None:
    model = _model()
    inventory = _inventory(model)
    inventory.require_unchanged()
    change(model)
    for _ in range(2):
        with pytest.raises(EngineError, match=rf"{complaint}.*detach\(\) and distribute again"):
            inventory.require_unchanged()


def test_what_was_changed_back_is_as_before() -> None:
    model = _model()
    inventory = _inventory(model)
    before = model[0]
    model[0] = nn.Linear(4, 3)
    with pytest.raises(EngineError):
        inventory.require_unchanged()
    model[0] = before
    inventory.require_unchanged()


HARMLESS: tuple[Callable[[Any], Any], ...] = (
    lambda m: m.append(nn.ReLU()),
    lambda m: _put("0", nn.Sequential(m[0]))(m),
    lambda m: m[0].requires_grad_(False),
    lambda m: m.load_state_dict({name: t.clone() for name, t in m.state_dict().items()}),
    lambda m: setattr(m[0].bias, "data", torch.zeros(3)),
    lambda m: m[3].double(),
    _put("3", nn.Linear(2, 2).requires_grad_(False)),
    lambda m: nn.utils.parametrize.register_parametrization(m[0], "weight", nn.Identity()),
    lambda m: m.register_parameter("nothing", None),
    lambda m: m.register_buffer("table", torch.ones(2)),
)


@pytest.mark.parametrize("change", HARMLESS)
def test_what_leaves_the_trained_parameters_alone_is_none(change: Callable[[Any], Any]) -> None:
    model = _model()
    inventory = _inventory(model)
    change(model)
    inventory.require_unchanged()
    inventory.require_unchanged()
    # What is new is watched like what was there.
    model.append(nn.Linear(2, 2))
    with pytest.raises(EngineError, match="was added"):
        inventory.require_unchanged()


def test_the_names_are_todays() -> None:
    model = _model()
    inventory = _inventory(model)
    model[0] = nn.Sequential(model[0])
    inventory.require_unchanged()
    assert inventory.exchanged[id(model[0][0].weight)] == "0.0.weight"
    model[0][0] = nn.Linear(4, 3)
    with pytest.raises(EngineError, match=r"'0.0.weight' was replaced"):
        inventory.require_unchanged()


def test_what_came_frozen_stays_frozen() -> None:
    model = _model()
    inventory = _inventory(model)
    model.append(nn.Linear(2, 2).requires_grad_(False))
    inventory.require_unchanged()
    model[4].bias.requires_grad_(True)
    with pytest.raises(EngineError, match=r"'4.bias' was frozen"):
        inventory.require_unchanged()


def test_tensors_that_stand_in_are_nobodys_parameters() -> None:
    model = _model()
    inventory = _inventory(model)
    weight = model[0].weight
    seen = []
    model.register_forward_pre_hook(lambda *_: seen.append(inventory.require_unchanged()))
    twice = {name: 2 * parameter for name, parameter in model.named_parameters()}
    torch.func.functional_call(model, twice, (torch.ones(1, 4),))
    assert seen == [None]
    inventory.require_unchanged()
    assert weight is model[0].weight
    own = {"0.weight": nn.Parameter(torch.ones(3, 4))}
    with pytest.raises(EngineError, match=r"'0.weight' was replaced"):
        torch.func.functional_call(model, own, (torch.ones(1, 4),))


def test_ignored_parameters_may_become_anything() -> None:
    model = _model()
    inventory = _inventory(model, ("2.weight", "2.bias", "3.bias"))
    assert sorted(inventory.exchanged.values()) == ["0.bias", "0.weight"]
    assert id(model[2].weight) in inventory.parameters
    model[2].double()
    model[3].bias.requires_grad_(True)
    inventory.require_unchanged()
    model[2] = nn.Linear(3, 2)
    inventory.require_unchanged()
    assert id(model[2].weight) in inventory.parameters
    model[3].weight.requires_grad_(True)
    with pytest.raises(EngineError, match=r"'3.weight' was frozen"):
        inventory.require_unchanged()


def test_torch_swaps_nothing_that_is_held() -> None:
    model = _model()
    inventory = _inventory(model)
    other = nn.Parameter(torch.ones(3, 4))
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(model[0].weight, other)
    inventory.forget()
    torch.utils.swap_tensors(model[0].weight, other)
