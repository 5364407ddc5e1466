"""Programs that keep references to memory, and look at it, or write to it, later."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn

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
    trained,
)


def state_dict_taken_once(run: Run) -> None:
    """What a hub of checkpoints does: the dictionary is taken once, and read after every step."""
    wrapped, model, optimizer = begun(run)
    taken = model.state_dict()
    for _ in stepped(run, wrapped, optimizer):
        run.see("taken", taken)
    run.end(model, optimizer)


def state_dict_taken_before_distribute(run: Run) -> None:
    model = net()
    optimizer = adamw(model)
    taken = model.state_dict()
    wrapped = run.wrap(model, optimizer)
    for _ in stepped(run, wrapped, optimizer):
        run.see("taken", taken)
    run.end(model, optimizer)


def state_dict_kept_over_a_step(run: Run) -> None:
    """Taken between backward and step."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        taken = model.state_dict()
        optimizer.step()
        run.see("taken", taken)
    run.end(model, optimizer)


def data_kept(run: Run) -> None:
    model = net()
    optimizer = adamw(model)
    kept = [parameter.data for parameter in model.parameters()]
    wrapped = run.wrap(model, optimizer)
    later = [parameter.data for parameter in model.parameters()]
    detached = [parameter.detach() for parameter in model.parameters()]
    for _ in stepped(run, wrapped, optimizer):
        run.see("kept", kept)
        run.see("later", later)
        run.see("detached", detached)
    run.end(model, optimizer)


