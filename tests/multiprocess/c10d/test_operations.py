"""Every operation of the backend beside Gloo's: the same values on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.multiprocess.harness import Cases, run_ranks

BACKEND = "cpu:syncopate"
NUMBERS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
SIZES = (1, 7, 40_000)

Operation = Callable[[Any, int, int, Tensor], list[Tensor]]


def data(numel: int, dtype: torch.dtype, rank: int) -> Tensor:
    """Return small whole numbers, whose sums and products are exact in every dtype."""
    values = (torch.arange(numel) + rank) % 3
    return values.to(dtype)


def all_reduce(group: Any, rank: int, size: int, mine: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
    dist.all_reduce(mine, op, group=group)
    return [mine]


def reduce(group: Any, rank: int, size: int, mine: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
    dist.reduce(mine, dst=size - 1, op=op, group=group)
    return [mine] if rank == size - 1 else []


def reduce_scatter(
    group: Any, rank: int, size: int, mine: Tensor, op: Any = dist.ReduceOp.SUM
) -> Any:
    whole = mine.repeat(size)
    out = torch.empty_like(mine)
    dist.reduce_scatter_single(out, whole, op, group=group)
    listed = torch.empty_like(mine)
    dist.reduce_scatter(listed, list(whole.split(mine.numel())), op, group=group)
    return [out, listed, whole]


def broadcast(group: Any, rank: int, size: int, mine: Tensor) -> Any:
    dist.broadcast(mine, src=size - 1, group=group)
    return [mine]


def all_gather(group: Any, rank: int, size: int, mine: Tensor) -> Any:
    listed = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(listed, mine, group=group)
    whole = mine.new_empty(size * mine.numel())
    dist.all_gather_single(whole, mine, group=group)
    return [*listed, whole]


def gather(group: Any, rank: int, size: int, mine: Tensor) -> Any:
    into = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
    dist.gather(mine, into, dst=1, group=group)
    return into or []


def scatter(group: Any, rank: int, size: int, mine: Tensor) -> Any:
    given = [mine + peer for peer in range(size)] if rank == 1 else None
    into = torch.empty_like(mine)
    dist.scatter(into, given, src=1, group=group)
    return [into]


def all_to_all(group: Any, rank: int, size: int, mine: Tensor) -> Any:
    into = [torch.empty_like(mine) for _ in range(size)]
    dist.all_to_all(into, [mine + peer for peer in range(size)], group=group)
    rows = mine.repeat(size)
    single = torch.empty_like(rows)
    dist.all_to_all_single(single, rows, group=group)
    sent = [rank + peer for peer in range(size)]
    uneven = mine.new_empty(sum(sent), 2)
    given = (torch.arange(2 * sum(sent)) % 5).to(mine.dtype).view(-1, 2)
    dist.all_to_all_single(uneven, given, sent, sent, group=group)
    return [*into, single, uneven]


def messages(group: Any, rank: int, size: int, mine: Tensor) -> Any:
    came = [torch.empty_like(mine) for _ in range(2)]
    after, before = (rank + 1) % size, (rank - 1) % size
    works = [dist.irecv(came[1], before, group, tag=1), dist.irecv(came[0], before, group, tag=0)]
    works += [dist.isend(mine, after, group, tag=0), dist.isend(mine + 1, after, group, tag=1)]
    for work in works:
        work.wait()
    return came


REDUCING: dict[str, Any] = {
    "all_reduce": all_reduce,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
}
COPYING: dict[str, Operation] = {
    "broadcast": broadcast,
    "all_gather": all_gather,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "messages": messages,
}


def beside_gloo(rank: int, size: int) -> None:
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    with Cases() as case:
        for name, copy in COPYING.items():
            for dtype in NUMBERS:
                for numel in SIZES:
                    with case(f"{name} {dtype} {numel}"):
                        same(copy, rank, size, (ours, gloo), data(numel, dtype, rank))
        for name, operation in REDUCING.items():
            for dtype in NUMBERS:
                for numel in SIZES:
                    with case(f"{name} {dtype} {numel}"):
                        same(operation, rank, size, (ours, gloo), data(numel, dtype, rank))


def same(
    operation: Any, rank: int, size: int, groups: tuple[Any, Any], mine: Tensor, **more: Any
) -> None:
    found, wanted = (operation(each, rank, size, mine.clone(), **more) for each in groups)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other), (one, other)


@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_and_dtype_is_gloos(size: int) -> None:
    run_ranks(beside_gloo, size, backend=BACKEND)


def reductions(rank: int, size: int) -> None:
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    with Cases() as case:
        for name in REDUCTIONS:
            bits = name in ("BAND", "BOR", "BXOR")
            for dtype in (torch.int32, torch.uint8) if bits else (torch.float32, torch.float64):
                for what, operation in REDUCING.items():
                    with case(f"{what} {name} {dtype}"):
                        mine = data(1000, dtype, rank)
                        op = getattr(dist.ReduceOp, name)
                        same(operation, rank, size, (ours, gloo), mine, op=op)


@pytest.mark.parametrize("size", [2, 3])
def test_every_reduction_is_gloos(size: int) -> None:
    run_ranks(reductions, size, backend=BACKEND)
