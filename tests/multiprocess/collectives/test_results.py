"""Every algorithm on real processes: right sums, and the same bits on every rank."""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator, transport
from syncopate.collectives.nccl.batches import Rounds
from syncopate.errors import CollectiveError, InvalidValueError, UnknownNameError
from syncopate.recipe import Recipe
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.registry import NATIVE, build
from tests.conformance.table import EXECUTED, TABLE
from tests.multiprocess.harness import REAL_DTYPES, run_ranks

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
LARGE = 500_003
"""Elements of float32 that take several blocks, unequal shards, and no staging."""


def cases(world_size: int) -> Iterator[tuple[str, str, int, torch.dtype]]:
    """Every algorithm with every count of elements; dtypes take turns over the world sizes."""
    rows = [
        (row.collective, row.algorithm)
        for row in TABLE
        if world_size in row.executed and row.collective in COLLECTIVES
    ]
    every = [*rows, *((name, NATIVE) for name in COLLECTIVES)]
    for turn, (collective, algorithm) in enumerate(every, start=world_size):
        for numel in (0, 1, 2, world_size - 1, world_size, 2 * world_size + 1, 1000):
            yield collective, algorithm, numel, torch.float32
        for dtype in REAL_DTYPES[turn % 3 :: 3]:
            yield collective, algorithm, 1001, dtype
        yield collective, algorithm, LARGE, (torch.float32, torch.bfloat16)[turn % 2]


