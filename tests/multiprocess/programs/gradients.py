"""Programs that look at gradients, change them, clip them, accumulate them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    begun,
    loss_of,
    net,
    sgd,
    stepped,
    trained,
)


def _clipped(order: float, foreach: bool | None, name: str) -> Program:
    def program(run: Run) -> None:
        for _, model, _, _ in trained(run):
            norm = clip_grad_norm_(model.parameters(), 0.02, order, foreach=foreach)
            run.see("norm", norm)

    program.__name__ = name
    return program


def clipped_by_value(run: Run) -> None:
    for _, model, _, _ in trained(run):
        clip_grad_value_(model.parameters(), 0.001)


def clipped_and_not_looked_at(run: Run) -> None:
    for _, model, _, _ in trained(run, optimize=sgd):
        clip_grad_norm_(model.parameters(), 0.02)


def clipped_twice(run: Run) -> None:
    for _, model, _, _ in trained(run, optimize=sgd):
        run.see("norm", clip_grad_norm_(model.parameters(), 0.05))
        run.see("norm after", clip_grad_norm_(model.parameters(), 0.02))


def clipped_by_layer(run: Run) -> None:
    for _, model, _, _ in trained(run, optimize=sgd):
        for layer in model.children():
            clip_grad_norm_(layer.parameters(), 0.01)


def norm_of_all(run: Run) -> None:
    for _, model, _, _ in trained(run):
        run.see("norm", get_total_norm([p.grad for p in model.parameters()]))


def rank_0_logs_the_norm(run: Run) -> None:
    for _, model, _, step in trained(run):
        if run.rank == 0 and step % 2:
            run.see("norm", sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)


def rank_0_logs_norms_of_weights(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            run.see("norms", [float(p.norm()) for p in model.parameters()])
            run.see("histogram", model[0].weight.histc(5))
    run.end(model, optimizer)


def one_gradient_is_read(run: Run) -> None:
    for _, model, _, _ in trained(run):
        run.see("one", model[2].weight.grad[0, :3])
        if run.rank == 1:
            run.see("another", model[4].bias.grad.numpy())
        run.see("shape", tuple(model[0].weight.grad.shape))
        run.see("none", model[0].weight.grad is None)


def gradients_in_an_order_of_their_own(run: Run) -> None:
    for _, model, _, _ in trained(run):
        parameters = list(model.parameters())
        for place in (run.rank, 3, 5 - run.rank, 0):
            run.see("sum", parameters[place].grad.sum())


def gradients_after_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        run.see("gradient", model[2].weight.grad)
        run.see("weight", model[2].weight)
    run.end(model, optimizer)


def changed_in_place(run: Run) -> None:
    noise = torch.Generator().manual_seed(1)
    for _, model, _, step in trained(run):
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            match step:
                case 0:
                    gradient.mul_(0.5)
                case 1:
                    gradient.add_(torch.randn(gradient.shape, generator=noise), alpha=0.01)
                case 2:
                    gradient.nan_to_num_().clamp_(-1, 1)
                case 3:
                    gradient.copy_(torch.ones_like(gradient))
                case 4:
                    gradient.fill_(0.1)
                case _:
                    gradient *= 2
                    gradient /= 3
                    gradient.data /= 2
                    gradient[0] = 0


def scaled_and_zeroed(run: Run) -> None:
    for _, model, _, step in trained(run, optimize=sgd):
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            if step % 2:
                gradient.mul_(torch.tensor(0.5)).div_(3)
            else:
                gradient.zero_()


def scaled_by_foreach(run: Run) -> None:
    for _, model, _, step in trained(run, optimize=sgd):
        gradients = [parameter.grad for parameter in model.parameters()]
        torch._foreach_mul_(gradients, 0.5)
        torch._foreach_div_(gradients, [1.0 + place for place in range(len(gradients))])
        if step == 2:
            torch._foreach_zero_(gradients[:2])
        if step == 3:
            torch._foreach_add_(gradients, 0.1)


def scaled_by_other_tensors(run: Run) -> None:
    for _, model, _, _ in trained(run, optimize=sgd):
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            gradient.mul_(torch.full((gradient.shape[-1],), 0.5))
            gradient.div_(model[0].bias.grad.norm())


def replaced(run: Run) -> None:
    for _, model, _, _ in trained(run):
        for parameter in model.parameters():
            parameter.grad = parameter.grad * 0.5 + 0.01


def some_replaced(run: Run) -> None:
    for _, model, _, step in trained(run):
        for place, parameter in enumerate(model.parameters()):
            if place % 3 == step % 3:
                parameter.grad = torch.zeros_like(parameter)


def some_set_to_none(run: Run) -> None:
    for _, model, _, step in trained(run):
        for place, parameter in enumerate(model.parameters()):
            if place % 2 == step % 2:
                parameter.grad = None


def gradients_change_places(run: Run) -> None:
    """The gradients of two parameters of one shape are exchanged."""
    for _, model, _, step in trained(run):
        first, second = model[0].weight, model[2].weight
        if step % 2:
            first.grad, second.grad = second.grad, first.grad


def on_one_flat_memory(run: Run) -> None:
    """Gradients are views of one tensor, made before the training, which scripts clip as one."""
    model = net()
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    start = 0
    for parameter in model.parameters():
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    optimizer = sgd(model)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        flat.zero_()
        loss_of(wrapped(run.batch(step))).backward()
        run.see("flat", flat)
        flat.clamp_(-0.01, 0.01)
        optimizer.step()
    run.end(model, optimizer)


def on_one_flat_memory_midway(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    for step in range(STEPS + 2):
        if step == 2:
            start = 0
            for parameter in model.parameters():
                parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
        optimizer.zero_grad(set_to_none=step < 2 or step > 5)
        loss_of(wrapped(run.batch(step))).backward()
        run.see("flat", flat)
        optimizer.step()
    run.end(model, optimizer)


def made_by_the_script(run: Run) -> None:
    """Gradients are there before the training, and the script holds on to them."""
    model = net()
    optimizer = sgd(model)
    held = []
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        held.append(parameter.grad)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(wrapped(run.batch(step))).backward()
        run.see("held", held)
        run.see("same", all(p.grad is h for p, h in zip(model.parameters(), held, strict=True)))
        optimizer.step()
    run.end(model, optimizer)


def centralised(run: Run) -> None:
    for _, model, _, _ in trained(run):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.grad.sub_(parameter.grad.mean(1, keepdim=True))


def normalised(run: Run) -> None:
    """Divide by a norm, and by no less than 0.1: else rounding grows a hundredfold in six steps."""
    for _, model, _, _ in trained(run, optimize=sgd):
        for parameter in model.parameters():
            parameter.grad.div_(parameter.grad.abs().max() + 0.1)


def hidden_behind_data(run: Run) -> None:
    for _, model, _, _ in trained(run):
        for parameter in model.parameters():
            parameter.grad.data.mul_(0.5)
            parameter.grad.detach().add_(0.001)


def refused_unless_finite(run: Run) -> None:
    """A step is left out where a gradient is not finite, which one rank's batch makes so."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = run.batch(step)
        if step == 2 and run.rank == 1:
            batch[0, 0] = float("inf")
        loss_of(wrapped(batch)).backward()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        run.see("finite", finite)
        if finite:
            optimizer.step()
    run.end(model, optimizer)


