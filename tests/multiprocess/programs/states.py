"""Programs that look at optimizer state, change it, and hook the step."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from functools import partial
from typing import Any

import torch

from tests.multiprocess.programs.base import (
    Program,
    Run,
    adamw,
    begun,
    net,
    sgd,
    stepped,
    train,
    trained,
)


def state_is_reset(run: Run) -> None:
    for _, model, optimizer, step in trained(run):
        if step == 2:
            for parameter in model.parameters():
                optimizer.state[parameter]["exp_avg"].zero_()
        if step == 4:
            for parameter in model[0].parameters():
                run.see("popped", optimizer.state.pop(parameter))


def state_is_reset_behind_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            for values in optimizer.state.values():
                values["exp_avg"].mul_(0.5)
                values["step"].zero_()
        if step == 4:
            del optimizer.state[model[0].weight]
    run.end(model, optimizer)


def state_is_looked_at(run: Run) -> None:
    for _, model, optimizer, step in trained(run):
        run.see("length", len(optimizer.state))
        run.see("known", [p in optimizer.state for p in model.parameters()])
        run.see("true", bool(optimizer.state))
        run.see("copied", dict(optimizer.state))
        run.see("unpacked", {**optimizer.state})
        run.see("listed", list(optimizer.state.items()))
        if step:
            run.see("count", optimizer.state[model[0].weight]["step"])
            run.see("got", optimizer.state.get(model[2].weight)["exp_avg"])
            run.see("average", sum(v["exp_avg"].sum() for v in optimizer.state.values()))


def state_is_replaced(run: Run) -> None:
    for _, _, optimizer, step in trained(run):
        if step == 3:
            optimizer.state = copy.copy(optimizer.state)
        if step == 4:
            optimizer.state.clear()


def state_is_replaced_behind_the_step(run: Run) -> None:
    """Nothing is looked at: what the step made goes, and the step had it."""
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            optimizer.state = defaultdict(dict)
        if step == 4:
            optimizer.state.clear()
    run.end(model, optimizer)


def momentum_begins_midway(run: Run) -> None:
    """The step that first needs state makes it, in its order."""
    for _, _, optimizer, step in trained(run, optimize=partial(sgd, momentum=0.0)):
        if step == 3:
            optimizer.param_groups[0]["momentum"] = 0.9


def state_of_another_is_taken(run: Run) -> None:
    """Behind a step an entry is replaced, as migrations between optimizers do."""
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            for parameter in model.parameters():
                fresh = {key: value.clone() for key, value in optimizer.state[parameter].items()}
                optimizer.state[parameter] = fresh
    run.end(model, optimizer)


def hooks_of_the_step(run: Run) -> None:
    model = net()
    optimizer = adamw(model)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        run.see("before", [p.grad for p in model.parameters()])
        for parameter in model.parameters():
            parameter.grad.sub_(parameter.grad.mean())

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        run.see("after", list(model.parameters()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.3, 0.3)

    optimizer.register_step_pre_hook(before)
    wrapped = run.wrap(model, optimizer)
    optimizer.register_step_post_hook(after)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def weights_are_normed_in_a_hook_before_distribute(run: Run) -> None:
    model = net()
    optimizer = adamw(model)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            model[0].weight.div_(model[0].weight.norm())

    optimizer.register_step_post_hook(after)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def rates_by_gradient_norm_in_a_hook(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        norm = max(parameter.grad.abs().max() for parameter in model.parameters())
        optimizer.param_groups[0]["lr"] = 0.1 / (1.0 + norm.item())

    optimizer.register_step_pre_hook(before)
    for _ in stepped(run, wrapped, optimizer):
        run.see("rate", optimizer.param_groups[0]["lr"])
    run.end(model, optimizer)


def step_is_wrapped(run: Run) -> None:
    """A library puts another function in the place of the bound ``step``."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    original = optimizer.step

    def stepping(*args: Any, **kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad * 0.5
        return original(*args, **kwargs)

    optimizer.step = stepping  # type: ignore[method-assign]
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def counts_of_global_steps(run: Run) -> None:
    for _, _, optimizer, step in trained(run):
        counts = {float(values["step"]) for values in optimizer.state.values()}
        run.see("counts", sorted(counts))
        run.see("equal", counts == ({float(step)} if step else set()))
        run.see("finite", math.isfinite(sum(counts)))


PROGRAMS: list[Program] = [
    state_is_reset,
    state_is_reset_behind_the_step,
    state_is_looked_at,
    state_is_replaced,
    state_is_replaced_behind_the_step,
    momentum_begins_midway,
    state_of_another_is_taken,
    hooks_of_the_step,
    weights_are_normed_in_a_hook_before_distribute,
    rates_by_gradient_norm_in_a_hook,
    step_is_wrapped,
    counts_of_global_steps,
]
