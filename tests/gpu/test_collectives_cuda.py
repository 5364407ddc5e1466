"""Collectives on CUDA tensors: through pinned memory on Gloo, and on streams with NCCL."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.collectives.device import PinnedStage, StreamQueue, mark
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.registry import NATIVE, algorithms
from tests.multiprocess.harness import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SPIN_CYCLES = 200_000_000
"""About a tenth of a second of a GPU's time, so that a missing wait shows."""


def busy_fill(tensor: torch.Tensor, value: float) -> None:
    """Fill ``tensor`` on the current stream, long after this returns."""
    torch.cuda._sleep(SPIN_CYCLES)
    tensor.fill_(value)


def on_device(rank: int, world_size: int, per_rank: bool) -> None:
    device = torch.device("cuda", rank if per_rank else 0)
    torch.cuda.set_device(device)
    with Communicator(timeout_s=60, channels=2) as communicator:
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            for algorithm in (NATIVE, *algorithms(collective)):
                for numel in (1, 1001, 300_001):
                    check(communicator, collective, algorithm, numel, device)
        tensor = torch.full((7,), float(rank), device=device)
        communicator.broadcast(tensor, src=1)
        assert tensor.tolist() == [1.0] * 7
        communicator.barrier()
        assert communicator.all_gather_object(rank) == list(range(world_size))


def check(
    communicator: Communicator, collective: str, algorithm: str, numel: int, device: torch.device
) -> None:
    p, rank = communicator.world_size, communicator.rank
    tensor = torch.empty(numel, device=device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        busy_fill(tensor, rank + 1.0)  # the collective must wait for this
        handle = getattr(communicator, collective)(
            tensor, algorithm=algorithm, channel=1, async_op=True
        )
        handle.wait()
        after = tensor.clone()  # and this for the collective
    stream.synchronize()
    offsets = chunk_offsets(numel, p)
    total = p * (p + 1) / 2
    if collective == "all_reduce":
        assert after.unique().tolist() == [total]
    elif collective == "reduce_scatter":
        assert after[offsets[rank] : offsets[rank + 1]].unique().tolist() in ([total], [])
    else:
        expected = torch.cat(
            [torch.full((offsets[r + 1] - offsets[r],), r + 1.0) for r in range(p)]
        )
        assert torch.equal(after.cpu(), expected)
    assert handle.done()
    assert handle.finished_s >= handle.started_s


def test_gloo_through_pinned_memory() -> None:
    run_ranks(on_device, 2, False)


def nccl(rank: int, world_size: int) -> None:
    dist.destroy_process_group()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=world_size)
    on_device(rank, world_size, True)
    with Communicator(timeout_s=60) as communicator, pytest.raises(InvalidValueError, match="cuda"):
        communicator.all_reduce(torch.ones(3))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a device per rank")
def test_nccl_on_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(probe.port))
    del probe
    run_ranks(nccl, 2)


def test_the_stage_reads_what_the_callers_stream_wrote() -> None:
    stage, stream = PinnedStage(), torch.cuda.Stream()
    tensor = torch.zeros(1000, device="cuda")
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
