"""Under a plan DDP trains as DDP does: every habit of a script, beside its plain twin."""

from __future__ import annotations

import copy
import pickle
import shutil
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.plan import DDP_FIRST_BUCKET_BYTES, Plan
from syncopate.engine.distribute import distribute
from tests.multiprocess.ddp.cases import SIZES, Twins, bucket_bytes, carried, logged, plan_for
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    convnet,
    data,
    in_parts,
    plan_of,
    run_cases,
    tensors_of,
    train_convnet,
)
from tests.multiprocess.harness import run_ranks

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"static_graph": True, "find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"broadcast_buffers": False},
)


def trains(rank: int, world_size: int, options: dict[str, Any], plan: Any = plan_for) -> Twins:
    twins = Twins(rank, world_size, plan=plan, **options)
    for each in twins.both:
        train_convnet(each, rank, each.parameters(), 4)
    twins.require_alike(bits=world_size == 2)
    return twins


def in_parts_and_narrow(model: nn.Module, world_size: int, **changes: Any) -> Plan:
    """Every tensor by itself and in three parts, on two channels, the last rank first."""
    plan = in_parts(plan_of(model, world_size, algorithm="ring", channels=2), model, 3)
    return replace(plan, order=tuple(reversed(range(world_size))), **changes)


def parts(rank: int, world_size: int) -> None:
    with carried() as seen:
        twins = trains(rank, world_size, {}, in_parts_and_narrow)
    numels = [numel for _, numel, _ in reversed(tensors_of(twins.planned.module))]
    assert bucket_bytes(twins.planned) == [4 * numel for numel in numels]
    last = seen[-len(twins.asked.buckets) :]
    assert [numel for *_, numel in last] == [one.nbytes // 4 for one in twins.asked.buckets]
    assert [channel for _, channel, _ in last] == [one.push.channel for one in twins.asked.buckets]


def narrow(rank: int, world_size: int) -> None:
    """Gradients travel as bfloat16, and are what the hook of torch makes of them but for that."""
    plan = partial(in_parts_and_narrow, wire_dtype="bfloat16")
    twins = Twins(rank, world_size, plan=plan)
    for each in twins.both:
        train_convnet(each, rank, each.parameters(), 1)
    for one, other in zip(twins.plain.parameters(), twins.planned.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=2e-2, atol=1e-3)
        assert other.grad.dtype == torch.float32


def accumulates(rank: int, world_size: int) -> None:
    """``no_sync`` and steps of several backwards."""
    twins = Twins(rank, world_size)
    for each in twins.both:
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for step in range(9):
            with each.no_sync() if step % 3 else nullcontext():
                each(data(rank, step, 6, 1, 8, 8)).square().mean().backward()
            if not step % 3:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
    twins.require_alike(bits=world_size == 2)


class Gated(nn.Module):
    """Uses one of two layers in turn, the other rank the other one, and a third one never."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.layers[which](x)


def unused(rank: int, world_size: int) -> None:
    """Gradients that no rank has stay None; those that one rank has are averages with zeros."""
    twins = Twins(
        rank,
        world_size,
        Gated,
        lambda model, size: plan_of(model, size, [2, 1, 3]),
        find_unused_parameters=True,
    )
    for each in twins.both:
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            each(data(rank, step, 3, 4), (step + rank) % 2).square().mean().backward()
            optimizer.step()
        assert each.module.layers[2].weight.grad is None
    twins.require_alike(bits=world_size == 2)


def ends_early(rank: int, world_size: int) -> None:
    """Ranks run out of inputs in ``join()``, one at once."""
    for options in ({}, {"find_unused_parameters": True}):
        twins = Twins(rank, world_size, **options)
        for each in twins.both:
            optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
            with each.join():
                for step in range(rank * 2):
                    optimizer.zero_grad()
                    each(data(rank, step, 6, 1, 8, 8)).square().mean().backward()
                    optimizer.step()
        twins.require_alike(bits=world_size == 2, gradients=False)


def several_dtypes(rank: int, world_size: int) -> None:
    """A bucket of two dtypes is several ones in DDP, which the log says; complex ones too."""

    def mixed() -> nn.Module:
        model = nn.ParameterDict()
        for name, dtype in (("a", torch.float64), ("b", torch.float32), ("c", torch.complex64)):
            model[name] = nn.Parameter(torch.randn(5).to(dtype))
        return model

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = mixed()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum((p.abs() * x).sum().to(torch.float64) for p in self.inside.values())

    with logged() as lines:
        twins = Twins(rank, world_size, Mixed, lambda m, size: plan_of(m, size, [3]))
        for each in twins.both:
            for step in range(3):
                each.zero_grad()
                each(data(rank, step, 5)).backward()
    twins.require_alike(bits=world_size == 2)
    said = [line for line in lines if "as nearly as it can" in line]
    assert len(said) == (rank == 0)
    assert rank or "gradients of several dtypes are never in one bucket" in said[0]


def copies(rank: int, world_size: int) -> None:
    """Its state is plain DDP's, in both directions; its group is one of torch's."""
    twins = trains(rank, world_size, {})
    group = twins.planned.process_group
    assert dist.get_rank(group) == rank
    assert dist.get_process_group_ranks(group) == list(range(world_size))
    del group
    reloaded = DistributedDataParallel(convnet())
    reloaded.load_state_dict(twins.planned.state_dict())
    twins.planned.load_state_dict(reloaded.state_dict())
    twins.plain.load_state_dict(twins.planned.state_dict())
    with pytest.raises(RuntimeError, match="default process group"):  # as of any other group
        pickle.dumps(twins.planned)
    inside = copy.deepcopy(twins.planned.module)
    assert inside.state_dict().keys() == twins.planned.module.state_dict().keys()
    twins.require_alike(bits=False, gradients=False)


CASES = (
    *(partial(trains, options=options) for options in OPTIONS),
    parts,
    narrow,
    accumulates,
    unused,
    ends_early,
    several_dtypes,
    copies,
)


def all_cases(rank: int, world_size: int) -> None:
    run_cases(CASES, rank, world_size)


@pytest.mark.parametrize("world_size", [2, 4])
def test_programs_do_what_they_do_in_plain_ddp(world_size: int) -> None:
    run_ranks(all_cases, world_size)


def compiled(rank: int, world_size: int) -> None:
    twins = Twins(rank, world_size)
    for each in twins.both:
        train_convnet(torch.compile(each, backend="aot_eager"), rank, each.parameters(), 4)
    twins.require_alike(bits=world_size == 2)
    for plan in (plan_for, plan_of_the_plain):  # with the names of the compiled model, and without
        inside = Twins(
            rank, world_size, lambda: torch.compile(convnet(), backend="aot_eager"), plan
        )
        for each in inside.both:
            train_convnet(each, rank, each.parameters(), 4)
        inside.require_alike(bits=world_size == 2)


def plan_of_the_plain(_: nn.Module, world_size: int) -> Plan:
    """Return the plan of the model before ``torch.compile``."""
    return plan_for(convnet(), world_size)


def layer_compiled() -> nn.Module:
    model = convnet()
    model[4] = torch.compile(model[4], backend="aot_eager")
    return model


def compiled_and_planned_before(rank: int, world_size: int) -> None:
    """A layer is compiled; ``distribute`` takes the plan of the plain model, too."""
    twins = Twins(rank, world_size, layer_compiled, plan_of_the_plain)
    for each in twins.both:
        train_convnet(each, rank, each.parameters(), 3)
    twins.require_alike(bits=world_size == 2)
    for make in (layer_compiled, lambda: torch.compile(convnet(), backend="aot_eager")):
        torch.manual_seed(rank)
        pair = [make() for _ in range(2)]
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in pair]
        pair[1].load_state_dict(pair[0].state_dict())
        plain = DistributedDataParallel(pair[0])
        plan = plan_of_the_plain(pair[1], world_size)
        distribute(pair[1], optimizers[1], plan=plan, timeout_s=TIMEOUT_S)
        for step in range(3):
            for each, optimizer in zip((plain, pair[1]), optimizers, strict=True):
                optimizer.zero_grad()
                each(data(rank, step, 6, 1, 8, 8)).square().mean().backward()
                optimizer.step()
        for one, other in zip(*(each.parameters() for each in pair), strict=True):
            torch.testing.assert_close(other, one)


def by_the_default_compiler(rank: int, world_size: int) -> None:
    """Buckets may all be smaller than DDP's first one."""
    twins = Twins(
        rank, world_size, lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), plan_of
    )
    DDPOptimizer(twins.planned.bucket_bytes_cap, None)  # refuses one that is too small
    for each in twins.both if shutil.which("g++") else ():
        code = torch.compile(each)
        for step in range(3):
            each.zero_grad()
            code(data(rank, step, 6, 4)).square().mean().backward()
    twins.require_alike(bits=False)


def compiled_cases(rank: int, world_size: int) -> None:
    cases = (compiled, compiled_and_planned_before, by_the_default_compiler)
    run_cases(cases, rank, world_size)


def test_compiled_models_train_as_in_plain_ddp() -> None:
    assert torch.distributed._DEFAULT_FIRST_BUCKET_BYTES == DDP_FIRST_BUCKET_BYTES
    run_ranks(compiled_cases, 2)


def buckets(rank: int, world_size: int) -> list[str]:
    with logged() as lines, carried() as seen:
        twins = trains(rank, world_size, {})
    asked = twins.asked.buckets
    assert bucket_bytes(twins.planned) == [one.nbytes for one in asked]
    expected = [(one.push.algorithm, one.push.channel, one.nbytes // 4) for one in asked]
    assert seen[-len(SIZES) :] == expected
    assert {algorithm for algorithm, *_ in expected} == {"native", "ring"}
    return lines


def test_buckets_and_algorithms_are_the_plan_s() -> None:
    first, *others = run_ranks(buckets, 2)
    assert [line for line in first if "DDP trains" in line] == [
        "DDP trains by the plan: its 4 buckets are the plan's (by hand, native+ring)"
    ]
    assert not any("DDP trains" in line for lines in others for line in lines)
