"""Outputs are found wherever a model hides them; what ranks compare; the safe plan."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from syncopate.engine.checks.soundness import tensor_facts
from syncopate.engine.distribute import Distributed
from syncopate.engine.model import module
from syncopate.engine.model.module import output_tensors
from syncopate.engine.selfplan.ddp_buckets import first_plan, safe_plan
from syncopate.units import MIB

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class _Output:
    logits: Any
    extra: Any = None


def test_output_tensors() -> None:
    a, b, c = (torch.ones(1) for _ in range(3))
    assert output_tensors(a) == [a]
    for output in (
        [a, (b, {"c": c})],
        Pair(a, _Output(b, extra=Pair(c, "text"))),
        SimpleNamespace(items=[a, {b}], deep=SimpleNamespace(c=c)),
    ):
        assert {id(t) for t in output_tensors(output)} == {id(a), id(b), id(c)}
    normal = torch.distributions.Normal(a, b)
    assert {id(normal.loc), id(normal.scale)} <= {id(t) for t in output_tensors(normal)}
    loop: list[Any] = [a, a]
    loop.append(loop)
    assert len(output_tensors(loop)) == 1
    assert output_tensors([None, 3, "text", nn.Linear(1, 1), int]) == []


def test_what_can_hold_no_tensor_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    visited = []
    looked_into = module._parts

    def count(value: Any) -> Any:
        visited.append(value)
        return looked_into(value)

    monkeypatch.setattr(module, "_parts", count)
    tensor = torch.ones(1)
    numbers = list(range(100_000))
    words = {"tokens": ["a"] * 1000, "mask": [True, None, 0.5] * 1000, "shape": tensor.shape}
    assert output_tensors([numbers, words, tensor]) == [tensor]
    assert len(visited) == 5  # the output, numbers, words and its two lists
    visited.clear()
    rows: list[Any] = [[i] for i in range(100_000)]
    assert output_tensors((rows, tensor)) == [tensor]
    assert len(visited) <= 10_000


def test_isinstance_tells_a_distributed_model() -> None:
    model = nn.Linear(1, 1)
    assert not isinstance(model, Distributed)
    module.attach(model, SimpleNamespace())  # type: ignore[arg-type]
    assert isinstance(model, Distributed)
    module.detach(model)
    assert not isinstance(model, Distributed)


def test_tensor_facts_tell_layout_and_frozenness() -> None:
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    assert tensor_facts("parameter", model.named_parameters()) == [
        ("parameter 'weight'", "shape (3, 2), strides (2, 1), torch.float32"),
        ("parameter 'bias'", "shape (3,), strides (1,), torch.float32, frozen"),
    ]


def test_the_safe_plan_is_ddps() -> None:
    quarter = MIB // 4
    tensors = [(f"p{i}", quarter, "float32") for i in range(60)]  # 1 MiB each
    plan = safe_plan("m", tensors, 4)
    assert (plan.model, plan.world_size, plan.policy) == ("m", 4, "threshold")
    assert [len(bucket.tensors) for bucket in plan.buckets] == [1, 25, 25, 9]
    assert {bucket.push.algorithm for bucket in plan.buckets} == {"native"}
    assert plan.buckets[0].tensors == ("p0",)
    assert first_plan("m", tensors, 4).buckets[0].tensors == ("p59",)
    plan.require_fit(tensors, 4)
