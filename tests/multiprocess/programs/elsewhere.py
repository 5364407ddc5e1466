"""What a program does elsewhere: in child processes, in signal handlers, in other libraries."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
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


@contextlib.contextmanager
def _may_have_children() -> Iterator[None]:
    """Let this process start others, which the ranks of a test may not."""
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    before, config["daemon"] = config.get("daemon"), False
    try:
        yield
    finally:
        config["daemon"] = before


@_may_have_children()
def workers_load_data(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    batches = TensorDataset(torch.cat([run.batch(step) for step in range(STEPS)]))
    for epoch in range(2):
        for (inputs,) in DataLoader(batches, 4, num_workers=1, multiprocessing_context="fork"):
            optimizer.zero_grad()
            loss_of(wrapped(inputs)).backward()
            optimizer.step()
        run.see(f"epoch {epoch}", next(model.parameters()))
    run.end(model, optimizer)


def _sum_in_child(model: nn.Module, optimizer: Any) -> list[float]:
    """Return sums of weights and moments, added up in a child that is forked now."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            total = [float(p.detach().double().sum()) for p in model.state_dict().values()]
            for state in optimizer.state_dict()["state"].values():
                total += [float(v.double().sum()) for v in state.values()]
            os.write(write, pickle.dumps(total))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        found: list[float] = pickle.loads(answer.read())
    os.waitpid(child, 0)
    return found


def a_forked_child_saves(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if run.rank == step % run.ranks:
            run.see("sums", _sum_in_child(model, optimizer))
    run.end(model, optimizer)


def weights_in_shared_memory(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net().share_memory())
    train(run, wrapped, optimizer)
    run.see("shared", [parameter.is_shared() for parameter in model.parameters()])
    run.end(model, optimizer)


def shared_midway(run: Run) -> None:
    for _, model, _, step in trained(run):
        if step == 2:
            model.share_memory()


def a_signal_saves(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    saved: list[Any] = []

    def save(*_: Any) -> None:
        saved.append(copy.deepcopy(model.state_dict()))
        if len(saved) < 30:
            signal.setitimer(signal.ITIMER_REAL, 0.002)

    before = signal.signal(signal.SIGALRM, save)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        for step in range(4 * STEPS):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    run.end(model, optimizer)


def a_signal_saves_while_ranks_wait(run: Run) -> None:
    """Rank 0 is interrupted while it waits for rank 1, in a step or in a look at a gradient."""
    store, turn = dist.distributed_c10d._get_default_store(), next(_turns)
    wrapped, model, optimizer = begun(run)
    saved: list[Any] = []
    step = 0

    def save(*_: Any) -> None:
        store.set(f"interrupted {turn} {step}", "")
        saved.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))

    before = signal.signal(signal.SIGALRM, save)
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(wrapped(run.batch(step)))
            if run.rank == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            # DDP waits below Python, where no handler runs.
            elif not run.by_ddp:
                store.wait([f"interrupted {turn} {step}"])
            loss.backward()
            while run.by_ddp and run.rank == 0 and len(saved) <= step:
                time.sleep(0.001)
            if step % 2:
                run.see("largest", [p.grad.abs().max() for p in model.parameters()])
            optimizer.step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    run.see("saved", saved)
    run.end(model, optimizer)


_turns = itertools.count()
"""Numbers the runs of a program, the same on all ranks."""


def optimizer_of_shards(run: Run) -> None:
    model = net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    for name, parameter in model.named_parameters():
        run.see(f"weight {name}", parameter)


def pickled(run: Run) -> None:
    for _, model, optimizer, step in trained(run):
        if step and run.rank == step % run.ranks:
            again = pickle.loads(pickle.dumps(optimizer))
            run.see("optimizer", again.state_dict())
            file = io.BytesIO()
            torch.save(optimizer, file)
            torch.save([p.detach() for p in model.parameters()], file)


