"""Every training forward begins with rank 0's buffers, whatever became of them since the last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver
from torch.nn.utils import prune

from syncopate.artifacts.plan import ALLREDUCE, SHARDED
from syncopate.engine.distribute import distribute
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    Pair,
    buffers_of_a_forward,
    data,
    identical_everywhere,
    mlp,
    plan_of,
    run_cases,
)
from tests.multiprocess.harness import run_ranks


class _Witness(nn.Module):
    """Notes what its buffers are when a forward begins, before it changes them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("table", torch.arange(400_000, dtype=torch.float64))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.register_buffer("later", None)
        self.seen: dict[str, Tensor | None] = {}
        self.change: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = {
            f"{prefix}.{key}": None if tensor is None else tensor.detach().clone()
            for prefix, module in self.named_modules()
            for key, tensor in module._buffers.items()
        }
        self.change()
        return self.body(x)


def _trained(model: nn.Module, **options: Any) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(dist.get_rank())
    plan = plan_of(model, dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S, **options)


def _step(model: Any, optimizer: Any, rank: int, step: int) -> None:
    model.train()
    optimizer.zero_grad()
    model(data(rank, step, 4, 8)).square().mean().backward()
    optimizer.step()


def _seen_alike(model: Any, expected: dict[str, Any] | None = None) -> None:
    """All ranks began their last forward with the same buffers, and rank 0 with ``expected``."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, model.seen)
    for other in everyone:
        assert other.keys() == everyone[0].keys()
        for name, tensor in other.items():
            first = everyone[0][name]
            assert (tensor is None) == (first is None), name
            assert tensor is None or torch.equal(tensor, first), name
    for name, value in (expected or {}).items():
        assert everyone[0][name].tolist() == value, name


def _own_until_a_forward(rank: int) -> None:
    """Behind a step every rank has its own buffers, and an evaluation begins with rank 0's."""
    model, optimizer = _trained(_Witness())
    for step in range(3):
        _step(model, optimizer, rank, step)
        means: list[Any] = [None] * 2
        dist.all_gather_object(means, model.body[1].running_mean)
        assert not torch.equal(*means)
        if step == 1:
            with torch.no_grad():
                model.eval()(data(rank, 60, 4, 8))
            assert torch.equal(model.body[1].running_mean, means[0])
    model.syncopate.detach()


def _written(rank: int) -> None:
    model, optimizer = _trained(_Witness())
    norm = model.body[1]
    step = 0
    for writers in ({0}, {1}, {0, 1}):
        for write in (
            lambda: norm.running_mean.fill_(3.0 + rank),
            lambda: norm.running_var.data.mul_(2.0 + rank),
            norm.reset_running_stats,
            lambda: model.steps.data.add_(1 + rank),
            lambda: model.table.data[7:9].sub_(rank + 1),
            lambda: setattr(model, "hidden", torch.full((3,), 4.0 + rank)),
            # A look at the data in training mode, which only some ranks take.
            lambda: model.body(data(rank, 50, 4, 8)),
        ):
            _step(model, optimizer, rank, step)
            values = {f"body.1.{key}": value for key, value in norm._buffers.items()}
            before = {name: value.clone() for name, value in values.items()}
            if rank in writers:
                with torch.no_grad():
                    write()
            own = {f"body.1.{key}": value.tolist() for key, value in norm._buffers.items()}
            _step(model, optimizer, rank, step + 1)
            if 0 in writers:
                _seen_alike(model, own if rank == 0 else None)
            else:
                kept = {name: value.tolist() for name, value in before.items()}
                _seen_alike(model, kept if rank == 0 else None)
            step += 2
    model.syncopate.detach()


def _after_no_sync(rank: int) -> None:
    model, optimizer = _trained(_Witness())
    _step(model, optimizer, rank, 0)
    for step in range(1, 3):
        optimizer.zero_grad()
        with model.no_sync():
            # As many micro-batches as each rank likes: nothing is exchanged here.
            for micro in range(step * rank + step - 1):
                model(data(rank, 10 * step + micro, 4, 8)).square().mean().backward()
        own = model.body[1].running_mean.tolist()
        _step(model, optimizer, rank, 10 * step + 9)
        # A rank that has accumulated goes on with its own; one that has not begins with rank 0's.
        assert model.seen["body.1.running_mean"].tolist() == own
        # A forward without a backward, and what begins after it.
        model(data(rank, step, 4, 8))
        own = model.body[1].running_mean.tolist()
        model(data(rank, step, 4, 8)).sum().backward()
        _seen_alike(model, {"body.1.running_mean": own} if rank == 0 else None)
    model.syncopate.detach()


