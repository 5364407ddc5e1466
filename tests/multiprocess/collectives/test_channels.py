"""Channels: order within one, independence of several, threads, Ctrl-C, and leaving no trace."""

from __future__ import annotations

import gc
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from tests.children import HANGS_S
from tests.multiprocess.harness import run_ranks


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "syncopate" in thread.name}


def order(rank: int, world_size: int) -> None:
    with Communicator(timeout_s=60, channels=2) as communicator:
        assert not [name for name in names() if "channel" in name]  # threads start when needed
        tensors = [torch.full((50_000,), float(index)) for index in range(8)]
        handles = [
            communicator.all_reduce(
                tensor, algorithm=("ring", "native")[index % 2], channel=0, async_op=True
            )
            for index, tensor in enumerate(tensors)
        ]
        # A synchronous call on a busy channel waits for its turn.
        last = communicator.all_reduce(torch.ones(3), algorithm="binary_tree")
        assert all(handle.done() for handle in handles)
        for before, after in zip([*handles], [*handles[1:], last], strict=True):
            assert after.started_s >= before.finished_s >= before.started_s
        for index, tensor in enumerate(tensors):
            assert tensor.unique().tolist() == [index * world_size]
        assert "syncopate-channel-0" in names()
        assert "syncopate-channel-1" not in names()
    assert not [name for name in names() if "channel" in name]


def test_one_channel_keeps_the_order_of_submission() -> None:
    run_ranks(order, 3)


def independence(rank: int, world_size: int) -> None:
    with Communicator(timeout_s=60, channels=2) as communicator:
        if rank == 1:
            # Rank 0 waits on channel 0 for this rank, and gets on with channel 1 meanwhile.
            for _ in range(3):
                communicator.all_reduce(torch.ones(10), algorithm="ring", channel=1)
            dist.barrier()
        first = communicator.all_reduce(torch.ones(10), algorithm="ring", channel=0, async_op=True)
        if rank == 0:
            for _ in range(3):
                communicator.all_reduce(torch.ones(10), algorithm="ring", channel=1)
            assert not first.done()
            dist.barrier()
        first.wait()
        assert first.done()


def test_channels_do_not_wait_for_each_other() -> None:
    run_ranks(independence, 2)


def crossing(rank: int, world_size: int, at_first: int) -> None:
    """Many collectives on four channels at once, submitted in a different order on each rank."""
    with Communicator(timeout_s=60, channels=at_first) as communicator:
        communicator.widen(4)
        handles = []
        for step in range(10):
            for offset in range(4):
                channel = (rank + offset) % 4
                tensor = torch.full((20_000,), float(channel + step))
                name = ("ring", "recursive_doubling", "halving_doubling", "native")[channel]
                handle = communicator.all_reduce(
                    tensor, algorithm=name, channel=channel, async_op=True
                )
                handles.append((handle, tensor, channel + step))
        for handle, tensor, value in handles:
            handle.wait()
            assert tensor.unique().tolist() == [value * world_size]


@pytest.mark.parametrize("at_first", [4, 1])
def test_four_channels_at_once(at_first: int) -> None:
    run_ranks(crossing, 4, at_first)


def late_data(rank: int, world_size: int) -> None:
    """A rank whose data come late delays the others and changes nothing else."""
    with Communicator(timeout_s=60) as communicator:
        for late in range(world_size):
            for name in ("ring", "recursive_doubling", "binary_tree"):
                if rank == late:
                    time.sleep(0.05)
                tensor = torch.arange(1000.0) + rank
                communicator.all_reduce(tensor, algorithm=name)
                expected = torch.arange(1000.0) * world_size + sum(range(world_size))
                assert torch.equal(tensor, expected)


def test_ranks_that_come_at_different_times() -> None:
    run_ranks(late_data, 4)


def interrupted(rank: int, world_size: int) -> Any:
    communicator = Communicator(timeout_s=60)
    communicator.barrier()
    caught_after_s = None
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handle = communicator.all_reduce(torch.ones(10), algorithm="ring", async_op=True)
        threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
        began_s = time.monotonic()
        try:
            handle.wait()
        except KeyboardInterrupt:
            caught_after_s = time.monotonic() - began_s
    dist.barrier()
    if rank == 1:
        communicator.all_reduce(torch.ones(10), algorithm="ring")
    else:
        handle.wait()
    communicator.close()
    return caught_after_s


def test_ctrl_c_gets_through_a_wait() -> None:
    caught_after_s = run_ranks(interrupted, 2)[0]
    assert caught_after_s is not None
    assert caught_after_s < 10


def forgotten(rank: int, world_size: int) -> None:
    communicator = Communicator(timeout_s=60)
    communicator.all_reduce(torch.ones(3), async_op=True).wait()
    assert names()
    dist.barrier()
    del communicator
    gc.collect()
    deadline_s = time.monotonic() + HANGS_S
    while names() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not names()


def test_threads_end_with_a_communicator_that_was_never_closed() -> None:
    run_ranks(forgotten, 2)


def alone(rank: int, world_size: int) -> None:
    with Communicator(channels=3) as communicator:
        assert communicator.channels == 3
        tensor = torch.arange(5.0)
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            for async_op in (False, True):
                handle = getattr(communicator, collective)(
                    tensor, algorithm="ring", channel=2, async_op=async_op
                )
                handle.wait()
                assert handle.done()
        communicator.broadcast(tensor)
        communicator.barrier()
        assert communicator.broadcast_object("x") == "x"
        assert communicator.all_gather_object(3) == [3]
        assert tensor.tolist() == [0, 1, 2, 3, 4]
        assert not names()


def test_a_world_of_one_does_nothing() -> None:
    run_ranks(alone, 1)
