"""Names of parameters: a compiled model has those of the model, for plans and profiles."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import nn

from syncopate.artifacts.plan import ALLREDUCE, Bucket, Plan, plain_name
from syncopate.artifacts.workload import fingerprint
from syncopate.engine.buckets import Trainable
from syncopate.engine.checks import soundness
from syncopate.engine.checks.fit import tensors_of
from syncopate.engine.model.inventory import Inventory
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.profiling.forward_order import ForwardOrder
from syncopate.profiling.state import trainable
from syncopate.recipe import Recipe


def plain() -> Any:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def compiled() -> Any:
    """A layer is compiled, and so is the model around it."""
    model = plain()
    model[1] = torch.compile(model[1], backend="eager")
    return torch.compile(model, backend="eager")


def of(model: nn.Module) -> tuple[Trainable, ...]:
    return soundness.sound_model(model, frozenset(), rows=False)[2]


def plan_of(trainables: tuple[Trainable, ...]) -> Plan:
    tensors = tensors_of(trainables)
    bucket = Bucket(
        tensors=tuple(name for name, *_ in tensors),
        nbytes=sum(4 * numel for _, numel, _ in tensors),
        push=Recipe("all_reduce", "ring"),
    )
    return Plan(
        model="test",
        fingerprint=fingerprint(tensors),
        world_size=2,
        policy="by hand",
        buckets=(bucket,),
        exchange=ALLREDUCE,
    )


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_what_compiling_puts_into_a_name_is_left_out() -> None:
    assert plain_name("_orig_mod.layers.0._orig_mod.weight") == "layers.0.weight"
    assert plain_name("my_orig_mod.weight") == "my_orig_mod.weight"


def test_a_plan_of_the_plain_model_fits_the_compiled_one() -> None:
    named = of(compiled())
    assert named[2].name == "_orig_mod.1._orig_mod.weight"
    plan = plan_of(of(plain()))
    found = soundness.named_for(plan, named)
    assert [each.name for each in found] == NAMES
    assert soundness.named_for(None, named) == found
    plan.require_fit(tensors_of(found), 2)


def test_a_plan_with_the_names_of_the_compiled_one_fits_it_too() -> None:
    named = of(compiled())
    plan = plan_of(named)
    assert soundness.named_for(plan, named) == named
    plan.require_fit(tensors_of(soundness.named_for(plan, named)), 2)


def test_distribute_names_parameters_so() -> None:
    model = compiled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked = soundness.Given(None, Wishes())
    names: list[list[str]] = []

    def look() -> Any:
        sound = yield from soundness.checks(model, [optimizer], asked, 2)
        names.append([each.name for each in sound.trainables])

    deque(look(), maxlen=0)
    assert names == [NAMES]


def test_a_profile_names_parameters_so() -> None:
    model = compiled()
    assert list(trainable(model)) == NAMES
    assert list(ForwardOrder(model)._names.values()) == NAMES


def test_a_layer_that_is_compiled_later_keeps_its_name() -> None:
    model = plain()
    inventory = Inventory(model, of(model))
    model[0] = torch.compile(model[0], backend="eager")
    inventory.require_unchanged()
    assert list(inventory.exchanged.values()) == NAMES
    model = compiled()
    inventory = Inventory(model, of(model), ())
    assert list(inventory.exchanged.values()) == NAMES
