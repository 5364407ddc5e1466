"""A rank of a process group that dies is named by the others, soon, in every kind of wait."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.errors import CollectiveError
from tests.children import HANGS_S
from tests.multiprocess.harness import run_ranks

BACKEND = "cpu:syncopate"
CULPRIT = 2
SOON_S = HANGS_S / 10
"""Far below the groups' limit, on a machine that others load too."""


def all_reduce(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def all_reduce_in_background(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True).wait()


def future(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True).get_future().wait()


def all_to_all(tensor: torch.Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(tensor), tensor)


def broadcast_of_another(tensor: torch.Tensor) -> None:
    """Rank 2 is the last of the chain, and only its neighbour sends to it."""
    dist.broadcast(tensor, src=0)


def message(tensor: torch.Tensor) -> None:
    """Rank 0 and 1 wait for each other's neighbour, rank 3 for the one that is lost."""
    rank = dist.get_rank()
    after, before = (rank + 1) % 4, (rank - 1) % 4
    works = [dist.isend(tensor, after), dist.irecv(torch.empty_like(tensor), before)]
    for work in works:
        work.wait()


def object_list(tensor: torch.Tensor) -> None:
    dist.all_gather_object([None] * 4, tensor)


CALLS = {
    call.__name__: call
    for call in (
        all_reduce,
        all_reduce_in_background,
        future,
        all_to_all,
        broadcast_of_another,
        message,
        object_list,
    )
}


def until_it_fails(call: Callable[[], object]) -> None:
    while True:
        call()


def killed(rank: int, size: int, name: str) -> dict[str, Any]:
    tensor = torch.zeros(40_000)
    dist.barrier()
    if rank == CULPRIT:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    began_s = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        until_it_fails(lambda: CALLS[name](tensor))
    took_s = time.monotonic() - began_s
    with pytest.raises(CollectiveError, match="broken since"):
        dist.all_reduce(tensor)
    dist.destroy_process_group()
    return {"text": str(caught.value), "took_s": took_s}


@pytest.mark.parametrize("name", CALLS)
def test_a_rank_that_is_killed_is_named(name: str) -> None:
    results = run_ranks(killed, 4, name, backend=BACKEND, may_die=[CULPRIT])
    named = re.compile(rf"rank 2 (\({re.escape(socket.gethostname())}\) )?was lost")
    for rank in (0, 1, 3):
        assert named.search(results[rank]["text"]), results
        assert results[rank]["took_s"] < SOON_S


def killed_amid_a_backward(rank: int, size: int) -> str:
    model = DistributedDataParallel(nn.Linear(300, 300))
    if rank == CULPRIT:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(RuntimeError) as caught:
        until_it_fails(lambda: model(torch.ones(4, 300)).sum().backward())
    return str(caught.value)


def test_ddp_says_who_was_lost() -> None:
    results = run_ranks(killed_amid_a_backward, 4, backend=BACKEND, may_die=[CULPRIT])
    assert all("rank 2" in results[rank] and "was lost" in results[rank] for rank in (0, 1, 3))


def killed_in_a_part(rank: int, size: int) -> str:
    part = dist.new_group([1, 2, 3])
    dist.barrier()
    if rank == 0:
        return ""
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(CollectiveError) as caught:
        until_it_fails(lambda: dist.all_reduce(torch.zeros(10), group=part))
    return str(caught.value)


def test_ranks_of_a_part_are_named_by_their_numbers_in_the_job_too() -> None:
    results = run_ranks(killed_in_a_part, 4, backend=BACKEND, may_die=[CULPRIT])
    for rank in (1, 3):
        assert "rank 1" in results[rank], results
        assert "of the job: rank 2)" in results[rank]
