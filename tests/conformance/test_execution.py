"""Every algorithm, run on real processes, gives what the collective promises.

Sweep: algorithm x world size x dtype x element count, as mpi4py sweeps its collectives. All cases
of a world size share its processes. Each result is compared with a float64 reference and, where
several ranks hold it, bit by bit between them.
"""

from __future__ import annotations

import hashlib

import pytest
import torch

from syncopate.collectives.communicator import Communicator
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from tests.conformance.table import TABLE, Row
from tests.multiprocess.harness import run_ranks

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
LARGEST = 100_003
GUARD = 7
"""Elements before and after the buffer, and a value in them, that no collective may touch."""


def numels(world_size: int) -> list[int]:
    """Return the element counts to sweep: none, few, around p, uneven, many blocks."""
    return sorted({0, 1, world_size - 1, world_size, world_size + 1, 1000, LARGEST})


def inputs(world_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what each rank contributes, shape (p, LARGEST); the same on every rank."""
    generator = torch.Generator().manual_seed(world_size)
    if dtype == torch.int64:
        return torch.randint(-(2**40), 2**40, (world_size, LARGEST), generator=generator)
    return torch.randn(world_size, LARGEST, generator=generator, dtype=torch.float64).to(dtype)


def root_of(row: Row, world_size: int) -> int:
    """Return the root to test a rooted collective with: neither the first nor the last rank."""
    return world_size // 2 if CONDITIONS[row.collective].rooted else 0


def expected(row: Row, data: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of the whole buffer and how far off each element may be."""
    world_size = len(data)
    if CONDITIONS[row.collective].start is Place.ROOT:
        return data[root_of(row, world_size), :numel], torch.zeros(numel, dtype=torch.float64)
    if not CONDITIONS[row.collective].reduces:
        offsets = chunk_offsets(numel, world_size)
        shards = [data[r, offsets[r] : offsets[r + 1]] for r in range(world_size)]
        return torch.cat(shards), torch.zeros(numel, dtype=torch.float64)
    if data.dtype == torch.int64:
        return data[:, :numel].sum(0), torch.zeros(numel, dtype=torch.float64)
    values = data[:, :numel].double()
    # Each of p - 1 additions rounds a partial sum that is at most the sum of magnitudes.
    return values.sum(0), values.abs().sum(0) * torch.finfo(data.dtype).eps * world_size


def run_one(
    communicator: Communicator, row: Row, data: torch.Tensor, numel: int
) -> tuple[bool, torch.Tensor]:
    """Run one case; return whether this rank's result is right, and the result."""
    rank = communicator.rank
    offsets = chunk_offsets(numel, communicator.world_size)
    shard = slice(offsets[rank], offsets[rank + 1])
    buffer = torch.full((numel + 2 * GUARD,), GUARD, dtype=data.dtype)
    tensor = buffer[GUARD : GUARD + numel]
    if CONDITIONS[row.collective].start is Place.SHARD:
        tensor[shard] = data[rank, shard]
    else:
        tensor.copy_(data[rank, :numel])
    call = getattr(communicator, row.collective)
    root = root_of(row, communicator.world_size)
    where = (root,) if CONDITIONS[row.collective].rooted else ()
    call(tensor, *where, algorithm=row.algorithm).wait()
    place = {
        Place.EVERYWHERE: slice(None),
        Place.SHARD: shard,
        Place.ROOT: slice(None) if rank == root else slice(0),
    }[CONDITIONS[row.collective].end]
    result, (reference, allowed) = tensor[place], expected(row, data, numel)
    wide = torch.int64 if data.dtype == torch.int64 else torch.float64
    error = (result.to(wide) - reference[place].to(wide)).abs()
    untouched = torch.cat([buffer[:GUARD], buffer[GUARD + numel :]])
    right = bool((error <= allowed[place]).all() and (untouched == GUARD).all())
    return right, result


def running(world_size: int) -> list[Row]:
    """Return the rows to run on ``world_size`` ranks."""
    return [row for row in TABLE if world_size in row.executed]


def sweep(rank: int, world_size: int) -> tuple[list[str], dict[str, str], int]:
    """Return the cases that are wrong on this rank, a digest of each result, the count."""
    digests = {}
    wrong = []
    cases = 0
    with Communicator(timeout_s=120) as communicator:
        for dtype in DTYPES:
            data = inputs(world_size, dtype)
            for row in running(world_size):
                for numel in numels(world_size):
                    right, result = run_one(communicator, row, data, numel)
                    name = f"{row}, {world_size} ranks, {numel} x {dtype}"
                    wrong += [] if right else [name]
                    cases += 1
                    if CONDITIONS[row.collective].end is Place.EVERYWHERE:
                        content = result.view(torch.uint8).numpy().tobytes()
                        digests[name] = hashlib.sha256(content).hexdigest()
    return wrong, digests, cases


@pytest.mark.parametrize("world_size", sorted({p for row in TABLE for p in row.executed}))
def test_results_are_right_and_bit_identical(world_size: int):
    rows = running(world_size)
    by_rank = run_ranks(sweep, world_size, timeout_s=240)
    for wrong, digests, cases in by_rank:
        assert wrong == []
        assert cases == len(DTYPES) * len(rows) * len(numels(world_size))
        assert digests == by_rank[0][1]
