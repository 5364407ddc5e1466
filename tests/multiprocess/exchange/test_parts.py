"""A tensor in parts: so many messages, of the bytes and on the channels of the plan."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncopate.artifacts.plan import (
    ALLREDUCE,
    DECOUPLED,
    EXCHANGES,
    ROOTED,
    SERVERLESS,
    SHARDED,
    Plan,
)
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.errors import EngineError
from syncopate.recipe import WIRE_DTYPES
from tests.multiprocess.checkpoints.cases import OPTIMIZERS, Shapes, assert_same, groups_of
from tests.multiprocess.checkpoints.cases import train as train_shapes
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    data,
    identical_everywhere,
    in_parts,
    plan_of,
    run_cases,
)
from tests.multiprocess.exchange.cases import Odd, Run, batch, both, sgd, squares, watched
from tests.multiprocess.harness import Cases, run_ranks

PARTS = 3
PUSHES = {ALLREDUCE: "ring", DECOUPLED: "ring", SHARDED: "ring", ROOTED: "mst"}


def parts_of(
    model: nn.Module, world_size: int, exchange: str = SHARDED, parts: int = PARTS
) -> Plan:
    return in_parts(plan_of(model, world_size, exchange=exchange), model, parts)


def steps(run: Run, zero: bool | None = True) -> None:
    """Accumulate twice, clip and step, four times."""
    for step in range(4):
        if zero is not None:
            run.optimizer.zero_grad(set_to_none=zero)
        with run.no_sync():
            run.backward(squares(10 + step))
        run.backward(squares(step))
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
        run.seen.append(norm.item())
        run.optimizer.step()


def optimizers() -> Iterable[Any]:
    yield sgd
    yield partial(torch.optim.AdamW, lr=0.01)
    yield partial(torch.optim.Adafactor, lr=0.05)


def trained(rank: int, world_size: int, kinds: Sequence[dict[str, Any]]) -> int:
    """Train by each kind of plan, as ``both`` is told; return how many trainings there were.

    Two ranks train with each optimizer, others with one of them in turn.
    """
    every = [
        (kind, optimizer)
        for turn, kind in enumerate(kinds)
        for which, optimizer in enumerate(optimizers())
        if world_size == 2 or (turn // 3 + turn + which) % 3 == 0
    ]
    with Cases() as case:
        for number, (kind, optimizer) in enumerate(every):
            turn = number // 3 if world_size == 2 else number
            zero, channels = (True, False, None)[turn % 3], 1 + number % 2
            with case(f"{kind}, {channels} channels, {optimizer}, {zero}"):
                run = both(
                    rank,
                    world_size,
                    partial(steps, zero=zero),
                    optimizer=optimizer,
                    tolerance=1e-4,
                    channels=channels,
                    **kind,
                )
                run.model.syncopate.detach()
    return len(every)


def as_one_process(rank: int, world_size: int) -> int:
    kinds = [{"exchange": e, "parts": parts} for e, parts in product(SERVERLESS, (2, 4, 100))]
    return trained(rank, world_size, kinds)


@pytest.mark.parametrize("world_size", [2, 3])
def test_who_exchanges_parts_trains_as_one_process(world_size: int) -> None:
    trainings = (9 if world_size == 2 else 3) * len(SERVERLESS)
    assert run_ranks(as_one_process, world_size) == [trainings] * world_size


def messages(rank: int, world_size: int) -> None:
    """Every bucket of the plan is one push and one pull, of its bytes, by its recipes."""
    for exchange in SERVERLESS:
        run = both(
            rank,
            world_size,
            partial(steps, zero=True),
            exchange=exchange,
            parts=PARTS,
            channels=2,
        )
        engine, plan = run.model.syncopate, run.model.syncopate.plan
        pulls, first = bool(EXCHANGES[exchange].pull), None
        engine.record()
        with watched(run.model) as events:
            run.backward(squares(0))
            run.optimizer.step()
            run.model(batch(rank, 0, 4, 5))
        engine.record(False)
        sent = [event[1:] for event in events if event[0] == "launch"]
        phases = {
            p: [dict(b.recipes)[p] for b in plan.buckets] for p in ("push", "pull")[: 1 + pulls]
        }
        pushed = [one for one in sent if one[0] == EXCHANGES[exchange].push][: len(plan.buckets)]
        assert [recipe for _, _, recipe in pushed] == phases["push"]
        sizes = [nbytes for _, nbytes, _ in pushed]
        planned = [bucket.nbytes for bucket in plan.buckets]
        if exchange == ALLREDUCE:
            first = -1  # what is said besides rides along with the last one
        assert sizes[:first] == planned[:first]
        if pulls:
            pulled = [
                (nbytes, recipe)
                for name, nbytes, recipe in sent
                if name == EXCHANGES[exchange].pull
            ]
            expected = zip(planned, phases["pull"], strict=True)
            assert pulled == list(reversed(list(expected)))
        timeline = engine.timeline()
        for lane in phases:
            spans = [
                s for s in timeline.spans if s.lane == lane and s.rank == rank and s.iteration == 0
            ]
            assert {s.name for s in spans} == {f"bucket {i}" for i in range(len(planned))}
            assert {s.channel for s in spans} == {0, 1}
        run.model.syncopate.detach()


def test_what_is_sent_is_what_is_planned() -> None:
    run_ranks(messages, 2)


def a_read_weight_waits_for_all_parts(rank: int, world_size: int) -> None:
    for exchange in (SHARDED, ROOTED):
        run = both(rank, world_size, partial(steps, zero=True), exchange=exchange, parts=PARTS)
        run.backward(squares(0))
        run.optimizer.step()
        with watched(run.model) as events:
            weight = run.model.first.weight
            pulls = run.model.syncopate.exchange.layout.shared(FlatWeights)._pending
            assert sum(map(len, pulls.values())) == len(run.model.syncopate.plan.buckets)
            before = len(pulls)
            whole = weight.detach().clone()
            assert len(pulls) == before - 1
        assert [event for event in events if event[0] == "launch"] == []
        identical_everywhere([whole])
        run.model.syncopate.detach()


def strides(rank: int, world_size: int) -> None:
    """Gradients in another order of memory than their parameters, none at all, and complex ones."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
            self.turned = nn.Parameter(torch.randn(6, 5).t())
            self.unused = nn.Parameter(torch.randn(7))
            self.sometimes = nn.Parameter(torch.randn(9))

        def forward(self, step: int, rank: int) -> Tensor:
            found = (self.image * data(rank, step, 4, 3, 2, 2)).sum() + self.turned.cos().sum()
            return found + (self.sometimes.sin().sum() * (rank + 1) if rank != step % 2 else 0)

    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phases = nn.Parameter(torch.randn(11, dtype=torch.complex64))

        def forward(self, step: int, rank: int) -> Tensor:
            return (self.phases * (1 + step - 1j * rank)).abs().square().sum() + step

    def script(run: Run) -> None:
        for step in range(3):
            run.optimizer.zero_grad()
            run.backward(lambda model, rank, step=step: model(step, rank))
            run.optimizer.step()

    for exchange in SERVERLESS:
        run = both(rank, world_size, script, build=Strided, exchange=exchange, parts=PARTS)
        run.model.syncopate.detach()
    run = both(rank, world_size, script, build=Complex, parts=PARTS)
    run.model.syncopate.detach()


