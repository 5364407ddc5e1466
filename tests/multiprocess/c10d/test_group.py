"""Groups of the backend from beginning to end: works, objects, parts of the job, refusals."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.errors import InvalidValueError
from tests.children import HANGS_S, run_script
from tests.multiprocess.collectives.test_life import held, still_held
from tests.multiprocess.harness import Cases, run_ranks

BACKEND = "cpu:syncopate"


def works(rank: int, size: int) -> None:
    """Many are under way at the same time, and end in the order of their calls."""
    ended: list[int] = []
    futures = []
    for number in range(8):
        work = dist.all_reduce(torch.full((5,), float(number)), async_op=True)
        future = work.get_future()
        futures.append(
            future.then(lambda done, number=number: (ended.append(number), done.value()))
        )
    for number, future in enumerate(futures):
        assert future.wait()[1][0].tolist() == [number * size] * 5
    assert ended == list(range(8))


def callbacks(rank: int, size: int) -> None:
    """A callback may call a collective, and wait for it."""

    def again(done: Any) -> torch.Tensor:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        return work.get_future().wait()[0]

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again)
    assert future.wait().tolist() == [size**3] * 3


def callbacks_and_queue(rank: int, size: int) -> None:
    """A callback's collective comes next on every rank, whether another is queued by then or not.

    On the last rank the second collective is queued before the first can end; on the others only
    when the callback has begun.
    """
    store = dist.distributed_c10d._get_default_store()
    last, began = rank == size - 1, threading.Event()

    def again(done: Any) -> torch.Tensor:
        began.set()
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return tensor

    if not last:
        store.wait(["the last rank has queued"])
    tensor = torch.full((3,), 10.0)
    first = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again)
    if not last:
        assert began.wait(HANGS_S)
    second = dist.all_reduce(tensor, async_op=True)
    if last:
        store.set("the last rank has queued", "")
    second.wait()
    assert first.wait().tolist() == [size**2] * 3
    assert tensor.tolist() == [10.0 * size] * 3


def objects(rank: int, size: int) -> None:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank})
    assert [found["rank"] for found in gathered] == list(range(size))
    told = [f"of {rank}"]
    dist.broadcast_object_list(told, src=1)
    assert told == ["of 1"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [{"for": peer} for peer in range(size)], src=0)
    assert mine == [{"for": rank}]


def parts(rank: int, size: int) -> None:
    part = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=part)
        assert tensor.tolist() == [size - 1]
        dist.destroy_process_group(part)
    uneven = [torch.empty(peer + 1) for peer in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    assert [found.tolist() for found in uneven] == [[peer] * (peer + 1) for peer in range(size)]
    with Communicator() as communicator:
        assert communicator.all_gather_object(rank) == list(range(size))


def odd_tensors(rank: int, size: int) -> None:
    truth = torch.tensor([rank == 0, False])
    dist.all_reduce(truth)
    assert truth.tolist() == [True, False]
    turned = torch.ones(3, 4).t()
    dist.all_reduce(turned)
    assert torch.equal(turned, torch.full((4, 3), float(size)))
    small = torch.tensor([rank + 1.0]).to(torch.float8_e5m2)
    dist.broadcast(small, src=1)
    assert small.float().tolist() == [2]
    product = torch.tensor([1.0 + 1j])
    dist.all_reduce(product)
    assert product.tolist() == [size * (1 + 1j)]


def refusals(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    with pytest.raises(InvalidValueError, match="NCCL"):
        dist.all_reduce(torch.ones(1, device="meta"))
    expanded = torch.ones(1).expand(5)
    with pytest.raises(InvalidValueError, match="memory for every element"):
        dist.all_reduce(expanded)
    with pytest.raises(InvalidValueError, match="memory for every element"):
        dist.recv(expanded, (rank + 1) % size)
    whole = torch.empty(5 * size)
    dist.all_gather_single(whole, expanded)  # what is only read may be so, and the group goes on
    assert whole.tolist() == [1.0] * 5 * size
    with pytest.raises(InvalidValueError, match="another rank of the group"):
        dist.isend(torch.ones(1), rank)
    with pytest.raises(InvalidValueError, match=r"in 0\.\."):
        dist.isend(torch.ones(1), (rank + 1) % size, tag=-1)
    with pytest.raises(InvalidValueError, match=r"[23] times"):
        dist.all_gather_single(torch.empty(1), torch.ones(1))
    with pytest.raises(RuntimeError, match="No device associated"):
        dist.split_group(group, [[0, 1]])
    with pytest.raises(ValueError, match="GLOO"):
        dist.monitored_barrier()
    group.monitored_barrier(datetime.timedelta(seconds=60))


CASES = (works, callbacks, callbacks_and_queue, objects, parts, odd_tensors, refusals)


def every_case(rank: int, size: int) -> dict[str, int]:
    with Cases() as case:
        for run in CASES:
            with case(run.__name__):
                run(rank, size)
    dist.destroy_process_group()
    return still_held({**held(), "groups": 0, "threads": 0})


@pytest.mark.parametrize("size", [2, 3])
def test_groups(size: int) -> None:
    assert run_ranks(every_case, size, backend=BACKEND) == [{}] * size


@pytest.mark.parametrize("order", ["syncopate, torch", "torch, syncopate"])
def test_torch_knows_the_backend_whichever_is_imported_first(order: str) -> None:
    done = run_script(
        f"import {order}; print('syncopate' in torch.distributed.Backend.backend_list)"
    )
    assert done.stdout == "True\n", done.stderr