def forward_is_called(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped.forward(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


class Around(nn.Module):
    """A module around the one that is trained."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return loss_of(self.inner(x))


def inside_another_module(run: Run) -> None:
    model = net()
    optimizer = adamw(model)
    outer = Around(run.wrap(model, optimizer))
    for step in range(STEPS):
        outer.zero_grad()
        outer(run.batch(step)).backward()
        optimizer.step()
    run.end(model, optimizer)


class Meeting(nn.Module):
    """Its forward exchanges activations with the other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        mean = torch.distributed.nn.functional.all_reduce(hidden) / dist.get_world_size()
        found: Tensor = self.last(hidden - mean)
        return found


def collectives_in_forward(run: Run) -> None:
    for _ in trained(run, Meeting):
        pass


def collectives_between(run: Run) -> None:
    for _, model, _, step in trained(run):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        objects: list[Any] = [None] * run.ranks
        dist.all_gather_object(objects, step)
        work.wait()
        run.see("objects", objects)
        total = next(model.parameters()).detach().clone()
        dist.all_reduce(total)
        run.see("total", total / run.ranks)
        dist.barrier()


class Marked(nn.Parameter):
    """A parameter of a class of its own."""


class Seen(nn.Parameter):
    """A parameter that sees what is done with it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Seen.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def _of_class(kind: type[nn.Parameter]) -> nn.Module:
    model = net()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = kind(module.weight.detach())
    return model


def parameters_of_a_class(run: Run) -> None:
    for _, model, _, _ in trained(run, lambda: _of_class(Marked)):
        run.see("is one", [isinstance(p, Marked) for p in model.parameters()])


def parameters_that_see(run: Run) -> None:
    for _, model, _, _ in trained(run, lambda: _of_class(Seen)):
        run.see("is one", [isinstance(p, Seen) for p in model.parameters()])


def parameters_with_attributes(run: Run) -> None:
    def build() -> nn.Module:
        model = net()
        for place, parameter in enumerate(model.parameters()):
            parameter.lr_scale = 1.0 / (1 + place)  # type: ignore[attr-defined]
        return model

    for _, model, _, _ in trained(run, build):
        for parameter in model.parameters():
            parameter.grad.mul_(parameter.lr_scale)  # type: ignore[union-attr, attr-defined]


def saved_tensors_elsewhere(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            loss = loss_of(wrapped(run.batch(step)))
        loss.backward()
        optimizer.step()
    run.end(model, optimizer)


def saved_tensors_packed(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    packed: list[int] = []

    def pack(x: Tensor) -> Tensor:
        packed.append(x.numel())
        return x.clone()

    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = loss_of(wrapped(run.batch(step)))
        loss.backward()
        optimizer.step()
    run.see("packed", packed)
    run.end(model, optimizer)


def several_losses(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        outputs = wrapped(run.batch(step))
        torch.autograd.backward([loss_of(outputs), outputs.abs().mean()])
        optimizer.step()
    run.end(model, optimizer)


def _fused(run: Run, make: Any) -> None:
    for _ in trained(run, optimize=make):
        pass


def fused_adamw(run: Run) -> None:
    _fused(run, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True))


def fused_sgd(run: Run) -> None:
    _fused(run, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, fused=True))


def fused_with_a_scaler(run: Run) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    wrapped = run.wrap(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = run.batch(step)
        if step == 3 and run.rank == 1:
            inputs = inputs * torch.inf
        scaler.scale(loss_of(wrapped(inputs))).backward()
        scaler.step(optimizer)
        scaler.update()
        run.see("scale", scaler.get_scale())
    run.end(model, optimizer)


class Trust(torch.optim.Optimizer):
    """LARS: rates by the norms of weights and gradients, with state under a name."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.state["all"]["steps"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["all"]["steps"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    ratio = parameter.norm() / (parameter.grad.norm() + 1e-3)
                    parameter.add_(parameter.grad, alpha=float(-group["lr"] * ratio))


def an_optimizer_of_ones_own(run: Run) -> None:
    for _, _, optimizer, _ in trained(run, optimize=lambda m: Trust(m.parameters(), 0.1)):
        run.see("steps", optimizer.state["all"]["steps"])


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)


def other_defaults(run: Run) -> None:
    with _settings():
        model = net()
        optimizer = adamw(model)
        wrapped = run.wrap(model, optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step).double())).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        run.end(model, optimizer)


def _report(queue: Any, weights: list[Any]) -> None:
    queue.put([float(weight.sum()) for weight in weights])


@_may_have_children()
def sent_to_another_process(run: Run) -> None:
    context = multiprocessing.get_context("fork")
    for _, model, _, step in trained(run):
        if step == 3 and run.rank == 0:
            queue = context.SimpleQueue()
            weights = [weight.numpy() for weight in model.state_dict().values()]
            child = context.Process(target=_report, args=(queue, weights))
            child.start()
            run.see("sums", queue.get())
            child.join()


PROGRAMS: list[Program] = [
    workers_load_data,
    a_forked_child_saves,
    weights_in_shared_memory,
    shared_midway,
    a_signal_saves,
    a_signal_saves_while_ranks_wait,
    optimizer_of_shards,
    pickled,
    forward_is_called,
    inside_another_module,
    collectives_in_forward,
    collectives_between,
    parameters_of_a_class,
    parameters_that_see,
    parameters_with_attributes,
    saved_tensors_elsewhere,
    saved_tensors_packed,
    several_losses,
    fused_adamw,
    fused_sgd,
    fused_with_a_scaler,
    an_optimizer_of_ones_own,
    other_defaults,
    sent_to_another_process,
]