def narrowed(rank: int, world_size: int) -> None:
    """What travels as float16 is averaged before it does, part by part."""

    def script(run: Run) -> None:
        for step in range(3):
            run.optimizer.zero_grad()
            run.backward(squares(step))
            run.optimizer.step()

    for exchange, wire in product(SERVERLESS, WIRE_DTYPES):
        plan = {"exchange": exchange, "wire_dtype": wire, "algorithm": PUSHES[exchange]}
        run = both(rank, world_size, script, tolerance=2e-2, parts=PARTS, **plan)
        run.model.syncopate.detach()


def one_step(model: Any, optimizer: Any, rank: int, step: int = 0) -> None:
    squares(step)(model, rank).backward()
    optimizer.step()


def a_backward_that_raises(rank: int, world_size: int) -> None:
    """The other ranks are told, and all go on."""
    for exchange in SERVERLESS:
        torch.manual_seed(7)
        model: Any = Odd()
        plan = parts_of(model, world_size, exchange)
        model, optimizer = distribute(
            model, sgd(model.parameters()), plan=plan, timeout_s=TIMEOUT_S
        )
        hook = None
        if rank == 1:

            def fail(_: Tensor) -> None:
                raise ZeroDivisionError

            hook = model.first.weight.register_hook(fail)
        with pytest.raises(ZeroDivisionError if rank == 1 else EngineError):
            one_step(model, optimizer, rank)
        if hook is not None:
            hook.remove()
        for step in (1, 2):
            optimizer.zero_grad()
            one_step(model, optimizer, rank, step)
        identical_everywhere(model.parameters())
        model.syncopate.detach()


def saved(rank: int, world_size: int) -> dict[str, Any] | None:
    """A checkpoint of three ranks, with a shard of every part on each."""
    torch.manual_seed(0)
    model: Any = Shapes()
    plan = parts_of(model, world_size, parts=4)
    model, optimizer = distribute(
        model, OPTIMIZERS["adam"](groups_of(model)), plan=plan, timeout_s=TIMEOUT_S
    )
    train_shapes(model, optimizer, rank, range(3), plain=False)
    held: dict[str, Any] = model.syncopate.state_dict(optimizer, everywhere=True)
    return held


def loaded(rank: int, world_size: int, held: dict[str, Any]) -> dict[str, Any]:
    """The same state on other ranks, in other parts, goes on as a plain model does."""
    model: Any = Shapes()
    plan = parts_of(model, world_size)
    model, optimizer = distribute(
        model, OPTIMIZERS["adam"](groups_of(model)), plan=plan, timeout_s=TIMEOUT_S
    )
    held = copy.deepcopy(held)  # the ranks share its memory
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    assert_same(model.syncopate.state_dict(optimizer, everywhere=True), held, exact=True)
    plain = Shapes()
    reference = OPTIMIZERS["adam"](groups_of(plain))
    plain.load_state_dict(held["model"])
    reference.load_state_dict(copy.deepcopy(held["optimizer"]))
    train_shapes(model, optimizer, rank, range(3, 6), plain=False)
    train_shapes(plain, reference, rank, range(3, 6), plain=True)
    after = model.syncopate.state_dict(optimizer, everywhere=True)
    assert_same(after["model"], plain.state_dict())
    assert_same(after["optimizer"], reference.state_dict())
    dist.barrier()
    return after


def test_a_checkpoint_of_parts_is_loaded_by_another_number_of_ranks() -> None:
    first = run_ranks(saved, 3)[0]
    assert first is not None
    run_ranks(loaded, 2, first)


def _others(rank: int, world_size: int) -> None:
    run_cases(
        (a_read_weight_waits_for_all_parts, strides, narrowed, a_backward_that_raises),
        rank,
        world_size,
    )


def test_reads_strides_and_failures() -> None:
    run_ranks(_others, 2)