def views_kept(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    views: list[Any] = []
    with torch.no_grad():
        views = [model[0].weight.t(), model[0].bias[2:4], model[2].weight.view(-1)]
        views += [model[2].weight.data.flatten(), model[4].weight.detach()[0]]
    for _ in stepped(run, wrapped, optimizer):
        run.see("views", views)
    run.end(model, optimizer)


def numbers_kept(run: Run) -> None:
    """Arrays of numpy on the memory of weights."""
    wrapped, model, optimizer = begun(run)
    arrays = [parameter.detach().numpy() for parameter in model.parameters()]
    for _ in stepped(run, wrapped, optimizer):
        run.see("arrays", arrays)
    run.end(model, optimizer)


def moments_kept(run: Run) -> None:
    """Tensors of the optimizer's state, held, and read after later steps."""
    wrapped, model, optimizer = begun(run)
    held: list[Any] = []
    entries: list[Any] = []
    for step in stepped(run, wrapped, optimizer):
        if step == 1:
            held = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
            held += [optimizer.state[p]["step"] for p in model.parameters()]
            entries = [optimizer.state[p] for p in model.parameters()]
            taken = optimizer.state_dict()
        if step > 1:
            run.see("held", held)
            run.see("entries", entries)
            run.see("taken", taken)
    run.end(model, optimizer)


def values_of_the_state_kept(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    state = optimizer.state
    for _ in stepped(run, wrapped, optimizer):
        run.see("values", [entry["exp_avg_sq"] for entry in state.values()])
    run.end(model, optimizer)


def momentum_kept_of_sgd(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    held: list[Any] = []
    for _ in stepped(run, wrapped, optimizer):
        held = held or [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
        run.see("held", held)
    run.end(model, optimizer)


def gradients_kept_over_zero_grad(run: Run) -> None:
    """The gradients of the step before, kept by reference."""
    before: list[Any] = []
    for _, model, _, _ in trained(run):
        if before:
            run.see("before", before)
        before = [parameter.grad for parameter in model.parameters()]


def gradients_kept_for_good(run: Run) -> None:
    history: list[Any] = []
    for _, model, _, _ in trained(run):
        history.append([parameter.grad for parameter in model.parameters()])
    run.see("history", history)


def gradient_data_kept(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        held = [parameter.grad.data for parameter in model.parameters()]
        views = [parameter.grad.view(-1)[:1] for parameter in model.parameters()]
        optimizer.step()
        run.see("held", held)
        run.see("views", views)
    run.end(model, optimizer)


def gradients_kept_from_before_backward(run: Run) -> None:
    """Gradients zeroed in place are the same tensors in every step."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    held: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        if step:
            run.see("held", held)
        held = [parameter.grad for parameter in model.parameters()]
    run.end(model, optimizer)


def outputs_kept(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    outputs: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        outputs.append(wrapped(run.batch(step)))
        loss_of(outputs[-1]).backward()
        optimizer.step()
    run.see("outputs", outputs)
    run.end(model, optimizer)


def written_through_kept_data(run: Run) -> None:
    """Memory that was taken before the step is written to behind it."""
    wrapped, model, optimizer = begun(run)
    data = model[0].weight.data
    taken = model.state_dict()
    for _ in stepped(run, wrapped, optimizer):
        data.mul_(0.9)
        taken["2.weight"].clamp_(-0.2, 0.2)
    run.end(model, optimizer)


def written_through_kept_gradients(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        held = [parameter.grad.view(-1) for parameter in model.parameters()]
        for gradient in held:
            gradient.mul_(0.5)
        optimizer.step()
    run.end(model, optimizer)


def weights_on_one_memory(run: Run) -> None:
    """Parameters are views of one flat tensor, which is read behind every step."""
    model = net()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    start = 0
    for parameter in model.parameters():
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    optimizer = adamw(model)
    wrapped = run.wrap(model, optimizer)
    for _ in stepped(run, wrapped, optimizer):
        run.see("flat", flat)
    run.end(model, optimizer)


def shared_with_another_model(run: Run) -> None:
    """A second model on the same memory evaluates."""
    model, other = net(), net()
    for theirs, parameter in zip(other.parameters(), model.parameters(), strict=True):
        theirs.data = parameter.data
    optimizer = adamw(model)
    wrapped = run.wrap(model, optimizer)
    for _ in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            run.see("other", other(run.batch(99)))
    run.end(model, optimizer)


def given_memory_that_is_kept(run: Run) -> None:
    """Midway a weight gets the memory of a tensor that the script goes on to read."""
    wrapped, model, optimizer = begun(run)
    given = torch.full((8, 8), 0.1)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            model[2].weight.data = given
        run.see("given", given)
    run.end(model, optimizer)


def parameters_kept(run: Run) -> None:
    model = net()
    optimizer = adamw(model)
    held = dict(model.named_parameters())
    wrapped = run.wrap(model, optimizer)
    weak = [weakref.ref(parameter) for parameter in held.values()]
    for _ in stepped(run, wrapped, optimizer):
        run.see("held", held)
        run.see("the same", all(a is b() for a, b in zip(model.parameters(), weak, strict=True)))
        run.see("types", [type(parameter) is nn.Parameter for parameter in model.parameters()])
    run.end(model, optimizer)


def pointers(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    before = [parameter.data_ptr() for parameter in model.parameters()]
    for _ in stepped(run, wrapped, optimizer):
        run.see("moved", before != [parameter.data_ptr() for parameter in model.parameters()])
        run.see("versions", len({parameter._version for parameter in model.parameters()}))
    run.end(model, optimizer)


def storages(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    held = [parameter.untyped_storage() for parameter in model.parameters()]
    for _ in stepped(run, wrapped, optimizer):
        run.see("own", [list(p.untyped_storage())[:4] for p in model.parameters()])
        run.see("held", [list(storage)[:4] for storage in held])
    run.end(model, optimizer)


def dropped_and_made_again(run: Run) -> None:
    """Models and optimizers come and go, as in a search for hyper-parameters."""
    gone: list[Any] = []
    for trial in range(3):
        model = net()
        optimizer = adamw(model)
        wrapped = run.wrap(model, optimizer)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(10 * trial + step))).backward()
            optimizer.step()
        run.see("weight", model[0].weight)
        gone.append(weakref.ref(model[0].weight))
        run.forget()
        del model, optimizer, wrapped
        gc.collect()
    run.see("gone", [reference() is None for reference in gone])


PROGRAMS: list[Program] = [
    state_dict_taken_once,
    state_dict_taken_before_distribute,
    state_dict_kept_over_a_step,
    data_kept,
    views_kept,
    numbers_kept,
    moments_kept,
    values_of_the_state_kept,
    momentum_kept_of_sgd,
    gradients_kept_over_zero_grad,
    gradients_kept_for_good,
    gradient_data_kept,
    gradients_kept_from_before_backward,
    outputs_kept,
    written_through_kept_data,
    written_through_kept_gradients,
    weights_on_one_memory,
    shared_with_another_model,
    given_memory_that_is_kept,
    parameters_kept,
    pointers,
    storages,
    dropped_and_made_again,
]
