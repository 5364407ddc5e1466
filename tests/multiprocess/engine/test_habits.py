"""What else torch does around a training step: precision, recomputation, compilation, copies."""

from __future__ import annotations

import copy
import io
import pickle
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.utils.checkpoint import checkpoint

from syncopate.engine.distribute import distribute
from syncopate.errors import EngineError
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    Pair,
    average,
    buffers_of_a_forward,
    data,
    identical_everywhere,
    mlp,
    plan_of,
    run_cases,
)
from tests.multiprocess.harness import run_ranks


def _mixed_precision(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[3, 3])
    scalers = {id(pair.model): torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)}
    scalers[id(pair.reference)] = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for step in range(5):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            scaler = scalers[id(model)]
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(data(rank, step, 4, 8)).float().square().mean()
            if step == 2 and rank == 1:
                loss = loss * float("inf")  # one rank overflows, every rank must skip
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

        pair.run(train)
        if step != 2:
            pair.check(tolerance=1e-4)
    own, theirs = scalers.values()
    assert own.get_scale() == theirs.get_scale()
    pair.close()


def _checkpointing(rank: int) -> None:
    class Blocks(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.reentrant = reentrant

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant).relu()
            return x

    for reentrant in (False, True):
        pair = Pair(rank, partial(Blocks, reentrant), sizes=[1, 3, 2])

        def train(model: Any, optimizer: Any) -> None:
            optimizer.zero_grad()
            model(data(rank, 0, 4, 8).requires_grad_()).square().mean().backward()
            optimizer.step()

        for _ in range(2):
            pair.run(train)
            pair.check()
        pair.close()
    # The whole model recomputed inside backward is no new forward.
    pair = Pair(rank, mlp, sizes=[6])
    plain = copy.deepcopy(pair.model)
    for model in (pair.model, plain):
        checkpoint(model, data(rank, 0, 4, 8), use_reentrant=False).square().mean().backward()
    for parameter, gradient in zip(
        pair.model.parameters(), average(p.grad for p in plain.parameters()), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)
    pair.close()


def _gradient_penalty(rank: int) -> None:
    pair = Pair(rank, lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    model = pair.model
    plain = copy.deepcopy(model)
    for network in (model, plain):
        inputs = data(rank, 0, 4, 8).requires_grad_()
        score = network(inputs).sum()
        (slope,) = torch.autograd.grad(score, inputs, create_graph=True)
        (score + slope.square().sum()).backward()
    for parameter, own in zip(model.parameters(), plain.parameters(), strict=True):
        if own.grad is not None:
            torch.testing.assert_close(parameter.grad, average([own.grad])[0])
    pair.close()


class _Net(nn.Module):
    """Its own forward: torch.compile passes over torch's own containers when they come first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _compiled(rank: int) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    def in_place(model: Any) -> Any:
        model.compile(backend=backend)
        return model

    def first(model: Any) -> Any:
        model.syncopate.detach()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_of(compiled, dist.get_world_size(), [2, 4])
        return distribute(compiled, optimizer, plan=plan, timeout_s=TIMEOUT_S)[0]

    for compiled in (lambda model: torch.compile(model, backend=backend), in_place, first):
        pair = Pair(rank, _Net, sizes=[2, 4])
        wrapped = compiled(pair.model)
        distributed = wrapped if compiled is first else pair.model
        for step in range(2):
            for model, optimizer in (
                (wrapped, pair.optimizer),
                (pair.reference, pair.reference_optimizer),
            ):
                optimizer.zero_grad()
                model(data(rank, step, 4, 8)).square().mean().backward()
                optimizer.step()
            pair.check(buffers=False)
            identical_everywhere(buffers_of_a_forward(distributed))
        assert graphs
        graphs.clear()
        distributed.syncopate.detach()
        torch._dynamo.reset()


def _still_the_same_module(rank: int) -> None:
    pair = Pair(rank, mlp)
    model = pair.model
    assert isinstance(model, nn.Sequential)
    keys = list(mlp().state_dict())
    assert list(model.state_dict()) == keys
    model(data(rank, 0, 4, 8)).sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is nn.Sequential
        assert list(twin.state_dict()) == keys
        twin(data(rank, 0, 4, 8)).sum().backward()  # on its own, nobody waits
    model.syncopate.detach()
    assert type(model) is nn.Sequential
    assert not hasattr(model, "syncopate")
    model.zero_grad()
    if rank == 0:
        model(data(rank, 0, 4, 8)).sum().backward()
        assert model[0].weight.grad is not None


class _Saved(_Net):
    """What libraries of models do with a model's class: name it, build another, copy it by hand."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width

    def save_pretrained(self) -> dict[str, Any]:
        own = self.__class__
        return {"architectures": [own.__name__], "module": own.__module__, "width": self.width}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        for key, value in self.__dict__.items():
            twin.__dict__[key] = copy.deepcopy(value, memo)
        return twin


class _Crowded(nn.Module):
    """Its own names, which are also those of what ``distribute`` adds."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(8, 4)

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.module(x), self.module(x))


def _users_own_class(rank: int) -> None:
    pair = Pair(rank, _Saved)
    model = pair.model
    keys = list(model.state_dict())
    assert model.module is model.module.module
    assert isinstance(model.module, _Saved)
    assert type(copy.deepcopy(model.module)) is _Saved
    assert list(model.module.state_dict()) == keys
    cls = type(model)
    assert (cls.__name__, cls.__qualname__, cls.__module__) == ("_Saved", "_Saved", __name__)
    assert cls.__doc__ == _Saved.__doc__
    assert model.save_pretrained() == {
        "architectures": ["_Saved"],
        "module": __name__,
        "width": 8,
    }
    assert str(model).startswith("_Saved(")
    other = cls(5)
    assert type(other) is _Saved
    assert other.width == 5
    assert isinstance(other, cls)
    assert issubclass(_Saved, cls)
    batch = data(rank, 0, 4, 8)
    if rank == 0:  # alone: nobody waits for the others
        assert type(copy.copy(model)) is _Saved
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(copied) is _Saved
            copied(batch).sum().backward()
        saved = io.BytesIO()
        torch.save(model, saved)
        assert b"syncopate.engine" not in saved.getvalue()
        scripted = torch.jit.script(model)
        assert scripted.original_name == "_Saved"
        traced = torch.jit.trace(model, batch)
        exported = [
            torch.export.export(model, (batch,), strict=strict).module() for strict in (False, True)
        ]
        expected = copy.deepcopy(model)(batch)
        for made in (scripted, traced, *exported):
            assert torch.equal(made(batch), expected)
    with pytest.raises(EngineError, match=r"bf16_compress_hook.*wire_dtype='bfloat16'.*narrow.md"):
        model.register_comm_hook(None, bf16_compress_hook)
    pair.close()
    # What the model has under a name that distribute offers is the model's.
    pair = Pair(rank, _Crowded)
    assert type(pair.model.module) is nn.Linear
    pair.model(batch).sum().backward()
    identical_everywhere([pair.model.module.weight.grad])
    pair.close()


CASES = (
    _users_own_class,
    _mixed_precision,
    _checkpointing,
    _gradient_penalty,
    _compiled,
    _still_the_same_module,
)


def _every_case(rank: int, world_size: int) -> None:
    run_cases(CASES, rank)


def test_every_habit_of_torch_is_understood() -> None:
    run_ranks(_every_case, 2)
