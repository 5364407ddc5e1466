"""Groups: pieces stand in for parameters during a step, for all who exchange."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from syncopate.engine.exchange import groups


def _optimizer() -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    parameters = [nn.Parameter(torch.full((1,), float(number))) for number in range(4)]
    made = torch.optim.SGD([{"params": parameters[:3]}, {"params": parameters[3:]}], lr=0.1)
    return made, parameters


def _numbers(optimizer: torch.optim.Optimizer) -> list[list[float]]:
    return [[p.item() for p in group["params"]] for group in optimizer.param_groups]


def _party(mine: dict[float, list[float]]):  # type: ignore[no-untyped-def]
    def standing_for(parameter: Tensor) -> list[Tensor]:
        pieces = mine.get(parameter.item())
        return [parameter] if pieces is None else [torch.tensor(piece) for piece in pieces]

    return standing_for


def test_two_parties_exchange_and_the_first_puts_back_for_all() -> None:
    optimizer, parameters = _optimizer()
    first, second = _party({0.0: [10.0], 3.0: []}), _party({1.0: [11.0], 2.0: [12.0]})
    groups.exchange(optimizer, first, first)
    assert _numbers(optimizer) == [[10.0, 1.0, 2.0], []]
    groups.exchange(optimizer, second, second)
    assert _numbers(optimizer) == [[10.0, 11.0, 12.0], []]
    assert groups.parameters_of(optimizer) == [parameters[:3], parameters[3:]]
    groups.put_back(optimizer)
    groups.put_back(optimizer)
    assert [group["params"] for group in optimizer.param_groups] == [parameters[:3], parameters[3:]]
    assert groups.parameters_of(optimizer) == [parameters[:3], parameters[3:]]


def test_a_party_that_comes_again_begins_a_new_step() -> None:
    optimizer, _ = _optimizer()
    first, second = _party({0.0: [10.0]}), _party({1.0: [11.0]})
    for _ in range(2):  # the first of these steps raised
        groups.exchange(optimizer, first, first)
        assert _numbers(optimizer) == [[10.0, 1.0, 2.0], [3.0]]
        groups.exchange(optimizer, second, second)
        assert _numbers(optimizer) == [[10.0, 11.0, 2.0], [3.0]]
    groups.put_back(optimizer)
    assert _numbers(optimizer) == [[0.0, 1.0, 2.0], [3.0]]


def test_a_step_that_raised_keeps_no_optimizer_that_is_dropped() -> None:
    optimizer, _ = _optimizer()
    party: Any = _party({0.0: [10.0]})
    party.optimizer = optimizer  # an exchange knows those of its model
    groups.exchange(optimizer, party, party)
    gone = weakref.ref(optimizer)
    del optimizer, party
    gc.collect()
    assert gone() is None


def test_optimizers_are_apart() -> None:
    (one, _), (other, _) = _optimizer(), _optimizer()
    party = _party({0.0: []})
    groups.exchange(one, party, party)
    groups.put_back(other)
    assert _numbers(one) == [[1.0, 2.0], [3.0]]
    assert _numbers(other) == [[0.0, 1.0, 2.0], [3.0]]
    groups.put_back(one)
