"""Programs with models and tensors that are seldom: odd outputs, buffers, parameters, changes."""

from __future__ import annotations

import copy
import threading
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.multiprocess.engine.cases import data
from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    adamw,
    begun,
    loss_of,
    net,
    normalised,
    sgd,
    stepped,
    train,
)


class _Around(nn.Module):
    """A net, and beside it what a test is about."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


@dataclass
class _Found:
    """What a model returns."""

    loss: Tensor
    hidden: dict[str, Any]
    name: str = "found"


_Pair = namedtuple("_Pair", ["first", "rest"])


def outputs_in_records(run: Run) -> None:
    """Inputs by keyword, in records; outputs in a dataclass, a named tuple, and nothing."""

    class Model(_Around):
        def forward(self, *, batch: dict[str, Any], scale: float | None = None) -> Any:
            hidden = self.layers(batch["x"] * (scale or 1.0))
            if batch["step"] % 3 == 0:
                return _Found(hidden.square().mean(), {"hidden": [hidden, None]})
            return _Pair(hidden.square().mean(), (hidden, {"a": None}))

    wrapped, model, optimizer = begun(run, Model())
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = {"x": run.batch(step), "step": step, "none": None}
        found = wrapped(batch=batch, scale=2.0 if step % 2 else None)
        (found.loss if isinstance(found, _Found) else found.first).backward()
        optimizer.step()
    run.end(model, optimizer)


def frozen_of_every_dtype(run: Run) -> None:
    """Frozen parameters and buffers of types that no gradient has, as far as Gloo takes them."""
    model = _Around()
    for place, dtype in enumerate(
        (torch.int64, torch.int32, torch.int8, torch.uint8, torch.float16)
    ):
        values = torch.arange(5).add(run.rank + place).to(dtype)
        model.register_parameter(f"frozen{place}", nn.Parameter(values, requires_grad=False))
        model.register_buffer(f"kept{place}", values.clone())
    model.register_buffer("empty", torch.zeros(0, 3))
    model.register_buffer("scalar", torch.tensor(float(run.rank)))
    model.register_buffer("nothing", None)
    optimizer = adamw(model.layers)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def buffers_of_odd_strides(run: Run) -> None:
    """Buffers that are views: transposed, with gaps, of one memory."""
    model = _Around()
    model.register_buffer("turned", torch.arange(6.0).add(run.rank).view(2, 3).t())
    model.register_buffer("gaps", torch.arange(6.0).add(run.rank)[::2])
    base = torch.arange(6.0).add(run.rank)
    model.register_buffer("left", base[:4])
    model.register_buffer("right", base[2:])
    wrapped, _, optimizer = begun(run, model)
    for step in stepped(run, wrapped, optimizer):
        if run.rank == 0 and step == 2:
            model.turned.add_(1.0)
            model.left.add_(1.0)
    wrapped(run.batch(9))
    run.end(model, optimizer)


def buffer_of_a_parameters_memory(run: Run) -> None:
    model = _Around()
    model.register_buffer("shown", model.layers[0].weight.data)
    wrapped, _, optimizer = begun(run, model, sgd)
    for _ in stepped(run, wrapped, optimizer):
        run.see("shown", model.shown)
    run.end(model, optimizer)


def buffer_with_a_gradient(run: Run) -> None:
    """A buffer is trained, by hand."""
    model = _Around()
    model.register_buffer("shift", torch.zeros(4, requires_grad=True))
    wrapped, _, optimizer = begun(run, model, lambda m: sgd(m.layers))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step)) + model.shift).backward()
        optimizer.step()
    run.see("own", model.shift.grad)
    run.end(model, optimizer)


def an_empty_group(run: Run) -> None:
    model = net()
    groups = [{"params": []}, {"params": list(model.parameters())}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    train(run, run.wrap(model, optimizer), optimizer)
    run.end(model, optimizer)


def copied_shallowly(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        twin = copy.copy(model)
        run.see("twin", twin(run.batch(99)).detach() if step % 2 == 0 else None)
        run.see("class", type(twin).__name__)
    run.end(model, optimizer)


def two_forwards_at_once(run: Run) -> None:
    """Two threads call the model without gradients, while a third trains."""
    wrapped, model, optimizer = begun(run, normalised(), sgd, broadcast_buffers=False)
    model.eval()
    found: list[Tensor] = []

    def evaluate() -> None:
        with torch.no_grad():
            found.append(model(run.batch(99)))

    for _ in stepped(run, wrapped, optimizer):
        found.clear()
        threads = [threading.Thread(target=evaluate) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.see("found", found)
    run.end(model, optimizer)


def scripted_as_a_whole(run: Run) -> None:
    model = torch.jit.script(net())
    wrapped, _, optimizer = begun(run, model, sgd)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def another_memory_format_midway(run: Run) -> None:
    """Convolutions go over to channels last, and back. DDP's gradients are wrong from there."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3))

    if run.by_ddp:
        run.see("averaged", [True] * STEPS)
        return
    wrapped, model, optimizer = begun(run, build())
    alone = build()
    reference, found = adamw(alone), []
    for step in range(STEPS):
        if step in (2, 4):
            form = torch.channels_last if step == 2 else torch.contiguous_format
            model.to(memory_format=form)  # type: ignore[call-overload]
        optimizer.zero_grad()
        reference.zero_grad()
        loss_of(wrapped(run.batch(step, 2, 2, 8, 8))).backward()
        for rank in range(run.ranks):
            (loss_of(alone(data(rank, step, 2, 2, 8, 8))) / run.ranks).backward()
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        found.append(all(torch.allclose(p.grad, q.grad, 1e-4, 1e-6) for p, q in pairs))
        optimizer.step()
        reference.step()
    run.see("averaged", found)


