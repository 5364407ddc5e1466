"""A read of weights between a step and the next forward is one of those of the step."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.flat_weights import FlatWeights
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of, run_cases
from tests.multiprocess.exchange.cases import (
    OWNED,
    Odd,
    Run,
    batch,
    both,
    launches,
    sgd,
    squares,
    watched,
)
from tests.multiprocess.harness import run_ranks


def saved(model: Any) -> list[Tensor]:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return list(torch.load(file).values())


def evaluated(model: Any) -> list[Tensor]:
    model.eval()
    with torch.no_grad():
        found = model(batch(0, 99, 4, 5))
    model.train()
    return [found]


def functional(model: Any) -> list[Tensor]:
    with torch.no_grad():
        named = dict(model.named_parameters())
        return [torch.func.functional_call(model, named, batch(0, 1, 4, 5))]


def averaged(model: Any) -> list[Tensor]:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(model)
    return list(average.module.parameters())


def ready(model: Any) -> list[Tensor]:
    """What no parameter is asked for, seen after ``ready()``: the memory itself."""
    if not hasattr(model, "syncopate"):
        return [parameter.data for parameter in model.parameters()]
    model.syncopate.ready()
    layout = model.syncopate.readiness.exchange.layout
    places = map(layout.shared(FlatWeights).view, range(len(layout.trainables)))
    return [place.clone() for place in places]


READS: dict[str, Callable[[Any], list[Any]]] = {
    "state_dict": lambda model: list(model.state_dict().values()),
    "parameters": lambda model: [parameter * 1 for parameter in model.parameters()],
    "detach": lambda model: [p.detach().clone() for p in reversed(list(model.parameters()))],
    "data": lambda model: [p.data.clone() for p in model.parameters()],
    "deepcopy": lambda model: list(copy.deepcopy(model).parameters()),
    "deepcopy of one": lambda model: [copy.deepcopy(p) for p in model.parameters()],
    "pickle": lambda model: list(pickle.loads(pickle.dumps(model)).parameters()),
    "pickle of one": lambda model: [pickle.loads(pickle.dumps(p)) for p in model.parameters()],
    "torch.save": saved,
    "eval": evaluated,
    "average": averaged,
    "numpy": lambda model: [torch.tensor(p.detach().numpy()) for p in model.parameters()],
    "tolist": lambda model: [torch.tensor(p.tolist()) for p in model.parameters()],
    "item": lambda model: [torch.tensor([model.gain.item()])],
    "vector": lambda model: [nn.utils.parameters_to_vector(model.parameters())],
    "functional": functional,
    "dlpack": lambda model: [torch.from_dlpack(p.detach()).clone() for p in model.parameters()],
    "ready": ready,
}


class Held:
    """A communicator whose collectives are waited for no sooner than it is told.

    What is on its way is written only by a wait: a read without one has old values.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def run(self, recipe: Any, tensor: Tensor, **options: Any) -> Any:
        if recipe.collective not in ("all_gather", "broadcast") or not options.get("async_op"):
            return self._communicator.run(recipe, tensor, **options)
        travelling = tensor.clone()
        handle = self._communicator.run(recipe, travelling, **options)

        class Late:
            done = False

            def wait(self) -> None:
                handle.wait()
                if not self.done:
                    self.done = True
                    tensor.copy_(travelling)

        return Late()


def reads(rank: int, world_size: int) -> None:
    for exchange in OWNED:
        torch.manual_seed(7)
        model: Any = Odd()
        alone: Any = copy.deepcopy(model)
        model, optimizer = distribute(
            model,
            sgd(model.parameters()),
            plan=plan_of(model, world_size, exchange=exchange),
            timeout_s=TIMEOUT_S,
        )
        layout = model.syncopate.readiness.exchange.layout
        layout.communicator = Held(layout.communicator)
        reference = sgd(alone.parameters())
        for step, (name, read) in enumerate(READS.items()):
            for trained, made, ranks in (
                (model, optimizer, [rank]),
                (alone, reference, range(world_size)),
            ):
                made.zero_grad()
                (sum(squares(step)(trained, r) for r in ranks) / len(ranks)).backward()
                made.step()
            # Only some ranks read, so that a read which launched anything would hang.
            if step % world_size != rank:
                continue
            for found, expected in zip(read(model), read(copy.deepcopy(alone)), strict=True):
                # A copy is never on its way.
                assert type(found) in (Tensor, nn.Parameter), name
                torch.testing.assert_close(
                    found, expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )
        identical_everywhere(model.parameters())
        model.syncopate.detach()