def _forms(rank: int) -> None:
    """Other shapes and dtypes, none, new ones, and the two names of one tensor."""
    model, optimizer = _trained(_Witness())
    model._buffers["again"] = model.steps

    def grow(lengths: tuple[int, int]) -> Callable[[], None]:
        def change() -> None:
            model.hidden = torch.full((lengths[rank],), 10.0 + rank)

        return change

    def part() -> None:
        model._buffers["again"] = model.steps + 1 + rank

    def meet() -> None:
        model._buffers["again"] = model.steps

    changes: list[tuple[Callable[[], None], dict[str, Any]]] = [
        (lambda: None, {".hidden": [1.0] * 3, ".again": [0, 0]}),
        (grow((5, 5)), {".hidden": [10.0] * 5}),
        (grow((5, 7)), {".hidden": [10.0] * 5}),
        (grow((9, 5)), {".hidden": [10.0] * 9}),
        (lambda: setattr(model, "later", torch.full((2,), 1.0 + rank)), {".later": [1.0] * 2}),
        (lambda: setattr(model, "table", torch.arange(4) + rank), {".table": [0, 1, 2, 3]}),
        (lambda: setattr(model, "steps", model.steps.double() + 0.5 + rank), {".steps": [0.5] * 2}),
        (lambda: setattr(model, "later", None if rank == 0 else model.later), {}),
        (lambda: setattr(model, "later", None if rank else torch.ones(1)), {".later": [1.0]}),
        (part, {".again": [1.5] * 2}),
        (lambda: model.register_buffer("new", torch.full((1,), float(rank)), False), {".new": [0]}),
        (lambda: delattr(model, "new") if rank == 0 else None, {}),
        (meet if rank == 0 else lambda: None, {".again": [0.5] * 2}),
        (lambda: setattr(model, "hidden", torch.ones(1).expand(4)), {".hidden": [1.0] * 4}),
    ]
    for number, (change, expected) in enumerate(changes):
        model.change = change
        _step(model, optimizer, rank, number)  # changes them
        model.change = lambda: None
        _step(model, optimizer, rank, number)  # begins with rank 0's
        _seen_alike(model, expected)
        _step(model, optimizer, rank, number)
        _seen_alike(model, expected)
    assert "later" in model.state_dict()
    assert "hidden" not in model.state_dict()
    assert model._buffers["again"] is model.steps
    assert model.later.tolist() == [1.0]
    # A new plan carries them in their new forms.
    model.syncopate.install(plan_of(model, 2, [6]))
    _step(model, optimizer, rank, 90)
    identical_everywhere(buffers_of_a_forward(model))
    model.syncopate.detach()


