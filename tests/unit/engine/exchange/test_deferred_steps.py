"""Deferred steps: what a step would have done, done later; and a state whose readers wait."""

from __future__ import annotations

import copy
import io
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer

from syncopate.engine.exchange.proxies.state import (
    SeenState,
    is_held,
    join,
    own,
    part,
    raw_state,
    unwatch,
    watch,
)
from syncopate.engine.exchange.update.deferral import DeferredStep
from syncopate.errors import EngineError


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def _gradients(model: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator) for p in model.parameters()]


def _deferred(model: nn.Module, optimizer: Optimizer, gradients: list[Tensor]) -> DeferredStep:
    """A step of all parameters, whose gradients are beside them."""
    known = {id(p): (n, nn.Parameter(p.detach())) for n, p in enumerate(model.parameters())}
    return DeferredStep(
        optimizer,
        dict(vars(optimizer)),
        lambda parameter: known.get(id(parameter)),
        dict(enumerate(gradients)),
    )


MADE: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "sgd without momentum": lambda p: SGD(p, lr=0.1),
    "adam, foreach": lambda p: Adam(p, lr=0.1, foreach=True),
    "adamw, tensor rate": lambda p: AdamW(p, lr=torch.tensor(0.1)),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
    "muon": lambda p: Muon([each for each in p if each.dim() == 2], lr=0.1),
}


@pytest.mark.parametrize("name", MADE)
def test_a_deferred_step_does_what_the_step_would_have_done(name: str) -> None:
    plain, twin = _model(), _model()
    one, other = MADE[name](list(plain.parameters())), MADE[name](list(twin.parameters()))
    for step in range(3):
        for parameter, gradient in zip(plain.parameters(), _gradients(plain, step), strict=True):
            parameter.grad = gradient
        one.step()
        _deferred(twin, other, _gradients(twin, step))()
    for parameter, same in zip(plain.parameters(), twin.parameters(), strict=True):
        assert torch.equal(parameter, same)
        assert same.grad is None
    saved, again = one.state_dict(), other.state_dict()
    assert list(saved["state"]) == list(again["state"])
    for entry, same_entry in zip(saved["state"].values(), again["state"].values(), strict=True):
        for key in entry:
            torch.testing.assert_close(same_entry[key], entry[key], rtol=0, atol=0)


def test_a_deferred_step_has_the_values_of_its_time() -> None:
    model = _model()
    before = [p.detach().clone() for p in model.parameters()]
    rate = torch.tensor(0.5)
    optimizer = SGD(model.parameters(), lr=rate)
    gradients = _gradients(model, 0)
    step = _deferred(model, optimizer, gradients)
    rate.fill_(100.0)
    optimizer.param_groups[0]["maximize"] = True
    step()
    for parameter, was, gradient in zip(model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), was - 0.5 * gradient)


def test_a_deferred_step_updates_no_other_parameters() -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    bias = model.bias.detach().clone()
    stand_in = nn.Parameter(model.weight.detach())
    step = DeferredStep(
        optimizer,
        dict(vars(optimizer)),
        lambda parameter: (0, stand_in) if parameter is model.weight else None,
        {0: torch.ones(2, 3)},
    )
    step()
    assert torch.equal(model.bias, bias)
    assert not raw_state(optimizer).get(model.bias)


def test_a_deferred_step_that_raises_leaves_no_gradient_behind() -> None:
    model = _model()
    optimizer = Adam(model.parameters(), lr=0.1)
    step = _deferred(model, optimizer, [torch.ones(2, 3), torch.ones(2)])
    step._copy.param_groups[0]["capturable"] = True
    with pytest.raises(AssertionError, match="capturable"):
        step()
    assert [stand_in.grad for _, stand_in, _ in step._pairs] == [None, None]


# -- watched state ------------------------------------------------------------------------------


