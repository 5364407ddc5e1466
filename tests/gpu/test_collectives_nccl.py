"""Collectives over NCCL: alone on one GPU, and with a GPU per rank where there are several."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from syncopate.collectives import Communicator, transport
from syncopate.collectives.nccl.grid import Grid
from syncopate.collectives.nccl.stages import (
    Staged,
    Stages,
    all_gather,
    all_reduce,
    reduce_scatter,
    two_level,
)
from syncopate.collectives.runner import Runner
from syncopate.errors import InvalidValueError
from syncopate.recipe import Recipe
from syncopate.schedules.conditions import CONDITIONS
from syncopate.schedules.registry import NATIVE
from tests.conformance.table import TABLE
from tests.gpu.sweep import DTYPES, SPIN_CYCLES, sweep
from tests.multiprocess.harness import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not dist.is_nccl_available(), reason="needs a torch built with NCCL"),
]
SEVERAL = pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason=f"NCCL takes one rank per GPU; this machine has {torch.cuda.device_count()}",
)
NUMEL = 1003


def start_nccl(rank: int, world_size: int, backend: str, bound: bool) -> torch.device:
    """Replace the harness's Gloo group by one of ``backend``, bound to the device or not."""
    store = distributed_c10d.PrefixStore("again", distributed_c10d._get_default_store())
    dist.destroy_process_group()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, device_id=device if bound else None
    )
    return device


def values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return (torch.arange(NUMEL, device=device) % 7).to(dtype)


def alone(rank: int, world_size: int, bound: bool) -> list[str]:
    """One rank's collectives change nothing, whatever they go through."""
    device = start_nccl(rank, world_size, "nccl", bound)
    wrong = []
    runner = Runner(transport.new_group(None, 60), rank, 60)
    requests = [(row.collective, row.algorithm) for row in TABLE]
    first = True
    for collective, algorithm in [*requests, *((name, NATIVE) for name in CONDITIONS)]:
        for dtype in DTYPES:
            wanted = values(dtype, device)
            tensor = torch.zeros_like(wanted)
            torch.cuda._sleep(SPIN_CYCLES // 100)
            tensor.copy_(wanted)
            prepared = runner.collective(Recipe(collective, algorithm), tensor)
            assert prepared.waits == first
            completion = prepared.work()
            assert completion is not None
            completion.wait()
            first = False
            if not torch.equal(tensor, wanted):
                wrong.append(f"{prepared.label} {dtype}")
            started_s, finished_s = completion.stamps()
            assert finished_s >= started_s
    runner.objects.barrier()
    runner.close()
    with Communicator(timeout_s=60) as communicator:
        communicator.all_reduce(values(torch.float32, device), algorithm="ring")
    return wrong


@pytest.mark.parametrize("bound", [False, True])
def test_alone(bound: bool) -> None:
    assert run_ranks(alone, 1, bound) == [[]]


def alone_in_stages(rank: int, world_size: int) -> list[str]:
    """Subgroups of one rank: every call that more would make, on NCCL's and on our streams."""
    device = start_nccl(rank, world_size, "nccl", False)
    stages = Stages(transport.new_group(None, 60), rank, 60)
    grid = Grid((1, 1), (0,))
    stream = torch.cuda.Stream(device)
    wrong = []
    for pipelines in (1, 4):
        for run in (all_reduce, reduce_scatter, all_gather, two_level):
            staged = Staged(stages, run, grid, pipelines)
            for dtype in DTYPES:
                wanted = values(dtype, device)
                tensor = torch.zeros_like(wanted)
                stream.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(SPIN_CYCLES // 100)
                    tensor.copy_(wanted)
                    staged(tensor)
                    after = tensor.clone()
                stream.synchronize()
                if not torch.equal(after, wanted):
                    wrong.append(f"{run.__name__} {pipelines} {dtype}")
            assert staged.connected(device)
    stages.close()
    return wrong


def test_alone_in_stages() -> None:
    assert run_ranks(alone_in_stages, 1) == [[]]


def together(rank: int, world_size: int, backend: str, bound: bool) -> list[str]:
    device = start_nccl(rank, world_size, backend, bound)
    with Communicator(timeout_s=60, channels=2) as communicator:
        wrong = sweep(communicator, device)
        communicator.barrier()
        assert communicator.all_gather_object(rank) == list(range(world_size))
        if backend == "nccl":
            with pytest.raises(InvalidValueError, match="cuda"):
                communicator.all_reduce(torch.ones(3))
        else:
            tensor = torch.ones(3)
            communicator.all_reduce(tensor, algorithm="ring")
            assert tensor.tolist() == [world_size] * 3
    return wrong


@SEVERAL
@pytest.mark.parametrize(
    ("backend", "bound"), [("nccl", False), ("nccl", True), ("cpu:gloo,cuda:nccl", False)]
)
def test_every_collective_with_a_gpu_per_rank(backend: str, bound: bool) -> None:
    world_size = min(torch.cuda.device_count(), 8)
    assert run_ranks(together, world_size, backend, bound) == [[]] * world_size


def first_meetings(rank: int, world_size: int) -> list[float]:
    """Channels first used in another order on every second rank, and subgroups as well."""
    device = start_nccl(rank, world_size, "nccl", False)
    sums = []
    with Communicator(timeout_s=60, channels=2) as communicator:
        for algorithm in ("ring", "blueconnect", "two_level"):
            tensors = [
                torch.full((NUMEL,), rank + channel + 1.0, device=device) for channel in (0, 1)
            ]
            handles = {
                channel: communicator.all_reduce(
                    tensors[channel], algorithm=algorithm, channel=channel, async_op=True
                )
                for channel in ((0, 1) if rank % 2 else (1, 0))
            }
            for channel, tensor in enumerate(tensors):
                handles[channel].wait()
                sums += tensor.unique().tolist()
    return sums


@SEVERAL
def test_channels_first_used_in_any_order() -> None:
    world_size = min(torch.cuda.device_count(), 8)
    total = world_size * (world_size + 1) / 2
    wanted = [total, total + world_size] * 3
    assert run_ranks(first_meetings, world_size) == [wanted] * world_size


def part_of_the_job(rank: int, world_size: int) -> float:
    device = start_nccl(rank, world_size, "nccl", True)
    first = dist.new_group([0])
    rest = dist.new_group(list(range(1, world_size)))
    with Communicator(rest if rank else first, timeout_s=60) as communicator:
        tensor = torch.ones(1, device=device)
        communicator.all_reduce(tensor, algorithm="ring")
        return tensor.item()


@SEVERAL
def test_part_of_a_job_that_is_bound_to_devices() -> None:
    world_size = min(torch.cuda.device_count(), 8)
    wanted = [1.0] + [world_size - 1.0] * (world_size - 1)
    assert run_ranks(part_of_the_job, world_size) == wanted
