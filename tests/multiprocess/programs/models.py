"""Models of every kind: frozen, shared, conditional, tiny, mixed, with buffers, called oddly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

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
)


def _trained_on(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int], Any],
    **options: Any,
) -> None:
    """Train ``model`` on batches, and note everything at the end."""
    wrapped = run.wrap(model, optimizer, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def frozen_from_the_start(run: Run) -> None:
    model = net()
    model[0].requires_grad_(False)
    _trained_on(run, model, adamw(model), run.batch)


def frozen_for_a_while(run: Run) -> None:
    """Frozen behind DDP's back: its gradient is None, and its weights stay."""
    wrapped, model, optimizer = begun(run, net(), adamw, unused=True)
    for step in range(STEPS):
        model[0].requires_grad_(step not in (2, 3))
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        run.see("none", model[0].weight.grad is None)
        optimizer.step()
    run.end(model, optimizer)


def unused_in_all_ranks(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: Tensor, step: int) -> Tensor:
            return self.used(x) + (self.idle(x) if step % 3 == 2 else 0)

    wrapped, model, optimizer = begun(run, Model(), adamw, unused=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step), step)).backward()
        run.see("idle", model.idle.weight.grad)
        optimizer.step()
    run.end(model, optimizer)


class Branches(nn.Module):
    """Takes one of several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor, way: int) -> Tensor:
        last: Tensor = self.last(self.ways[way](x).relu())
        return last


def other_ways_on_other_ranks(run: Run) -> None:
    wrapped, model, optimizer = begun(run, Branches(), sgd, unused=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step), (step + run.rank) % 3)).backward()
        run.see("none", [p.grad is None for p in model.parameters()])
        optimizer.step()
    run.end(model, optimizer)


def other_ways_with_gradients_kept(run: Run) -> None:
    """Gradients are zeroed in place: a branch not reached keeps zeros, and momentum moves it."""
    wrapped, model, optimizer = begun(run, Branches(), sgd, unused=True)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(wrapped(run.batch(step), 0 if step < 3 else (run.rank + step) % 2)).backward()
        optimizer.step()
    run.end(model, optimizer)


def tied_weights(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.middle = nn.Linear(8, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.middle(self.embed(x)).tanh())
            return found

    model = Model()
    _trained_on(run, model, adamw(model), lambda step: torch.arange(5) + (step + run.rank) % 4)
    run.see("tied", model.head.weight is model.embed.weight)


def normalised_by_batch(run: Run) -> None:
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for step in stepped(run, wrapped, optimizer):
        if run.rank == 0 and step == 2:
            model[1].running_mean.add_(1.0)
        if run.rank == 1 and step == 3:
            model[1].running_var.mul_(2.0)
    wrapped(run.batch(9))
    run.end(model, optimizer)


def buffers_of_their_own(run: Run) -> None:
    model = normalised()
    _trained_on(run, model, sgd(model), run.batch, broadcast_buffers=False)


def called_twice(run: Run) -> None:
    """Siamese: two calls, one loss. DDP asks for one call, so the two go through one forward."""

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            found: Tensor = self.net(one) - self.net(other)
            return found

    wrapped, model, optimizer = begun(run, Twin())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step), run.batch(step + 50))).backward()
        optimizer.step()
    run.end(model, optimizer)


def layers_called_alone(run: Run) -> None:
    """A layer is used outside of the model, with and without gradients."""
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        run.see("layer", model[0](run.batch(99)))
        run.see("by hand", run.batch(99) @ model[0].weight.t() + model[0].bias)
        run.see("functional", nn.functional.linear(run.batch(99), model[0].weight))
    run.end(model, optimizer)


def penalty_beside_the_outputs(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        (loss_of(wrapped(run.batch(step))) + 0.01 * penalty).backward()
        optimizer.step()
    run.end(model, optimizer)


def outputs_in_a_dictionary(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> dict[str, Any]:
            hidden = self.body(x).tanh()
            return {"one": self.one(hidden), "more": [self.other(hidden), hidden]}

    wrapped, model, optimizer = begun(run, Model())
    for step in range(STEPS):
        optimizer.zero_grad()
        found = wrapped(run.batch(step))
        (loss_of(found["one"]) + loss_of(found["more"][0])).backward()
        optimizer.step()
    run.end(model, optimizer)


class One(nn.Module):
    """One parameter of any shape."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (x.mean().to(self.weight.dtype) * self.weight).sum()


