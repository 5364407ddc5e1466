"""Programs that hook modules, tensors, graphs and optimizers in every form that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_full_backward_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    adamw,
    begun,
    loss_of,
    net,
    sgd,
    stepped,
    train,
    trained,
)


def hook_of_several_gradients(run: Run) -> None:
    """One call when all gradients of the parameters of a layer were computed, and one at any."""
    wrapped, model, optimizer = begun(run)
    register_multi_grad_hook(
        list(model[2].parameters()), lambda gradients: run.see("all", list(gradients))
    )
    register_multi_grad_hook(
        list(model[0].parameters()),
        lambda gradient: run.see("any", gradient.shape),  # type: ignore[arg-type, attr-defined]
        mode="any",
    )
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def hooks_before_the_backward_of_a_layer(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    model[2].register_full_backward_pre_hook(lambda module, after: (after[0].clamp(-0.01, 0.01),))
    model[0].register_full_backward_hook(lambda *_: None)
    handle = model[4].register_full_backward_pre_hook(lambda module, after: (after[0] * 2,))
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            handle.remove()
    run.end(model, optimizer)


def hooks_of_the_whole_model(run: Run) -> None:
    """Hooks on what is distributed: before and behind forward with keywords, and of backward."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            found: Tensor = self.layers(x) * scale
            return found

    model = Scaled()
    optimizer = adamw(model)
    model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "scale": kwargs.get("scale", 1.0) + 0.5}),
        with_kwargs=True,
    )
    wrapped = run.wrap(model, optimizer)
    model.register_forward_hook(
        lambda module, args, kwargs, output: output * kwargs["scale"], with_kwargs=True
    )
    model.register_full_backward_hook(lambda module, before, after: run.see("after", after[0]))
    model.register_full_backward_pre_hook(lambda module, after: (after[0] * 0.5,))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step).requires_grad_(), scale=2.0)).backward()
        optimizer.step()
    run.end(model, optimizer)


def hooks_of_all_modules(run: Run) -> None:
    model = net()
    optimizer = adamw(model)
    shapes: list[Any] = []
    handles = [
        register_module_forward_hook(
            lambda module, inputs, output: output * 1.1 if isinstance(module, nn.Tanh) else None
        ),
        register_module_full_backward_hook(
            lambda module, before, after: (
                shapes.append(tuple(after[0].shape)) if isinstance(module, nn.Linear) else None
            )
        ),
    ]
    try:
        train(run, run.wrap(model, optimizer), optimizer)
    finally:
        for handle in handles:
            handle.remove()
    run.see("shapes", shapes)
    run.end(model, optimizer)


def hooks_of_all_optimizers(run: Run) -> None:
    """Hooks of every step of every optimizer, which look and change."""

    def before(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)

    def after(optimizer: Any, *_: Any) -> None:
        run.see("weights", optimizer.param_groups[0]["params"])

    handles = [register_optimizer_step_pre_hook(before)]
    try:
        wrapped, model, optimizer = begun(run)
        handles.append(register_optimizer_step_post_hook(after))
        train(run, wrapped, optimizer)
    finally:
        for handle in handles:
            handle.remove()
    run.end(model, optimizer)


def hooks_of_states(run: Run) -> None:
    """Hooks around state_dict and load_state_dict, of the model and of the optimizer."""
    wrapped, model, optimizer = begun(run)
    model.register_state_dict_pre_hook(lambda module, prefix, keep: run.see("saves", prefix))
    model.register_state_dict_post_hook(
        lambda module, state, prefix, local: state.__setitem__("extra", torch.ones(1))
    )
    model.register_load_state_dict_pre_hook(
        lambda module, state, prefix, *rest: state.pop("extra", None)
    )
    model.register_load_state_dict_post_hook(
        lambda module, keys: run.see("loaded", list(keys.missing_keys))
    )
    optimizer.register_state_dict_pre_hook(lambda own: run.see("optimizer saves", len(own.state)))
    optimizer.register_state_dict_post_hook(lambda own, state: {**state, "note": 3})
    optimizer.register_load_state_dict_pre_hook(
        lambda own, state: {key: value for key, value in state.items() if key != "note"}
    )
    optimizer.register_load_state_dict_post_hook(lambda own: run.see("optimizer loaded", True))
    for step in stepped(run, wrapped, optimizer):
        if step in (2, 4):
            model.load_state_dict(model.state_dict())
            optimizer.load_state_dict(optimizer.state_dict())
    run.see("note", optimizer.state_dict()["note"])
    run.end(model, optimizer)


def a_collective_in_a_hook_of_backward(run: Run) -> None:
    """The script's own collective runs in the midst of backward, in the same place on all ranks."""
    wrapped, model, optimizer = begun(run, net(), sgd)

    def meet(module: Any, before: Any, after: Any) -> None:
        mean = after[0].detach().abs().mean()
        dist.all_reduce(mean)
        run.see("mean", mean)

    model[2].register_full_backward_hook(meet)
    model[4].weight.register_hook(lambda gradient: dist.barrier())
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def a_collective_of_a_group_in_a_hook(run: Run) -> None:
    """A group of the script's own, asynchronous: launched in a hook, awaited behind backward."""
    group = dist.new_group(list(range(run.ranks)))
    wrapped, model, optimizer = begun(run)
    works: list[tuple[Any, Tensor]] = []

    def launch(gradient: Tensor) -> None:
        norm = gradient.norm()
        works.append((dist.all_reduce(norm, group=group, async_op=True), norm))

    model[2].weight.register_hook(launch)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        for work, norm in works:
            work.wait()
            run.see("norm", norm)
        works.clear()
        optimizer.step()
    run.end(model, optimizer)


