"""What goes on around a training: threads, compilers, tracing, errors, signals of the loop."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

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


class Plain(nn.Module):
    """A forward of its own, for compilers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def compiled(run: Run) -> None:
    model = Plain()
    optimizer = adamw(model)
    wrapped = torch.compile(run.wrap(model, optimizer), backend="aot_eager")
    train(run, wrapped, optimizer)
    run.end(model, optimizer)
    torch._dynamo.reset()


def compiled_before(run: Run) -> None:
    model = Plain()
    model.compile(backend="aot_eager")
    optimizer = adamw(model)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)
    torch._dynamo.reset()


def compiled_step(run: Run) -> None:
    """The optimizer's step is compiled."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    step_of = torch.compile(optimizer.step, backend="eager")
    for step in range(3):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        step_of()
    run.end(model, optimizer)
    torch._dynamo.reset()


def called_functionally(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            own = dict(model.named_parameters())
            run.see("own", functional_call(model, own, run.batch(99)))
            halved = {name: 0.5 * value for name, value in own.items()}
            run.see("halved", functional_call(model, halved, run.batch(99)))
    run.end(model, optimizer)


def vectorised(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            run.see("mapped", torch.func.vmap(model)(run.batch(99)))
    run.end(model, optimizer)


def gradients_of_functions(run: Run) -> None:
    """Per-sample gradients by torch.func, behind a step."""
    wrapped, model, optimizer = begun(run)

    def loss(weights: Any, x: Tensor) -> Tensor:
        return loss_of(functional_call(model, weights, x))

    for _ in stepped(run, wrapped, optimizer):
        model.eval()
        weights = {name: value.detach() for name, value in model.named_parameters()}
        with torch.no_grad():
            run.see("slopes", torch.func.grad(loss)(weights, run.batch(99)))
        model.train()
    run.end(model, optimizer)


def traced_after_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer, 3):
        if run.rank == 0:
            with torch.no_grad():
                traced = torch.jit.trace(copy.deepcopy(model), run.batch(99))
                run.see("traced", traced(run.batch(98)))
    run.end(model, optimizer)


def scripted_layer(run: Run) -> None:
    layers = nn.Sequential(torch.jit.script(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 4))
    wrapped, model, optimizer = begun(run, layers)
    for _ in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            run.see("evaluated", wrapped(run.batch(99)))
    run.end(model, optimizer)


def error_in_the_loss(run: Run) -> None:
    """On all ranks; the step is left out, and the forward saw no backward."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        try:
            outputs = wrapped(run.batch(step))
            if step == 2:
                raise ValueError("a bad batch")
            loss_of(outputs).backward()
        except ValueError:
            continue
        optimizer.step()
    run.end(model, optimizer)


def error_in_forward(run: Run) -> None:
    model = net()
    optimizer = adamw(model)

    def refuse(module: Any, inputs: Any) -> None:
        if inputs[0].abs().max() > 50:
            raise ValueError("a bad batch")

    model[2].register_forward_pre_hook(refuse)
    model[1] = nn.Identity()
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = run.batch(step) * (1000 if step == 2 else 1)
        try:
            loss_of(wrapped(batch)).backward()
        except ValueError:
            continue
        optimizer.step()
    run.end(model, optimizer)


def error_between_backward_and_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        try:
            if step == 2:
                raise KeyError("logging failed")
            optimizer.step()
        except KeyError:
            run.see("gradient", model[0].weight.grad)
    run.end(model, optimizer)


def error_in_a_hook_of_the_step(run: Run) -> None:
    """Before the update, on all ranks: the step is not taken, and training goes on."""
    wrapped, model, optimizer = begun(run)
    now = [0]

    def refuse(*_: Any) -> None:
        if now[0] == 2:
            raise ValueError("no step")

    optimizer.register_step_pre_hook(refuse)
    for step in range(STEPS):
        now[0] = step
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        with contextlib.suppress(ValueError):
            optimizer.step()
    run.end(model, optimizer)


def error_on_one_rank_behind_the_step(run: Run) -> None:
    """What one rank does between steps is its own business."""
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            with contextlib.suppress(RuntimeError):
                model[0].weight + torch.zeros(3, 3, 3, 99)
    run.end(model, optimizer)