class Rows(nn.Module):
    """Embeddings with sparse gradients, one of them shared, one a bag; words differ by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 8, sparse=True, padding_idx=0)
        self.again = nn.Embedding(40, 8, sparse=True)
        self.again.weight = self.words.weight
        self.bag = nn.EmbeddingBag(9, 8, mode="sum", sparse=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, *, bag: bool = True) -> Tensor:
        found = self.words(x) + self.again(x.flip(0))
        found = found + self.bag(x.view(1, -1) % 9) if bag else found
        outputs: Tensor = self.head(found.tanh())
        return outputs


def _words(run: Run, step: int) -> Tensor:
    return (torch.arange(6) * (step + 1) + 7 * run.rank) % 40


def _of_rows(model: nn.Module) -> tuple[list[torch.optim.Optimizer], list[nn.Parameter]]:
    weights = [model.words.weight, model.bag.weight]
    # The default eps makes 1e-5 of the last bit of a small gradient; ranks beyond two round it.
    return [torch.optim.SparseAdam(weights, lr=0.1, eps=1e-3), adamw(model.head)], weights


def sparse_rows(run: Run) -> None:
    model = Rows()
    optimizers, weights = _of_rows(model)
    wrapped = run.wrap(model, *optimizers)
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad(set_to_none=step % 2 == 0)
        loss_of(wrapped(_words(run, step))).backward()
        run.see("rows", [weight.grad for weight in weights])
        for each in optimizers:
            each.step()
    run.end(model, *optimizers)


def sparse_rows_accumulate(run: Run) -> None:
    """Without synchronisation, and with it, into gradients that are there."""
    model = Rows()
    optimizers, weights = _of_rows(model)
    wrapped = run.wrap(model, *optimizers)
    for step in range(STEPS):
        with wrapped.no_sync():
            loss_of(wrapped(_words(run, step))).backward()
        for part in range(2):
            loss_of(wrapped(_words(run, step + part + 1))).backward()
        run.see("rows", [weight.grad for weight in weights])
        for each in optimizers:
            each.step()
            each.zero_grad()
    run.end(model, *optimizers)


def sparse_rows_of_one_optimizer(run: Run) -> None:
    """One optimizer trains rows and dense weights; a copy evaluates, and a state is loaded."""
    model = Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(_words(run, step))).backward()
        optimizer.step()
        if step == 2:
            model.load_state_dict(copy.deepcopy(model.state_dict()))
        run.see("evaluated", copy.deepcopy(model)(_words(run, 0)))
    run.end(model)


PROGRAMS: list[Program] = [
    outputs_in_records,
    frozen_of_every_dtype,
    buffers_of_odd_strides,
    buffer_of_a_parameters_memory,
    buffer_with_a_gradient,
    an_empty_group,
    copied_shallowly,
    two_forwards_at_once,
    scripted_as_a_whole,
    another_memory_format_midway,
    sparse_rows,
    sparse_rows_accumulate,
    sparse_rows_of_one_optimizer,
]
