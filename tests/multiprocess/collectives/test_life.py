"""A communicator from beginning to end: what it takes of torch, and that it gives it back."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from syncopate.artifacts.cluster import Cluster
from syncopate.collectives import Communicator, runner, transport
from syncopate.errors import CollectiveError, InvalidValueError
from tests.children import HANGS_S
from tests.multiprocess.harness import run_ranks


def held() -> dict[str, int]:
    """Return how many groups torch has names for, threads of ours, and sockets of this process."""
    gc.collect()
    files = Path("/proc/self/fd")
    links = []
    for file in files.iterdir() if files.exists() else ():
        with suppress(OSError):
            links.append(os.readlink(file))
    return {
        "groups": len(distributed_c10d._world.pg_names),
        "threads": sum("syncopate" in thread.name for thread in threading.enumerate()),
        "sockets": sum(link.startswith("socket:") for link in links),
    }


def still_held(before: dict[str, int]) -> dict[str, int]:
    """Return what is held beyond ``before``, once threads and connections had time to end."""
    deadline_s = time.monotonic() + HANGS_S
    while True:
        # A connection that was about to end is in ``before``, and not in what is held now.
        beyond = {what: now - before[what] for what, now in held().items() if now > before[what]}
        if not beyond or time.monotonic() >= deadline_s:
            return beyond
        time.sleep(0.05)


def objects_over_the_mesh(rank: int, world_size: int) -> list[Any]:
    """Return what the ranks tell each other when Gloo's connections are gone."""
    with Communicator(timeout_s=30, check=True) as communicator:
        dist.barrier()
        peers = [peer for peer in range(world_size) if peer != rank]
        for each in communicator._runners:
            transport.hang_up(each.group, peers)
        dist.barrier()
        communicator.barrier()
        told: list[Any] = [communicator.broadcast_object("x" * (rank * 1000), src=world_size - 1)]
        told.append(communicator.all_gather_object(["y" * rank, rank] if rank else None))
        return told


def failed_starts(rank: int, world_size: int) -> list[dict[str, int]]:
    """Return what is left behind by communicators that cannot be made."""
    left = []
    pair = dist.new_group([0, 1, 2])
    for group in (None, pair):
        before = held()
        with (
            mock.patch.dict(os.environ, SYNCOPATE_HEARTBEAT_S="soon"),
            pytest.raises(InvalidValueError, match="soon"),
        ):
            Communicator(group, channels=2, timeout_s=30)
        left.append(still_held(before))
        stages = mock.Mock(side_effect=[mock.Mock(), RuntimeError("out of luck")])
        with (
            mock.patch.object(runner, "Stages", stages),
            pytest.raises(CollectiveError, match="creating the communicator: out of luck"),
        ):
            Communicator(group, channels=2, timeout_s=30)
        del stages  # it holds what it was called with
        left.append(still_held(before))
        dist.barrier()
    return left


def after_the_end(rank: int, world_size: int) -> list[str]:
    """Return the calls that a closed communicator does not refuse."""
    communicator = Communicator(timeout_s=30)
    communicator.close()
    calls: dict[str, Callable[[], Any]] = {
        "barrier": communicator.barrier,
        "broadcast_object": lambda: communicator.broadcast_object(rank),
        "all_gather_object": lambda: communicator.all_gather_object(rank),
        "messages": communicator.messages,
        "widen": lambda: communicator.widen(2),
        "use_cluster": lambda: communicator.use_cluster(Cluster.preset("1gbe", world_size)),
        "all_reduce": lambda: communicator.all_reduce(torch.ones(1)),
    }
    went_on = []
    for name, call in calls.items():
        try:
            call()
            went_on.append(name)
        except CollectiveError as error:
            if "the communicator is closed" not in str(error):
                went_on.append(f"{name}: {error}")
    return went_on


def parts_of_the_job(rank: int, world_size: int) -> dict[str, int]:
    """Make groups of parts of the job on ranks with different pasts; return what stays behind."""
    pasts = [dist.new_group([rank], use_local_synchronization=True) for _ in range(rank)]
    before = held()
    naming = distributed_c10d._hash_ranks_to_str
    pairs = [(0, 1), (1, 2)] if rank == 1 else [(0, 1)] if rank == 0 else [(1, 2)]
    groups = {pair: dist.new_group(list(pair)) for pair in ((0, 1), (1, 2))}
    before["groups"] += len(pairs)
    before = {**held(), "threads": before["threads"], "groups": before["groups"]}
    for _ in range(2):
        for pair in pairs:
            with Communicator(groups[pair], channels=2, timeout_s=30) as communicator:
                total = torch.tensor([rank])
                for channel in range(2):
                    communicator.all_reduce(total.clone(), channel=channel)
                communicator.all_reduce(total, algorithm="ring")
                assert total.item() == sum(pair)
                assert communicator.all_gather_object(rank) == list(pair)
    del communicator
    assert distributed_c10d._hash_ranks_to_str is naming
    assert len(pasts) == rank
    return still_held(before)


def children(rank: int, world_size: int) -> list[float]:
    """Return sums after children of rank 1, one that raises and one that drops its copy of it."""
    communicator = Communicator(timeout_s=30)
    sums = []
    for raises in (True, False):
        if rank == 1:
            if not (child := os.fork()):
                with suppress(BaseException):
                    sys.stderr = io.StringIO()
                    if raises:  # as the interpreter does at the end of such a child
                        sys.excepthook(RuntimeError, RuntimeError("of the child"), None)
                    else:
                        del communicator
                        gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0) == (child, 0)
            assert communicator.detector is not None
            assert not communicator.detector._notices.failed()
        for algorithm in ("ring", "native"):
            total = torch.ones(4)
            communicator.all_reduce(total, algorithm=algorithm)
            sums.append(total.sum().item())
    communicator.close()
    return sums


def life(rank: int, world_size: int) -> dict[str, Any]:
    found = {
        case.__name__: case(rank, world_size)
        for case in (
            objects_over_the_mesh,
            failed_starts,
            after_the_end,
            parts_of_the_job,
            children,
        )
    }
    dist.barrier()
    return found


@pytest.fixture(scope="module")
def lives() -> list[dict[str, Any]]:
    return run_ranks(life, 3)


def test_barrier_objects_and_checks_need_no_gloo(lives: list[dict[str, Any]]) -> None:
    for found in lives:
        assert found["objects_over_the_mesh"] == ["x" * 2000, [None, ["y", 1], ["yy", 2]]]


def test_a_start_that_fails_leaves_nothing_behind(lives: list[dict[str, Any]]) -> None:
    assert [found["failed_starts"] for found in lives] == [[{}] * 4] * 3


def test_a_closed_communicator_refuses_every_call(lives: list[dict[str, Any]]) -> None:
    assert [found["after_the_end"] for found in lives] == [[]] * 3


def test_groups_of_parts_of_the_job_leave_nothing_behind(lives: list[dict[str, Any]]) -> None:
    assert [found["parts_of_the_job"] for found in lives] == [{}] * 3


def test_a_forked_child_ends_nothing_of_its_parent(lives: list[dict[str, Any]]) -> None:
    assert [found["children"] for found in lives] == [[12.0] * 4] * 3
