"""Innermost: the engine's hooks on a step are next to the update, and leave with it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from syncopate.engine import optimizer_hooks


def test_the_order_of_hooks_on_a_step() -> None:
    optimizer: Any = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    said: list[str] = []

    def note(what: str, *_: object) -> None:
        said.append(what)

    def on(what: str) -> Any:
        return partial(note, what)

    early = optimizer.register_step_post_hook(on("user's after, early"))
    optimizer.register_step_pre_hook(on("user's before, early"))
    ours = [
        optimizer_hooks.register(optimizer, on(f"before {name}"), on(f"after {name}"))
        for name in "ab"
    ]
    optimizer.register_step_pre_hook(on("user's before, late"))
    optimizer.register_step_post_hook(on("user's after, late"))
    optimizer.step()
    assert said == [
        "user's before, early",
        "user's before, late",
        "before a",
        "before b",
        "after a",
        "after b",
        "user's after, early",
        "user's after, late",
    ]
    twin = copy.deepcopy(optimizer)
    assert not twin._optimizer_step_pre_hooks
    early.remove()
    ours[0].remove()
    said.clear()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert said == [
        "user's before, early",
        "user's before, late",
        "before b",
        "after b",
        "user's after, late",
    ]