def test_reads_are_current() -> None:
    run_ranks(reads, 2)


# -- what a graph remembers -----------------------------------------------------------------------


def kept_graph(rank: int, world_size: int) -> None:
    """A graph of before the step cannot be run backward after it, as anywhere in torch."""

    def script(run: Run) -> None:
        run.backward(squares(0))
        loss = run.loss(squares(1))
        run.optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    for exchange in OWNED:
        for sizes in (None, [6]):
            both(rank, world_size, script, exchange=exchange, sizes=sizes)


# -- buffers --------------------------------------------------------------------------------------


class Normed(nn.Module):
    """Batch normalisation, a counter and a large table; notes what each forward begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
        self.register_buffer("table", torch.zeros(300_000))
        self.begins: list[list[Tensor]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.begins.append([b.clone() for b in self.body.buffers()] + [self.table[:2].clone()])
            self.table[0] += inputs.detach().sum()
        return self.body(inputs)


def buffers(rank: int, world_size: int) -> None:
    """Every training forward begins with rank 0's buffers, and launches nothing."""
    for exchange in OWNED:
        torch.manual_seed(7 + rank)
        model: Any = Normed()
        model, optimizer = distribute(
            model,
            sgd(model.parameters()),
            plan=plan_of(model, world_size, exchange=exchange),
            timeout_s=TIMEOUT_S,
        )
        expected = copy.deepcopy(model) if rank == 0 else None
        for step in range(4):
            with watched(model) as events:
                output = model(batch(rank, step, 4, 5))
            assert launches(events) == []
            identical_everywhere(model.begins[-1])
            if expected is not None:
                expected(batch(rank, step, 4, 5))
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                # One rank evaluates and saves alone, in either mode.
                with watched(model) as events, torch.no_grad():
                    model.eval()
                    model(batch(rank, 50, 4, 5))
                    saved(model)
                    model.train()
                assert launches(events) == []
            if rank == 1 and step == 2:
                model.body[1].reset_running_stats()
        if expected is not None:
            found = torch.stack([begin[-1] for begin in model.begins])
            assert torch.equal(found, torch.stack([begin[-1] for begin in expected.begins]))
            assert len({tuple(row) for row in found.tolist()}) == 4
        model.syncopate.detach()


# -- compiled models ------------------------------------------------------------------------------


def whole(model: Any, backend: str) -> Any:
    return torch.compile(model, backend=backend)


def in_place(model: Any, backend: str) -> Any:
    model.compile(backend=backend)
    return model


def a_layer(model: Any, backend: str) -> Any:
    model.first.compile(backend=backend)
    return model


def a_function(model: Any, backend: str) -> Any:
    return torch.compile(lambda inputs: model(inputs) * 1, backend=backend)


def layers_alone(model: Any, backend: str) -> Any:
    return torch.compile(lambda inputs: model.last(model.first(inputs)), backend=backend)


def compiled(rank: int, world_size: int) -> None:
    ways = (whole, in_place, a_layer, a_function, layers_alone)
    for exchange in OWNED:
        # What is on its way looks the same to a compiler in every exchange.
        for compile_it in ways if exchange == "sharded" else (whole, layers_alone):
            backend = "eager" if compile_it is whole else "aot_eager"
            torch._dynamo.reset()
            graphs: list[int] = []
            both(
                rank,
                world_size,
                partial(compiled_steps, compile_it, backend, graphs),
                exchange=exchange,
            )
            # Compiled once more where weights were first found on their way, and never again.
            assert graphs[2] == graphs[-1] < 12, (compile_it, graphs)


def compiled_steps(compile_it: Any, backend: str, graphs: list[int], run: Run) -> None:
    call = compile_it(run.model, backend) if run.spread else run.model
    if compile_it is layers_alone and not run.spread:
        call = lambda inputs: run.model.last(run.model.first(inputs))  # noqa: E731
    counters.clear()
    for step in range(6):
        run.optimizer.zero_grad()
        run.backward(lambda _, rank, step=step: call(batch(rank, step, 4, 5)).square().mean())
        run.optimizer.step()
        if run.spread:
            graphs.append(counters["stats"]["unique_graphs"])


def the_rest(rank: int, world_size: int) -> None:
    run_cases((kept_graph, buffers, compiled), rank, world_size)


def test_graphs_buffers_and_compiled_code() -> None:
    run_ranks(the_rest, 2)
