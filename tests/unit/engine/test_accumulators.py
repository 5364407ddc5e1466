"""Accumulators: hooks behind every other, on the node that adds to a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from syncopate.engine.accumulators import Accumulators


def _counting(parameters: list[nn.Parameter]) -> tuple[Accumulators, list[int]]:
    calls: list[int] = []

    def hook(place: int) -> Any:
        return lambda *_: calls.append(place)

    return Accumulators(parameters, [hook(i) for i in range(len(parameters))]), calls


def test_they_run_behind_hooks_that_come_later() -> None:
    parameter = nn.Parameter(torch.ones(2))
    seen: list[Any] = []

    def last(*_: object) -> None:
        assert parameter.grad is not None
        seen.append(parameter.grad.tolist())

    def double(p: torch.Tensor) -> None:
        assert p.grad is not None
        p.grad = p.grad * 2

    held = Accumulators([parameter], [last])
    parameter.register_post_accumulate_grad_hook(double)  # type: ignore[no-untyped-call]
    parameter.sum().backward()
    assert seen == [[2.0, 2.0]]
    held.remove()
    parameter.sum().backward()
    assert len(seen) == 1


def test_a_parameter_of_another_type_and_back_is_hooked_anew() -> None:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    held, calls = _counting(parameters)
    for _ in range(2):  # the second time the memory may be where it was at first
        changed = parameters[0]
        changed.data = changed.data.double()
        changed.data = changed.data.float()
        held.renew()
        sum(each.sum() for each in parameters).backward()  # type: ignore[union-attr]
        assert sorted(calls) == [0, 1]
        calls.clear()


def test_a_frozen_parameter_is_looked_at_again() -> None:
    (parameter,) = parameters = [nn.Parameter(torch.ones(3))]
    held, calls = _counting(parameters)
    parameter.data = parameter.data.double()
    parameter.data = parameter.data.float()
    parameter.requires_grad_(False)
    held.renew()
    parameter.requires_grad_(True)
    held.renew()
    parameter.sum().backward()
    assert calls == [0]