def noise_by_rank_0_statistics(run: Run) -> None:
    """Signal to noise of gradients, by running averages of them and their squares."""
    first: Any = None
    second: Any = None
    for _, model, _, _ in trained(run):
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        first = flat if first is None else first.lerp(flat, 0.1)
        second = flat.square() if second is None else second.lerp(flat.square(), 0.1)
        run.see("ratio", (first.square() / second.clamp_min(1e-12)).mean())


def scaler(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    scaling = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step in range(STEPS + 2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(wrapped(run.batch(step)))
        if step == 3 and run.rank == 1:
            loss = loss * float("inf")
        scaling.scale(loss).backward()
        if step % 2:
            scaling.unscale_(optimizer)
            run.see("norm", clip_grad_norm_(model.parameters(), 0.1))
        scaling.step(optimizer)
        scaling.update()
        run.see("scale", scaling.get_scale())
    run.end(model, optimizer)


def scaler_without_looks(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    scaling = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step in range(STEPS):
        scaling.scale(loss_of(wrapped(run.batch(step)))).backward()
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()
    run.end(model, optimizer)


def gradients_of_a_frozen_copy(run: Run) -> None:
    """Gradients are handed to another model, of another optimizer, which trains on them."""
    other = net()
    others = sgd(other)
    for _, model, _, _ in trained(run):
        for theirs, parameter in zip(other.parameters(), model.parameters(), strict=True):
            theirs.grad = parameter.grad.clone()
        others.step()
    run.see("other", list(other.parameters()))


def gradients_flow_into_a_reference(run: Run) -> None:
    """The gradient tensor itself is handed on, without a copy."""
    other = net()
    others = sgd(other)
    for _, model, _, _ in trained(run):
        for theirs, parameter in zip(other.parameters(), model.parameters(), strict=True):
            theirs.grad = parameter.grad
        others.step()
    run.see("other", list(other.parameters()))


def means_of_layers(run: Run) -> None:
    layers: list[Any] = []
    for _, model, _, _ in trained(run):
        layers = [child for child in model.children() if isinstance(child, nn.Linear)]
        run.see("means", {str(n): layer.weight.grad.abs().mean() for n, layer in enumerate(layers)})
        run.see("largest", max(float(layer.weight.grad.max()) for layer in layers))


PROGRAMS: list[Program] = [
    _clipped(2.0, None, "clipped_by_2_norm"),
    _clipped(2.0, True, "clipped_by_2_norm_foreach"),
    _clipped(2.0, False, "clipped_by_2_norm_one_by_one"),
    _clipped(float("inf"), None, "clipped_by_largest"),
    _clipped(1.0, None, "clipped_by_1_norm"),
    clipped_by_value,
    clipped_and_not_looked_at,
    clipped_twice,
    clipped_by_layer,
    norm_of_all,
    rank_0_logs_the_norm,
    rank_0_logs_norms_of_weights,
    one_gradient_is_read,
    gradients_in_an_order_of_their_own,
    gradients_after_the_step,
    changed_in_place,
    scaled_and_zeroed,
    scaled_by_foreach,
    scaled_by_other_tensors,
    replaced,
    some_replaced,
    some_set_to_none,
    gradients_change_places,
    on_one_flat_memory,
    on_one_flat_memory_midway,
    made_by_the_script,
    centralised,
    normalised,
    hidden_behind_data,
    refused_unless_finite,
    noise_by_rank_0_statistics,
    scaler,
    scaler_without_looks,
    gradients_of_a_frozen_copy,
    gradients_flow_into_a_reference,
    means_of_layers,
]
