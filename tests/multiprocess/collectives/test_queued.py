"""Collectives that a stream carries on, which is what NCCL's are, with a stand-in for the stream.

What is real here: ranks, groups, channels and their threads, rounds in batches, subgroups. What is
not: tensors say that they are on CUDA, and a stream is a thread that does one thing at a time.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives import Communicator, runner, transport
from syncopate.collectives.nccl import stages
from tests.children import HANGS_S
from tests.multiprocess.harness import run_ranks

OPTIONS: dict[str, dict[str, Any]] = {
    "native": {},
    "ring": {},
    "binary_tree": {},
    "blueconnect": {"factors": (2, 2), "pipelines": 2},
    "two_level": {"factors": (2, 2)},
}


class OnDevice(torch.Tensor):
    """A CPU tensor that says it is on CUDA; its views tell the truth."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True
    device = torch.device("cuda", 0)


class Stream:
    """Carries out what is queued, in order; `host` is the thread that queued it."""

    host = threading.local()

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def queue(self, tensor: torch.Tensor, ready: object, work: Any) -> Queued:
        assert ready == "ready"
        host = threading.current_thread()

        def run() -> None:
            Stream.host.thread = host
            work()

        return Queued(self._thread.submit(run), host)


class Queued:
    """The completion of what a stream carries out."""

    def __init__(self, future: Future[None], host: threading.Thread) -> None:
        self._future = future
        self.inline = host is threading.main_thread()

    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        self._future.result(HANGS_S)

    def stamps(self) -> tuple[float, float]:
        self.wait()
        return 0.0, 1.0


def pretending(channels: int, waited_for: list[str]) -> Communicator:
    """Return a communicator whose Gloo groups pass for NCCL's.

    Args:
        channels: of the communicator.
        waited_for: is told what the caller's thread would have waited for other ranks for.
    """
    runner.StreamQueue = Stream
    communicator = Communicator(timeout_s=60, channels=channels)
    transport.backends = lambda group: {"cuda": "gloo"}  # what subgroups are made of
    for channel in communicator._runners:
        channel._backends = {"cuda": "nccl"}
    runner.mark = lambda device: "ready"
    runner.on_this_device = lambda work: work

    def note(what: str) -> None:
        if Stream.host.thread is threading.main_thread():
            waited_for.append(what)

    def introduce(self: Any, device: torch.device) -> None:
        note("the channel's ranks")
        dist.all_reduce(torch.zeros(1), group=self.group)

    class Subgroup(stages.Subgroup):
        def introduce(self, device: torch.device) -> None:
            note("a subgroup's ranks")
            self.backend.allreduce([torch.zeros(1)]).wait()

    runner.Runner._introduce = introduce
    stages.Subgroup = Subgroup
    return communicator


def queued(rank: int, world_size: int) -> tuple[list[str], list[list[bool]]]:
    """Return what the caller waited for, and what was queued on its thread, by repetition."""
    waited_for: list[str] = []
    inline: list[list[bool]] = []
    with pretending(2, waited_for) as communicator:
        # Every second rank turns to its channels in the other order.
        order = (0, 1) if rank % 2 else (1, 0)
        for _ in range(2):
            inline.append([])
            for algorithm, options in OPTIONS.items():
                tensors = [torch.full((1001,), rank + channel + 1.0) for channel in range(2)]
                handles = {}
                for channel in order:
                    handles[channel] = communicator.all_reduce(
                        tensors[channel].as_subclass(OnDevice), algorithm=algorithm,
                        channel=channel, options=options, async_op=True,
                    )  # fmt: skip
                for channel in order:
                    handles[channel].wait()
                    inline[-1].append(handles[channel]._completion.inline)
                    assert handles[channel].finished_s == 1.0
                for channel, tensor in enumerate(tensors):
                    total = sum(peer + channel + 1 for peer in range(world_size))
                    assert tensor.unique().tolist() == [total], algorithm
    return waited_for, inline


def test_what_waits_for_other_ranks_leaves_the_callers_thread() -> None:
    for waited_for, (first, again) in run_ranks(queued, 4):
        assert waited_for == []
        by_algorithm = dict(zip(OPTIONS, zip(first[::2], first[1::2], strict=True), strict=True))
        assert by_algorithm == {
            "native": (False, False),  # the channel's ranks meet
            "ring": (True, True),
            "binary_tree": (True, True),
            "blueconnect": (False, False),  # the subgroups' do
            "two_level": (True, True),  # the same subgroups
        }
        assert all(again)


def bound(rank: int, world_size: int) -> None:
    """A part of a job whose default group is bound to a device, which torch would split."""
    pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    device = torch.device("cuda", 0)
    dist.group.WORLD.bound_device_id = device
    with Communicator(pair, timeout_s=60) as communicator:
        total = torch.tensor([rank])
        communicator.all_reduce(total)
        assert total.item() == rank // 2 * 4 + 1
        assert communicator._runners[0].group.bound_device_id is None
    assert dist.group.WORLD.bound_device_id == device


def test_a_part_of_a_job_bound_to_a_device() -> None:
    run_ranks(bound, 4)