def over_a_loader(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    samples = TensorDataset(run.batch(0, 12, 8), run.batch(1, 12, 4))
    for _ in range(2):
        total = 0.0
        for inputs, wanted in DataLoader(samples, batch_size=4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(wrapped(inputs), wanted)
            loss.backward()
            optimizer.step()
            total += loss.item()
        run.see("total", total)
        dist.barrier()
        with torch.no_grad():
            validated = nn.functional.mse_loss(model(samples[:][0]), samples[:][1])
        dist.all_reduce(validated)
        run.see("validated", validated)
    run.end(model, optimizer)


def stopped_early(run: Run) -> None:
    """All ranks agree on a loss, and stop behind a backward without a step."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        loss = loss_of(wrapped(run.batch(step)))
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if step > 3 and mean.item() > 0:
            break
        optimizer.step()
    run.end(model, optimizer)


def printed(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        run.see("gradient in words", str(model[4].bias.grad))
        optimizer.step()
        run.see("weight in words", str(model[4].bias))
        run.see("as a list", model[4].bias.tolist())
        run.see("number", float(model[4].bias[0]))
        run.see("state in words", str(optimizer.state[model[4].bias]["exp_avg"]))
        run.see("optimizer", repr(optimizer))
    run.end(model, optimizer)


def arithmetic_of_weights(run: Run) -> None:
    """Operators, comparisons, iteration, and functions that take lists of tensors."""
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            match step:
                case 0:
                    run.see("sum", 1.0 + model[0].weight - model[2].weight / 2)
                case 1:
                    run.see("row", [row.sum() for row in model[0].weight])
                case 2:
                    run.see("cat", torch.cat([p.flatten() for p in model.parameters()]))
                    run.see("stack", torch.stack([model[0].weight, model[2].weight]))
                case 3:
                    run.see("larger", model[0].weight > model[2].weight)
                    run.see("equal", torch.equal(model[0].weight, model[0].weight.clone()))
                case 4:
                    run.see("out", torch.add(model[0].weight, 1, out=torch.empty(8, 8)))
                    run.see("copied", torch.empty(8, 8).copy_(model[0].weight))
                case _:
                    run.see("norms", torch._foreach_norm(list(model.parameters())))
                    run.see("item", model[0].weight[0, 0].item())
                    run.see("numpy", model[0].weight.numpy())
    run.end(model, optimizer)


def trained_under_autocast(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = wrapped(run.batch(step))
            loss = loss_of(outputs)
        loss.backward()
        optimizer.step()
    run.end(model, optimizer)


def everything_under_autocast(run: Run) -> None:
    """Backward and step, too."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
            run.see("weight", model[2].weight)
    run.end(model, optimizer)


def under_anomaly_mode(run: Run) -> None:
    with torch.autograd.set_detect_anomaly(True):
        for _, model, _, _ in trained(run):
            run.see("gradient", model[0].bias.grad)


def profiled(run: Run) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        for _ in trained(run):
            pass


def two_models_in_turns(run: Run) -> None:
    one, other = net(), net(6)
    first, second = adamw(one), sgd(other)
    a, b = run.wrap(one, first), run.wrap(other, second)
    for step in range(STEPS):
        first.zero_grad()
        loss_of(a(run.batch(step))).backward()
        second.zero_grad()
        loss_of(b(run.batch(step + 50))).backward()
        first.step()
        second.step()
        run.see("both", one[0].weight.sum() + other[0].weight.sum())
    run.end(one, first)
    run.end(other, second)


def two_models_under_one_optimizer(run: Run) -> None:
    one, other = net(), net(6)
    optimizer = torch.optim.AdamW([*one.parameters(), *other.parameters()], lr=0.01)
    a, b = run.wrap(one, optimizer), run.wrap(other, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(a(run.batch(step))) + loss_of(b(run.batch(step + 50)))).backward()
        optimizer.step()
    run.end(one, optimizer)
    run.end(other)


PROGRAMS: list[Program] = [
    compiled,
    compiled_before,
    compiled_step,
    called_functionally,
    vectorised,
    gradients_of_functions,
    traced_after_the_step,
    scripted_layer,
    error_in_the_loss,
    error_in_forward,
    error_between_backward_and_step,
    error_in_a_hook_of_the_step,
    error_on_one_rank_behind_the_step,
    over_a_loader,
    stopped_early,
    printed,
    arithmetic_of_weights,
    trained_under_autocast,
    everything_under_autocast,
    under_anomaly_mode,
    profiled,
    two_models_in_turns,
    two_models_under_one_optimizer,
]