def gradients_of_outputs_are_hooked(run: Run) -> None:
    """Hooks on the outputs of the model and on the loss, which change and keep gradients."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        output = wrapped(run.batch(step))
        output.register_hook(lambda gradient: gradient * 3)
        output.retain_grad()
        loss = loss_of(output)
        loss.register_hook(lambda gradient: gradient * 0.5)
        loss.backward()
        run.see("gradient of the output", output.grad)
        optimizer.step()
    run.end(model, optimizer)


def gradients_inside_are_retained(run: Run) -> None:
    """Activations keep their gradients, as maps of what a model looks at do."""
    wrapped, model, optimizer = begun(run)
    kept: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            kept.append(output)

    model[1].register_forward_hook(keep)
    for _ in stepped(run, wrapped, optimizer):
        run.see("activation", [(each, each.grad) for each in kept])
        kept.clear()
    run.end(model, optimizer)


def hooks_of_accumulators(run: Run) -> None:
    """Hooks on the graph's nodes that add up gradients, as other libraries place theirs."""
    model = net()
    optimizer = adamw(model)
    order: list[int] = []
    nodes = [parameter.view_as(parameter).grad_fn.next_functions[0][0] for parameter in
             model.parameters()]  # fmt: skip
    for place, node in enumerate(nodes):
        node.register_prehook(lambda gradients, place=place: order.append(place))
        node.register_hook(lambda *_, place=place: order.append(100 + place))
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.see("order", order)
    run.end(model, optimizer)


def hooks_come_and_go(run: Run) -> None:
    """Another hook on another gradient in every step, taken off behind it."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    parameters = list(model.parameters())
    for step in range(STEPS):
        chosen = parameters[step % len(parameters)]
        handles = [
            chosen.register_hook(lambda gradient: gradient * 0.1),
            chosen.register_post_accumulate_grad_hook(lambda p: run.see("shape", p.grad.shape)),
            model[step % 5].register_forward_hook(lambda module, inputs, output: output + 0.1),
        ]
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        for handle in handles:
            handle.remove()
        optimizer.step()
    run.end(model, optimizer)


def called_back_behind_backward(run: Run) -> None:
    """A callback of autograd's own, from a hook of the first layer, which is done last."""
    wrapped, model, optimizer = begun(run)
    ended: list[int] = []

    def behind(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: ended.append(1))

    model[0].weight.register_hook(behind)
    for _ in stepped(run, wrapped, optimizer):
        run.see("ended", len(ended))
    run.end(model, optimizer)


class _Reversed(torch.autograd.Function):
    """Turns gradients round, as adversaries of domains do."""

    @staticmethod
    def forward(context: Any, x: Tensor, by: float) -> Tensor:
        context.by = by
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return -context.by * gradients[0], None


def gradients_are_reversed(run: Run) -> None:
    class Adversary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.task, self.domain = net(), nn.Linear(4, 2), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.task(hidden), self.domain(_Reversed.apply(hidden, 0.3))

    wrapped, model, optimizer = begun(run, Adversary())
    for step in range(STEPS):
        optimizer.zero_grad()
        task, domain = wrapped(run.batch(step))
        (loss_of(task) + loss_of(domain - run.rank)).backward()
        optimizer.step()
    run.end(model, optimizer)


def _counted(count: list[int]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        count[0] += 1

    return hook


def hooks_called_always(run: Run) -> None:
    """A forward raises on all ranks; hooks that are always called are called all the same."""
    wrapped, model, optimizer = begun(run)
    count = [0]
    model.register_forward_hook(_counted(count), always_call=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = run.batch(step, 4, 5 if step == 2 else 8)
        try:
            loss_of(wrapped(batch)).backward()
        except RuntimeError:
            continue
        optimizer.step()
    run.see("count", count)
    run.end(model, optimizer)


def prehooks_that_are_first(run: Run) -> None:
    """Hooks of the step that are there before and behind distribute see the same gradients."""
    for _, model, optimizer, step in trained(run):
        if step == 1:
            optimizer.register_step_pre_hook(
                lambda *_, model=model: run.see("sums", [p.grad.sum() for p in model.parameters()])
            )
        if step == 3:
            optimizer.register_step_post_hook(
                lambda own, *_: own.param_groups[0].update(lr=own.param_groups[0]["lr"] * 0.9)
            )


PROGRAMS: list[Program] = [
    hook_of_several_gradients,
    hooks_before_the_backward_of_a_layer,
    hooks_of_the_whole_model,
    hooks_of_all_modules,
    hooks_of_all_optimizers,
    hooks_of_states,
    a_collective_in_a_hook_of_backward,
    a_collective_of_a_group_in_a_hook,
    gradients_of_outputs_are_hooked,
    gradients_inside_are_retained,
    hooks_of_accumulators,
    hooks_come_and_go,
    called_back_behind_backward,
    gradients_are_reversed,
    hooks_called_always,
    prehooks_that_are_first,
]