LOOKS: dict[str, Callable[[Any, Any], object]] = {
    "[]": lambda state, key: state[key],
    "a new entry": lambda state, key: state["new"],
    "in": lambda state, key: key in state,
    "len": lambda state, key: len(state),
    "bool": lambda state, key: bool(state),
    "iter": lambda state, key: list(state),
    "reversed": lambda state, key: list(reversed(state)),
    "keys": lambda state, key: list(state.keys()),
    "values": lambda state, key: list(state.values()),
    "items": lambda state, key: list(state.items()),
    "get": lambda state, key: state.get(key),
    "pop": lambda state, key: state.pop(key),
    "popitem": lambda state, key: state.popitem(),
    "setdefault": lambda state, key: state.setdefault("new", {}),
    "set": lambda state, key: state.__setitem__("new", {}),
    "del": lambda state, key: state.__delitem__(key),
    "update": lambda state, key: state.update({"new": {}}),
    "clear": lambda state, key: state.clear(),
    "==": lambda state, key: state == {},
    "!=": lambda state, key: state != {},
    "|": lambda state, key: state | {"new": {}},
    "| from the left": lambda state, key: {"new": {}} | state,
    "unpacked": lambda state, key: {**state},
    "dict": lambda state, key: dict(state),
    "copy": lambda state, key: state.copy(),
    "copy.copy": lambda state, key: copy.copy(state),
    "copy.deepcopy": lambda state, key: copy.deepcopy(state),
    "pickle": lambda state, key: pickle.loads(pickle.dumps(state)),
    "repr": lambda state, key: repr(state),
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_look_at_a_state_waits_and_finds_what_is_there(look: str) -> None:
    def state() -> Any:
        return defaultdict(dict, {"key": {"step": 1}})

    waits: list[int] = []
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.state = state()
    watch(optimizer, lambda: waits.append(1))
    plain = state()
    expected, found = LOOKS[look](plain, "key"), LOOKS[look](optimizer.state, "key")
    assert found == expected
    assert waits
    assert raw_state(optimizer) == plain
    if isinstance(expected, dict):
        assert type(found) is type(expected)


def test_a_state_is_plain_again_when_it_is_watched_no_more() -> None:
    model = _model()
    optimizer = Adam(model.parameters())
    before = optimizer.state
    first, second = list[int](), list[int]()
    watch(optimizer, first.clear)
    assert isinstance(optimizer.state, SeenState)
    watch(optimizer, first.clear)
    watch(optimizer, second.clear)
    unwatch(optimizer, first.clear)
    assert isinstance(optimizer.state, SeenState)
    unwatch(optimizer, second.clear)
    assert optimizer.state is before


class _Spread:
    """Keeps the state of one parameter as that of a piece."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter, self.piece = parameter, nn.Parameter(torch.zeros(1))
        self.mark = torch.zeros(0)

    def name_of(self, parameter: object) -> str:
        return "weight" if parameter is self.parameter else ""

    def pieces_of(self, parameter: Tensor) -> list[Tensor]:
        return [self.piece]


def test_a_state_may_be_watched_and_in_pieces() -> None:
    """One optimizer trains two models, on two exchanges."""
    model, waits = _model(), list[int]()
    optimizer = Adam(model.parameters())
    owner = _Spread(model.weight)
    optimizer.state = defaultdict(dict, {owner.mark: {}, owner.piece: {"step": 1}})
    before = optimizer.state
    part(optimizer, owner)
    watch(optimizer, waits_once := lambda: waits.append(1))
    optimizer.state[model.bias] = {"step": 2}
    for look in (
        lambda: optimizer.state[model.weight],
        lambda: model.weight in optimizer.state,
        lambda: optimizer.state.get(model.weight),
        lambda: optimizer.state.setdefault(model.weight, {}),
        lambda: optimizer.state.update({model.weight: {"step": 3}}),
    ):
        waits.clear()
        with pytest.raises(EngineError, match="'weight' in Adam is spread over the ranks"):
            look()
        assert waits
    assert [entry["step"] for entry in optimizer.state.values()] == [1, 2]
    optimizer.state[model.weight] = {}
    assert list(optimizer.state) == [model.bias]
    assert optimizer.state.pop(model.weight) == {}
    optimizer.state.clear()
    assert list(before) == [owner.mark]
    with pytest.raises(KeyError):
        optimizer.state.popitem()
    unwatch(optimizer, waits_once)
    assert isinstance(optimizer.state, SeenState)
    join(optimizer, owner)
    assert optimizer.state is before


def test_an_optimizer_saves_and_loads_through_a_watched_state() -> None:
    model = _model()
    optimizer = Adam(model.parameters())
    watch(optimizer, lambda: None)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = Adam(_model().parameters())
    other.load_state_dict(torch.load(file))
    again = other.state_dict()["state"]
    assert {k: sorted(v) for k, v in again.items()} == {
        k: sorted(v) for k, v in optimizer.state_dict()["state"].items()
    }


def test_what_a_state_was_loaded_from_is_not_its_memory_any_more() -> None:
    model = _model()
    optimizer = Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = optimizer.state_dict()
    assert all(is_held(optimizer.state, p) for p in model.parameters())
    own(optimizer)
    plain = raw_state(optimizer)
    assert not any(is_held(plain, p) for p in model.parameters())
    assert torch.equal(kept["state"][0]["exp_avg"], plain[model.weight]["exp_avg"])


# -- memory that is held ------------------------------------------------------------------------


HOLDS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "the entry": lambda entry: entry,
    "a value": lambda entry: entry["value"],
    "its data": lambda entry: entry["value"].data,
    "a view": lambda entry: entry["value"][1:],
    "an array": lambda entry: entry["value"].numpy(),
    "a copy of the entry": dict,
}


@pytest.mark.parametrize("what", HOLDS)
def test_who_holds_something_of_an_entry_is_counted(what: str) -> None:
    state = {"key": {"value": torch.zeros(3), "count": 1}}
    assert not is_held(state, "key")
    held = HOLDS[what](state["key"])
    assert is_held(state, "key")
    del held
    assert not is_held(state, "key")
    assert not is_held(state, "no such key")