def one_scalar(run: Run) -> None:
    model = One()
    _trained_on(run, model, adamw(model), run.batch)


def one_element(run: Run) -> None:
    model = One(1, 1)
    _trained_on(run, model, sgd(model), run.batch)


def no_element(run: Run) -> None:
    model = nn.ModuleDict({"none": One(0, 3), "some": One(3)})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["none"](x) + self.parts["some"](x)

    both = Both()
    _trained_on(run, both, adamw(both), run.batch)


def many_scalars(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList(torch.tensor(float(n)) for n in range(5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([scale * x.mean() for scale in self.scales])

    model = Model()
    _trained_on(run, model, sgd(model, lr=0.01), run.batch)


def of_two_dtypes(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(8, 8).double(), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.narrow(self.wide(x.double()).float())
            return found

    model = Model()
    optimizer = adamw(model)
    _trained_on(run, model, optimizer, run.batch)


def of_double(run: Run) -> None:
    model = net().double()
    _trained_on(run, model, adamw(model), lambda step: run.batch(step).double())


def of_bfloat16(run: Run) -> None:
    model = net().bfloat16()
    _trained_on(run, model, sgd(model), lambda step: run.batch(step).bfloat16())


def of_complex_numbers(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64))
            self.shift = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.turn).abs() + self.shift

    model = Model()
    _trained_on(run, model, adamw(model), run.batch)


def channels_last(run: Run) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _trained_on(run, model, sgd(model), lambda step: run.batch(step, 2, 2, 8, 8))


def transposed_parameters(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8).t())
            self.strided = nn.Parameter(torch.randn(8)[::2])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + self.strided

    model = Model()
    _trained_on(run, model, adamw(model), run.batch)


def weight_norm(run: Run) -> None:
    wrapped, model, optimizer = begun(
        run,
        nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 4)),
    )
    for _ in stepped(run, wrapped, optimizer):
        run.see("weight", model[0].weight)
        with parametrize.cached():
            run.see("cached", model[0].weight)
    run.end(model, optimizer)


def spectral_norm(run: Run) -> None:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 4))
    _trained_on(run, model, sgd(model), run.batch)


def recurrent(run: Run) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(4, 6, 2), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.cell(x)[0])
            return found

    model = Model()
    _trained_on(run, model, adamw(model), lambda step: run.batch(step, 5, 3, 4))


def attention(run: Run) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    _trained_on(run, model, sgd(model), lambda step: run.batch(step, 2, 5, 8))


def dropout(run: Run) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    _trained_on(run, model, adamw(model), run.batch)


class Recomputed(nn.Module):
    """Computes its layers again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant).tanh()
        return x


def recomputed(run: Run) -> None:
    model = Recomputed(False)
    _trained_on(run, model, adamw(model), run.batch)


def recomputed_reentrant(run: Run) -> None:
    model = Recomputed(True)
    _trained_on(run, model, adamw(model), lambda step: run.batch(step).requires_grad_())


def embedding_bag(run: Run) -> None:
    model = nn.Sequential(nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 4))
    _trained_on(
        run,
        model,
        adamw(model),
        lambda step: (torch.arange(12) * (run.rank + step) % 20).view(3, 4),
    )


PROGRAMS: list[Program] = [
    frozen_from_the_start,
    frozen_for_a_while,
    unused_in_all_ranks,
    other_ways_on_other_ranks,
    other_ways_with_gradients_kept,
    tied_weights,
    normalised_by_batch,
    buffers_of_their_own,
    called_twice,
    layers_called_alone,
    penalty_beside_the_outputs,
    outputs_in_a_dictionary,
    one_scalar,
    one_element,
    no_element,
    many_scalars,
    of_two_dtypes,
    of_double,
    of_bfloat16,
    of_complex_numbers,
    channels_last,
    transposed_parameters,
    weight_norm,
    spectral_norm,
    recurrent,
    attention,
    dropout,
    recomputed,
    recomputed_reentrant,
    embedding_bag,
]