def inputs(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Fractions, whose sums depend on the order of addition; small integers for integers."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.rand(numel, generator=generator, dtype=torch.float64)
    return (values * 10).to(dtype) if not dtype.is_floating_point else (values - 0.3).to(dtype)


@functools.cache
def given(
    world_size: int, numel: int, dtype: torch.dtype
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return the inputs of all ranks, and their sum as float64; many cases share them."""
    before = tuple(inputs(rank, numel, dtype) for rank in range(world_size))
    return before, torch.stack(before).double().sum(0)


def verify(collective: str, after: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Check what ``rank`` has to hold; return it."""
    dtype, numel = after.dtype, after.numel()
    before, total = given(world_size, numel, dtype)
    offsets = chunk_offsets(numel, len(before))
    mine = slice(offsets[rank], offsets[rank + 1])
    if collective == "all_gather":
        for owner, tensor in enumerate(before):
            shard = slice(offsets[owner], offsets[owner + 1])
            assert torch.equal(after[shard], tensor[shard])
        return after
    share = slice(None) if collective == "all_reduce" else mine
    if not dtype.is_floating_point:
        assert torch.equal(after[share], total[share].to(dtype))
    else:
        tolerance = len(before) * torch.finfo(dtype).eps * 4
        torch.testing.assert_close(
            after[share].double(), total[share], rtol=tolerance, atol=tolerance
        )
    return after[share]


def every_case(rank: int, world_size: int) -> dict[str, str]:
    digests = {}
    with Communicator(timeout_s=60) as communicator:
        for collective, algorithm, numel, dtype in cases(world_size):
            tensor = given(world_size, numel, dtype)[0][rank].clone()
            handle = getattr(communicator, collective)(tensor, algorithm=algorithm)
            assert handle.done()
            assert handle.finished_s >= handle.started_s
            held = verify(collective, tensor, rank, world_size)
            if collective == "all_reduce":
                digest = hashlib.sha1(held.view(torch.uint8).numpy().tobytes()).hexdigest()
                digests[f"{algorithm} {numel} {dtype}"] = digest
    return digests


@pytest.mark.parametrize("world_size", EXECUTED)
def test_right_and_bit_identical(world_size: int) -> None:
    results = run_ranks(every_case, world_size)
    assert all(digests == results[0] for digests in results)


def shapes_and_repeats(rank: int, world_size: int) -> list[Any]:
    with Communicator(timeout_s=60) as communicator:
        matrix = torch.full((3, 5), float(rank))
        first = communicator.all_reduce(matrix, algorithm="ring")
        again = communicator.all_reduce(matrix, algorithm="ring")
        assert again.started_s >= first.finished_s
        scalar = torch.tensor(float(rank))
        communicator.all_reduce(scalar, algorithm="binary_tree")
        other = torch.full((15,), float(rank))
        communicator.all_reduce(other, algorithm="ring")
        return [matrix.tolist(), scalar.item(), other.tolist()]


def test_any_shape_and_the_same_program_again() -> None:
    for matrix, scalar, other in run_ranks(shapes_and_repeats, 3):
        assert matrix == [[9.0] * 5] * 3
        assert scalar == 3.0
        assert other == [3.0] * 15


def beyond_range(rank: int, world_size: int) -> list[float]:
    with Communicator(timeout_s=60) as communicator, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = []
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            tensor = torch.full((3,), torch.finfo(dtype).max, dtype=dtype)
            communicator.all_reduce(tensor, algorithm="recursive_doubling")
            found += tensor.tolist()
        wrapping = torch.full((3,), 127, dtype=torch.int8)
        communicator.all_reduce(wrapping, algorithm="ring")
        return [*found, *wrapping.tolist()]


def test_sums_beyond_the_range_of_a_dtype_are_those_of_torch_without_a_word() -> None:
    wrapped = torch.full((3,), 127, dtype=torch.int8) * 2
    for found in run_ranks(beyond_range, 2):
        assert found == [math.inf] * 12 + wrapped.tolist()


def refusals(rank: int, world_size: int) -> list[str]:
    messages = []
    with Communicator(timeout_s=60, channels=2) as communicator:
        good = torch.ones(6)
        for call, kind in (
            (lambda: communicator.all_reduce(good, algorithm="rign"), UnknownNameError),
            (lambda: communicator.all_gather(good, algorithm="binary_tree"), UnknownNameError),
            (lambda: communicator.all_reduce(torch.ones(4, 6).t()), InvalidValueError),
            (
                lambda: communicator.all_reduce(torch.ones(3, requires_grad=True)),
                InvalidValueError,
            ),
            (lambda: communicator.all_reduce(torch.ones(3).bool()), InvalidValueError),
            (lambda: communicator.all_reduce(torch.ones(3, device="meta")), InvalidValueError),
            (lambda: communicator.all_reduce(good, channel=2), InvalidValueError),
            (lambda: communicator.broadcast(good, src=9), InvalidValueError),
            (lambda: communicator.all_reduce(torch.ones(1).cfloat().conj()), InvalidValueError),
            (lambda: communicator.all_gather(good, bounds=(0, 7, 6)), InvalidValueError),
            (lambda: communicator.all_gather(good[:0], bounds=(0, 6)), InvalidValueError),
            (
                lambda: communicator.run(Recipe("all_reduce"), good, bounds=(0, 2, 6)),
                InvalidValueError,
            ),
        ):
            with pytest.raises(kind) as caught:
                call()
            messages.append(str(caught.value))
        # None of this reached the other ranks, so the communicator is whole.
        communicator.all_reduce(good)
        assert good.tolist() == [world_size] * 6
    communicator.close()
    with pytest.raises(CollectiveError, match="closed"):
        communicator.all_reduce(good)
    return messages


def test_refusals_are_local_and_say_what_would_do() -> None:
    messages = run_ranks(refusals, 2)[0]
    known = "native, ring, flat_tree, recursive_doubling, halving_doubling, binary_tree"
    assert messages[0].startswith(f"unknown algorithm 'rign' for all_reduce; known: {known}")
    assert "contiguous" in messages[2]
    assert "detach" in messages[3]
    assert "0..1" in messages[6]
    assert "resolve_conj" in messages[8]
    assert "bounds is (0, 7, 6); it must be 3 element offsets" in messages[9]
    assert "from 0 to the 0 elements" in messages[10]
    assert "bounds of all_reduce is (0, 2, 6); it must be None" in messages[11]
    assert "reduce_scatter, all_gather" in messages[11]


def test_needs_torch_distributed() -> None:
    with pytest.raises(InvalidValueError, match="torchrun"):
        Communicator()


def objects(rank: int, world_size: int) -> None:
    with Communicator(timeout_s=60) as communicator:
        assert (communicator.rank, communicator.world_size) == (rank, world_size)
        everyone = communicator.all_gather_object({"rank": rank})
        assert everyone == [{"rank": peer} for peer in range(world_size)]
        assert communicator.broadcast_object(f"from {rank}", src=1) == "from 1"
        tensor = torch.full((3,), rank, dtype=torch.int16)
        communicator.broadcast(tensor, src=2)
        assert tensor.tolist() == [2, 2, 2]
        communicator.barrier()


def test_objects_broadcast_and_barrier() -> None:
    run_ranks(objects, 3)


def subgroups(rank: int, world_size: int) -> list[float]:
    pair = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(pair, use_local_synchronization=True)
    totals = []
    for _ in range(3):  # again, because a name given twice would find old addresses
        with Communicator(group, timeout_s=60) as communicator:
            tensor = torch.tensor([float(rank)])
            communicator.all_reduce(tensor, algorithm="ring")
            totals.append(tensor.item())
    return totals


def test_part_of_the_job_again_and_again() -> None:
    assert run_ranks(subgroups, 4) == [[1.0] * 3] * 2 + [[5.0] * 3] * 2


def other_ways(rank: int, world_size: int) -> None:
    """The public point-to-point calls, and the batched rounds that NCCL gets, on CPU."""
    group = dist.new_group(list(range(world_size)))
    rounds, chunks = Rounds(group, rank), Rounds(group, rank, chunk_bytes=40_000)
    with mock.patch.object(transport, "gloo_backend", return_value=None):
        communicator = Communicator(timeout_s=60)
    assert not communicator._runners[0]._executor.meshed
    with communicator:
        for row in [row for row in TABLE if row.collective in COLLECTIVES]:
            for numel in (1, 60_001):
                before, _ = given(world_size, numel, torch.float32)
                tensor = before[rank].clone()
                getattr(communicator, row.collective)(tensor, algorithm=row.algorithm)
                held = verify(row.collective, tensor, rank, world_size)
                batched = before[rank].clone()
                schedule = build(row.collective, row.algorithm, world_size)
                rounds.run(schedule, batched)
                assert torch.equal(verify(row.collective, batched, rank, world_size), held)
                # Message chunks follow one another; which sums come first may change with them.
                chunked = before[rank].clone()
                chunks.run(schedule, chunked)
                verify(row.collective, chunked, rank, world_size)


def test_without_private_calls_and_in_batched_rounds() -> None:
    run_ranks(other_ways, 3)