class _Observed(nn.Module):
    """Observers of quantisation, whose buffers begin empty."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)
        self.whole = MinMaxObserver()
        self.channels = PerChannelMinMaxObserver(ch_axis=1)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen = [tensor.clone() for tensor in self.buffers()]
        return self.channels(self.layer(self.whole(x)))


def _observers(rank: int) -> None:
    model, optimizer = _trained(_Observed())
    for step in range(3):
        own = [tensor.clone() for tensor in model.buffers()]
        _step(model, optimizer, rank, step)
        identical_everywhere(model.seen)
        if rank == 0:
            assert all(torch.equal(a, b) for a, b in zip(model.seen, own, strict=True))
    assert model.channels.min_val.shape == (5,)
    model.syncopate.detach()


def _first_buffer(rank: int) -> None:
    model, optimizer = _trained(nn.Sequential(nn.Linear(8, 2)))
    model.register_buffer("late", torch.full((3,), float(rank)))
    _step(model, optimizer, rank, 0)
    _step(model, optimizer, rank, 1)
    assert model.late.tolist() == [0.0] * 3
    model.syncopate.detach()


def _come_and_go(rank: int) -> None:
    """Masks of pruning come between steps, on every rank, and go, as under DDP."""
    for exchange in (ALLREDUCE, SHARDED):
        pair = Pair(rank, mlp, plan=partial(plan_of, exchange=exchange))
        for number, change in enumerate(
            (
                lambda layers: prune.l1_unstructured(layers[0], "weight", 0.3),
                lambda layers: prune.l1_unstructured(layers[3], "bias", 2),
                lambda layers: prune.remove(layers[0], "weight"),
                lambda layers: prune.l1_unstructured(layers[0], "weight", 3),
            )
        ):
            pair.run(lambda model, optimizer, n=number: _step(model, optimizer, rank, n))
            for model in (pair.reference.module, pair.model):
                change(model)
            pair.run(lambda model, optimizer, n=number: _step(model, optimizer, rank, 10 + n))
            pair.check()
            assert list(pair.model.state_dict()) == list(pair.reference.module.state_dict())
        pair.close()


def _what_it_costs(rank: int) -> None:
    model, optimizer = _trained(_Witness())
    communicator = model.syncopate.communicator
    sizes: list[int] = []
    broadcast = communicator.broadcast

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(tensor.nbytes)
        return broadcast(tensor, *args, **options)

    communicator.broadcast = counted
    for step in range(3):
        _step(model, optimizer, rank, step)
    # One message of a few bytes in a step; the table of 3 MB never travels.
    assert len(sizes) == 3
    assert max(sizes) <= 8
    with torch.no_grad():
        model.table.add_(1.0 - rank)
    _step(model, optimizer, rank, 3)
    assert sizes[4:] == [model.table.nbytes]
    sizes.clear()
    model.eval()
    model(data(rank, 4, 4, 8)).sum().backward()
    with model.train().no_sync():
        model(data(rank, 4, 4, 8)).sum().backward()
    assert not sizes
    model.syncopate.detach()


def _own_buffers(rank: int) -> None:
    model = _Witness()
    model.steps += rank
    model, optimizer = _trained(model, broadcast_buffers=False)
    for step in range(2):
        _step(model, optimizer, rank, step)
    assert model.steps.tolist() == [rank, rank]
    means: list[Any] = [None, None]
    dist.all_gather_object(means, model.body[1].running_mean)
    assert not torch.equal(means[0], means[1])
    identical_everywhere(model.parameters())
    model.syncopate.detach()


def _ignored(rank: int) -> None:
    model = _Witness()
    model.steps += rank
    model.extra = nn.Embedding(2 + rank, 3, sparse=True)  # of another size on every rank
    model.frozen = nn.Linear(2, 2).requires_grad_(False)
    model.tied = nn.Linear(2, 2)
    model.head = nn.Linear(2, 2)
    model.head.weight = model.tied.weight
    model._ddp_params_and_buffers_to_ignore = ["extra.weight", "not here"]
    names = ["frozen.weight", "steps", "body.1.running_mean", "tied.bias", "tied.weight"]
    own = torch.full((2, 2), float(rank))
    model.frozen.weight.data.copy_(own)
    model.tied.bias.data.copy_(own[0])
    torch.manual_seed(rank)
    model.body[1].running_mean.fill_(rank)
    planned = nn.Module()
    planned.body, planned.head, planned.tied = model.body, model.head, nn.Module()
    planned.tied.weight = model.tied.weight
    tensors = dict(planned.named_parameters())
    model, optimizer = distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), ignore=names, timeout_s=TIMEOUT_S
    )
    engine = model.syncopate
    # A shared parameter is exchanged unless all its names are ignored.
    assert {name for name, *_ in engine.tensors} == {*tensors, "tied.weight"} - {"head.weight"}
    assert model.frozen.weight.tolist() == own.tolist()
    assert model.steps.tolist() == [rank, rank]
    assert model.body[1].running_mean.tolist() == [rank] * 6
    identical_everywhere([model.frozen.bias, model.tied.weight, model.body[0].weight])
    model.frozen.weight.requires_grad_(True)  # on this rank alone
    for step in range(2):
        model.tied.bias.grad = None
        optimizer.zero_grad()
        loss = model(data(rank, step, 4, 8)).square().mean()
        extra = model.extra(torch.tensor([1 + rank])).sum() + model.tied.bias.sum() * (1 + rank)
        (loss + extra).backward()
        assert model.tied.bias.grad.tolist() == [1.0 + rank] * 2
        assert model.extra.weight.grad.is_sparse
        buffers_of_a_forward(model)
        identical_everywhere([model.body[0].weight.grad, model.body[1].running_var])
        optimizer.step()
    means: list[Any] = [None, None]
    dist.all_gather_object(means, model.body[1].running_mean)
    assert not torch.equal(means[0], means[1])
    engine.detach()


CASES = (
    _own_until_a_forward,
    _own_buffers,
    _ignored,
    _written,
    _after_no_sync,
    _forms,
    _observers,
    _first_buffer,
    _come_and_go,
    _what_it_costs,
)


def _every_case(rank: int, world_size: int) -> None:
    run_cases(CASES, rank)


def test_every_training_forward_begins_with_rank_0s_buffers() -> None:
    run_ranks(_every_case, 2)
