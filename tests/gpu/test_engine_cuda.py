"""Training on GPUs is DDP's: over Gloo with ranks that share one, over NCCL with one each."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.plan import Plan
from syncopate.engine.distribute import distribute
from tests.gpu.test_collectives_nccl import SEVERAL, start_nccl
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    convnet,
    data,
    identical_everywhere,
    plan_of,
    train_convnet,
)
from tests.multiprocess.harness import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 10
OUTCOMES = {"optimal", "threshold"}
"""Policies with which planning by itself may end: its own, or DDP's buckets."""


def plans(model: nn.Module, world_size: int) -> list[Plan]:
    """One bucket per gradient and one for all, by several algorithms, on one channel and two."""
    found = [
        plan_of(model, world_size, sizes, algorithm=algorithm, channels=channels)
        for algorithm in ("native", "ring", "binary_tree", "blueconnect", "two_level")
        for sizes, channels in ((None, 1), ([7], 1), ([2, 1, 3, 1], 2))
    ]
    told = {"factors": (2, world_size // 2), "pipelines": 2}
    if world_size % 2 == 0:
        plan = plan_of(model, world_size, [3, 4], algorithm="blueconnect", channels=2)
        buckets = tuple(replace(bucket, options=told) for bucket in plan.buckets)
        found.append(replace(plan, buckets=buckets))
    return found


def sweep(rank: int, world_size: int, device: torch.device) -> int:
    torch.manual_seed(rank)
    model = convnet().to(device)
    reference = copy.deepcopy(model)
    wrapped = DistributedDataParallel(reference)
    start = copy.deepcopy(reference.state_dict())
    train_convnet(wrapped, rank, reference.parameters(), STEPS, device)
    expected = dict(reference.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begun = plan_of(model, world_size, algorithm="native")
    model, _ = distribute(model, optimizer, plan=begun, timeout_s=TIMEOUT_S)
    tried = plans(model, world_size)
    for plan in tried:
        model.load_state_dict(start)
        model.zero_grad()
        model.syncopate.install(plan)
        train_convnet(model, rank, model.parameters(), STEPS, device)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, expected[name], rtol=1e-3, atol=1e-4)
        identical_everywhere([*model.parameters(), *model.buffers()])
    return len(tried)


def shared_device(rank: int) -> torch.device:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def sharing(rank: int, world_size: int) -> int:
    return sweep(rank, world_size, shared_device(rank))


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_that_share_a_gpu_train_like_ddp(world_size: int) -> None:
    counts = run_ranks(sharing, world_size)
    assert counts == [16] * world_size


def over_nccl(rank: int, world_size: int, backend: str) -> int:
    device = start_nccl(rank, world_size, backend, False)
    return sweep(rank, world_size, device)


@SEVERAL
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_gpu_per_rank_trains_like_ddp(backend: str) -> None:
    world_size = min(torch.cuda.device_count(), 8) // 2 * 2
    counts = run_ranks(over_nccl, world_size, backend)
    assert counts == [16] * world_size


def by_itself(rank: int, world_size: int, nccl: bool) -> str:
    """`distribute` without a plan: profiles, calibrates, plans, and trains on."""
    device = (
        start_nccl(rank, world_size, "cpu:gloo,cuda:nccl", False) if nccl else shared_device(rank)
    )
    torch.manual_seed(0)
    model = convnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = distribute(model, optimizer, timeout_s=TIMEOUT_S)
    wanted = torch.arange(6, device=device) % 5
    for step in range(200):
        optimizer.zero_grad()
        images = data(rank, step, 6, 1, 8, 8).to(device)
        nn.functional.cross_entropy(model(images), wanted).backward()
        optimizer.step()
    assert model.syncopate.workload is not None  # it has profiled
    if dist.get_world_size() > 1:
        identical_everywhere(model.parameters())
    return model.syncopate.plan.policy


def test_planning_by_itself_on_a_shared_gpu() -> None:
    assert set(run_ranks(by_itself, 2, False)) <= OUTCOMES


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs a torch built with NCCL")
def test_alone_over_nccl() -> None:
    assert set(run_ranks(by_itself, 1, True)) <= OUTCOMES


@SEVERAL
def test_planning_by_itself_with_a_gpu_per_rank() -> None:
    world_size = min(torch.cuda.device_count(), 8)
    assert set(run_ranks(by_itself, world_size, True)) <= OUTCOMES
