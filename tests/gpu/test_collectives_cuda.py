"""Collectives on CUDA tensors of a Gloo group, through pinned memory; streams and events alone."""

from __future__ import annotations

import pytest
import torch

from syncopate.collectives import Communicator
from syncopate.collectives.nccl.streams import PinnedStage, StreamQueue, mark, on_this_device
from tests.gpu.sweep import SPIN_CYCLES, sweep
from tests.multiprocess.harness import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def busy_fill(tensor: torch.Tensor, value: float) -> None:
    """Fill ``tensor`` on the current stream, long after this returns."""
    torch.cuda._sleep(SPIN_CYCLES)
    tensor.fill_(value)


def over_gloo(rank: int, world_size: int) -> list[str]:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    with Communicator(timeout_s=60, channels=2) as communicator:
        wrong = sweep(communicator, device)
        communicator.barrier()
        assert communicator.all_gather_object(rank) == list(range(world_size))
        both = [torch.full((300_001,), rank + 1.0, device=where) for where in (device, "cpu")]
        handles = [
            communicator.all_reduce(tensor, algorithm="ring", channel=channel, async_op=True)
            for channel, tensor in enumerate(both)
        ]
        for handle, tensor in zip(handles, both, strict=True):
            handle.wait()
            assert tensor.unique().tolist() == [world_size * (world_size + 1) / 2]
    return wrong


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_collective_through_pinned_memory(world_size: int) -> None:
    """Any number of ranks may share a GPU: only Gloo sees the others."""
    assert run_ranks(over_gloo, world_size) == [[]] * world_size


def test_the_stage_reads_what_the_callers_stream_wrote() -> None:
    stage, stream = PinnedStage(), torch.cuda.Stream()
    tensor = torch.zeros(1000, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        busy_fill(tensor, 3.0)
        work = stage.staged(tensor, lambda host: host.mul_(2))
    work()
    assert tensor.unique().tolist() == [6.0]


def test_a_queued_collective_is_ordered_by_streams_alone() -> None:
    queue = StreamQueue()
    tensor = torch.zeros(1000, device="cuda")
    busy_fill(tensor, 3.0)
    completion = queue.queue(tensor, mark(tensor.device), lambda: busy_fill(tensor, 5.0))
    assert not completion.done()
    completion.wait()
    doubled = tensor * 2
    started_s, finished_s = completion.stamps()
    assert finished_s > started_s
    assert completion.done()
    assert doubled.unique().tolist() == [10.0]


def test_stamps_do_not_wait_for_what_the_caller_queued_later() -> None:
    queue = StreamQueue()
    tensor = torch.zeros(1000, device="cuda")
    completion = queue.queue(tensor, mark(tensor.device), lambda: tensor.fill_(5.0))
    later = torch.zeros(1000, device="cuda")
    for _ in range(20):
        busy_fill(later, 1.0)
    completion.stamps()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_memory_that_is_freed_early_is_not_used_too_early() -> None:
    queue = StreamQueue()
    results = []
    for value in range(3):
        tensor = torch.full((1 << 20,), float(value), device="cuda")
        kept = torch.empty_like(tensor)

        def work(source: torch.Tensor = tensor, target: torch.Tensor = kept) -> None:
            torch.cuda._sleep(SPIN_CYCLES)
            target.copy_(source)

        completion = queue.queue(tensor, mark(tensor.device), work)
        del tensor, work
        # The allocator would give this the memory of the tensor, were it free.
        torch.full((1 << 20,), -1.0, device="cuda")
        results.append((completion, kept))
    for value, (completion, kept) in enumerate(results):
        completion.wait()
        assert kept.unique().tolist() == [float(value)]


def test_work_keeps_its_device_on_another_thread() -> None:
    devices: list[int] = []
    torch.cuda.set_device(torch.cuda.device_count() - 1)
    work = on_this_device(lambda: devices.append(torch.cuda.current_device()))
    torch.cuda.set_device(0)
    work()
    assert devices == [torch.cuda.device_count() - 1]
    assert torch.cuda.current_device() == 0
