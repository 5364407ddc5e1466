"""Programs that accumulate gradients, zero them at odd places, and hook them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    adamw,
    begun,
    loss_of,
    net,
    sgd,
    train,
)


def accumulated(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            if part < 2:
                with wrapped.no_sync():
                    (loss_of(wrapped(run.batch(10 * step + part))) / 3).backward()
                if run.rank == 0 and step == 2:
                    run.see("its own", model[0].weight.grad)
            else:
                (loss_of(wrapped(run.batch(10 * step + part))) / 3).backward()
        optimizer.step()
    run.end(model, optimizer)


def accumulated_by_a_switch(run: Run) -> None:
    """An attribute of DDP's says which backward averages, in the place of ``no_sync``."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        for part in range(3):
            wrapped.require_backward_grad_sync = part == 2
            (loss_of(wrapped(run.batch(10 * step + part))) / 3).backward()
            run.see("gradient", model[0].weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    run.see("on", wrapped.require_backward_grad_sync)
    run.end(model, optimizer)


def accumulated_in_sync(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            (loss_of(wrapped(run.batch(10 * step + part))) / 3).backward()
        optimizer.step()
    run.end(model, optimizer)


def never_zeroed(run: Run) -> None:
    model = net()
    optimizer = sgd(model, lr=0.01)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def decayed_instead_of_zeroed(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
    run.end(model, optimizer)


def zeroed_and_kept(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def zeroed_behind_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        if step % 2:
            optimizer.zero_grad(set_to_none=False)
        else:
            model.zero_grad()
    run.end(model, optimizer)


def zeroed_after_forward(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        loss = loss_of(wrapped(run.batch(step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.end(model, optimizer)


def inputs_run_out(run: Run) -> None:
    """Rank 1 has more inputs than the others; a model of statistics meets in forward."""
    layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    wrapped, model, optimizer = begun(run, layers, sgd)
    with wrapped.join():
        for step in range(STEPS - (run.rank != 1)):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
    for name, weight in model.named_parameters():
        run.see(f"weight {name}", weight)


def two_backwards(run: Run) -> None:
    """Two forwards, then two backwards, then a step."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(2 * step))).backward()
        loss_of(wrapped(run.batch(2 * step + 1))).backward()
        optimizer.step()
    run.end(model, optimizer)


def hooks_of_gradients(run: Run) -> None:
    """A hook halves what one rank contributes, before it is averaged."""
    model = net()
    optimizer = adamw(model)
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    model[2].bias.register_hook(lambda gradient: run.see("own", gradient))
    wrapped = run.wrap(model, optimizer)
    model[4].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def hooks_behind_accumulation(run: Run) -> None:
    model = net()
    optimizer = adamw(model)

    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    model[0].weight.register_post_accumulate_grad_hook(halve)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def hooks_of_modules(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    model[0].register_forward_hook(lambda module, inputs, output: output * 1.5)
    model[2].register_full_backward_hook(
        lambda module, before, after: run.see("backward", after[0])
    )
    model[4].register_forward_pre_hook(lambda module, inputs: run.see("weight", module.weight))
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def gradients_of_inputs(run: Run) -> None:
    """What an adversary changes inputs by; weights get no gradient of it."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        batch = run.batch(step).requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(model(batch)), batch)
        run.see("slope", slope)
        optimizer.zero_grad()
        loss_of(wrapped(batch.detach() + 0.1 * slope.sign())).backward()
        optimizer.step()
    run.end(model, optimizer)


def second_order(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = run.batch(step).requires_grad_()
        output = wrapped(batch)
        (slope,) = torch.autograd.grad(output.sum(), batch, create_graph=True)
        (loss_of(output) + (slope.norm() - 1).square()).backward()
        optimizer.step()
    run.end(model, optimizer)


def gradients_for_a_part(run: Run) -> None:
    """``backward(inputs=...)`` for some parameters alone."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(wrapped(run.batch(step)))
        loss.backward(inputs=list(model.parameters()))
        optimizer.step()
    run.end(model, optimizer)


PROGRAMS: list[Program] = [
    accumulated,
    accumulated_by_a_switch,
    accumulated_in_sync,
    never_zeroed,
    decayed_instead_of_zeroed,
    zeroed_and_kept,
    zeroed_behind_the_step,
    zeroed_after_forward,
    inputs_run_out,
    two_backwards,
    hooks_of_gradients,
    hooks_behind_accumulation,
    hooks_of_modules,
    gradients_of_inputs,
    second_order,
    gradients_for_a_part,
]
