"""``algorithm="auto"`` on CUDA tensors: over Gloo on any number of GPUs, over NCCL on one each."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.collectives import Communicator
from syncopate.schedules.registry import AUTO
from tests.multiprocess.harness import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def chosen(rank: int, world_size: int, backend: str) -> int:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    group = dist.new_group(backend=backend)
    cluster, checked = Cluster.preset("1gbe", world_size), 0
    with Communicator(group, timeout_s=60, cluster=cluster) as communicator:
        for numel in (1, 5_000, 1_000_003):
            total = torch.full((numel,), rank + 1.0, device=device)
            communicator.all_reduce(total, algorithm=AUTO, async_op=True).wait()
            assert total.unique().tolist() == [world_size * (world_size + 1) / 2]
            from_last = torch.full((numel,), float(rank), device=device)
            communicator.broadcast(from_last, src=world_size - 1, algorithm=AUTO)
            assert from_last.unique().tolist() == [world_size - 1.0]
            checked += 1
    return checked


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_choice_carries_tensors_through_pinned_memory(world_size: int) -> None:
    assert run_ranks(chosen, world_size, "gloo") == [3] * world_size


def test_the_choice_is_agreed_on_over_nccl() -> None:
    world_size = min(torch.cuda.device_count(), 4)
    assert run_ranks(chosen, world_size, "nccl") == [3] * world_size
