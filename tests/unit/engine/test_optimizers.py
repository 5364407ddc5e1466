"""Optimizers: known ones, declared ones and their heirs; who trains which parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange import optimizers
from syncopate.engine.exchange.optimizers import (
    Trained,
    declare_optimizer,
    kind_of,
    trained_by,
)
from syncopate.errors import EngineError, InvalidValueError

PAGE = Path(__file__).parents[3] / "docs" / "sharded.md"


class Renamed(AdamW):
    """Steps as AdamW does."""


class Other(AdamW):
    """Steps in its own way."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Helped(AdamW):
    """Steps as AdamW does, with a helper of its own."""

    def _init_group(self, *args: Any) -> Any:
        return super()._init_group(*args)  # type: ignore[no-untyped-call]


class Mixed(Helped):
    """Inherits the helper."""


class Configured(AdamW):
    """Another way to be made."""

    note: str

    def __init__(self, parameters: Any, note: str = "") -> None:
        super().__init__(parameters, lr=0.5)
        self.note = note


def parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2, 2)) for _ in range(count)]


def test_a_class_with_a_known_step_is_known() -> None:
    assert kind_of(Renamed(parameters(1))) == "element"
    assert kind_of(Configured(parameters(1))) == "element"
    assert kind_of(Muon(parameters(1))) == "tensor"


@pytest.mark.parametrize("heir", [Helped, Mixed])
def test_a_helper_of_its_own_makes_an_optimizer_unknown(heir: type[Optimizer]) -> None:
    with pytest.raises(EngineError, match=rf"declare_optimizer\({heir.__name__}, 'element'\)"):
        kind_of(heir(parameters(1)))  # type: ignore[call-arg]


def test_a_step_of_its_own_is_refused_until_it_is_declared(monkeypatch: Any) -> None:
    monkeypatch.setattr(optimizers, "_KNOWN", dict(optimizers._KNOWN))
    optimizer = Other(parameters(1))
    with pytest.raises(EngineError, match=r"declare_optimizer\(Other, 'tensor'\)"):
        kind_of(optimizer)
    declare_optimizer(Other, "tensor")
    assert kind_of(optimizer) == "tensor"
    declare_optimizer(Other, "element")
    assert kind_of(optimizer) == "element"


@pytest.mark.parametrize(
    ("given", "shards", "said"),
    [(nn.Linear, "tensor", "Optimizer"), (Other, "row", "'element' or 'tensor'")],
)
def test_only_optimizers_are_declared_and_only_as_what_there_is(
    given: Any, shards: str, said: str
) -> None:
    with pytest.raises(InvalidValueError, match=said):
        declare_optimizer(given, shards)


def test_a_parameter_is_its_first_optimizers_and_whole_if_any_wants_it_whole() -> None:
    both, first, second, nobodys = parameters(4)
    trainables = [
        Trainable(index, str(index), parameter)
        for index, parameter in enumerate([nobodys, second, both, first])
    ]
    given: list[Optimizer] = [SGD([first, both], lr=0.1), Muon([both, second])]
    assert trained_by(trainables, given) == (
        Trained(0, "element"),
        Trained(1, "tensor"),
        Trained(0, "tensor"),
        Trained(0, "element"),
    )


def test_the_page_lists_the_known_optimizers() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| by ")]
    listed = {row[1].split()[-1]: row[3].replace(" ", "").strip().split(",") for row in rows}
    for kind, names in listed.items():
        known = [
            each.__name__
            for each, what in optimizers._KNOWN.items()
            if what == kind and each.__module__.startswith("torch.")  # others' tests declare theirs
        ]
        assert [name for name in names if hasattr(torch.optim, name)] == known
