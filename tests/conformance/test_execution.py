"""Every algorithm, run on real processes, gives what the collective promises.

Nine processes make groups of their first 1 to 9 ranks in turn, each with a communicator of its own,
and sweep algorithm x dtype x element count x root, as mpi4py sweeps its collectives, then the
options of every algorithm. Each result is compared with a float64 reference and, where several
ranks hold it, bit by bit between them.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from syncopate.collectives.communicator import Communicator
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from syncopate.units import DTYPE_BYTES
from tests.conformance.table import EXECUTED, TABLE, Options, Row
from tests.multiprocess.harness import run_ranks

DTYPES = tuple(getattr(torch, name) for name in DTYPE_BYTES)
LARGEST = 1_100_003
"""Elements of the largest buffer, 4 MiB of float32: transfers of several blocks."""

MOST = 65_537
"""Elements of the largest buffer of every dtype."""

TURNS = 8
"""Every world size takes one in so many pairs of dtype and element count, each another one.

One rank alone takes those of nine, so that every pair is sent.
"""

LARGE_TURNS = 3
"""Every world size takes the largest buffer of one in so many algorithms."""

GUARD = 7
"""Elements before and after the buffer, and a value in them, that no collective may touch."""


class Case(NamedTuple):
    """One collective to run."""

    row: Row
    dtype: torch.dtype
    numel: int
    root: int
    options: Options

    def __str__(self) -> str:
        return f"{self.row} {self.options} of {self.numel} x {self.dtype}, root {self.root}"


def numels(world_size: int) -> list[int]:
    """Return the element counts to sweep.

    None, few, around p, primes, both sides of where chunks become uneven, and more than the
    executor keeps copies of (64 KiB) and sends as short messages (256 KiB).
    """
    even = 64 * world_size
    around = [world_size - 1, world_size, world_size + 1, even - 1, even, even + 1]
    return [0, 1, 2, *around, 31, 1009, 16_384, 16_411, MOST]


def roots(row: Row, world_size: int) -> list[int]:
    """Return the first, a middle and the last rank where the collective has a root."""
    rooted = CONDITIONS[row.collective].rooted
    return sorted({0, world_size // 2, world_size - 1}) if rooted else [0]


def cases(world_size: int) -> Iterator[Case]:
    """Return what to run on ``world_size`` ranks, in the same order on all of them."""
    turn = 0
    for place, row in enumerate(TABLE):
        if world_size not in row.executed:
            continue
        found = roots(row, world_size)
        for which, dtype in enumerate(DTYPES):
            for index, numel in enumerate(numels(world_size)):
                if (which + index + world_size) % TURNS == 0:
                    turn += 1
                    yield Case(row, dtype, numel, found[turn % len(found)], {})
        order = list(range(world_size))[::-1]
        for options in (*row.variants(world_size), {"order": order[1:] + order[:1]}):
            turn += 1
            numel = (world_size + 1, 1009)[turn % 2]
            yield Case(row, torch.float32, numel, found[turn % len(found)], options)
        if (place + world_size) % LARGE_TURNS == 0:
            yield Case(row, torch.float32, LARGEST, found[-1], {})


class Data:
    """What each of ``world_size`` ranks contributes, and what comes out; the same on every rank."""

    def __init__(self, inputs: dict[torch.dtype, torch.Tensor], world_size: int) -> None:
        self.world_size = world_size
        self._inputs = {dtype: rows[:world_size] for dtype, rows in inputs.items()}

    def of(self, rank: int, case: Case) -> torch.Tensor:
        """Return the first elements of one rank's input."""
        return self._inputs[case.dtype][rank, : case.numel]

    def expected(self, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result of the whole buffer, as :func:`reals`, and how far off each may be."""
        rule = CONDITIONS[case.row.collective]
        if rule.reduces:
            return self._sum(case.dtype, case.numel)
        owners, offsets = [case.root], (0, case.numel)
        if rule.start is Place.SHARD:
            owners = list(range(self.world_size))
            offsets = chunk_offsets(case.numel, self.world_size)
        parts = [self.of(o, case)[offsets[i] : offsets[i + 1]] for i, o in enumerate(owners)]
        exact = reals(torch.cat(parts))
        return exact, torch.zeros_like(exact)

    @functools.cache  # noqa: B019 - it lives as long as the processes of the test
    def _sum(self, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.stack([reals(row[:numel]) for row in self._inputs[dtype]])
        if values.dtype == torch.int64:
            exact = values.sum(0).to(dtype).to(torch.int64)
            return exact, torch.zeros_like(exact)
        # Higham, Accuracy and Stability of Numerical Algorithms, (4.4): whatever the order of the
        # p - 1 additions; twice in double precision, in which the reference rounds as well.
        unit = torch.finfo(dtype).eps / 2
        bound = (self.world_size - 1) * unit / (1 - self.world_size * unit)
        again = 2 if unit == torch.finfo(values.dtype).eps / 2 else 1
        return values.sum(0), values.abs().sum(0) * bound * again


def inputs_of(ranks: int) -> dict[torch.dtype, torch.Tensor]:
    """Return what every rank contributes of every dtype: shape (ranks, elements)."""
    generator = torch.Generator().manual_seed(ranks)
    every = torch.randn((ranks, LARGEST), generator=generator, dtype=torch.float64).clamp_(-7, 7)
    inputs = {}
    for dtype in DTYPES:
        numbers = every if dtype == torch.float32 else every[:, :MOST]
        if dtype.is_complex:
            inputs[dtype] = torch.complex(numbers, every[:, 1 : MOST + 1]).to(dtype)
        elif dtype.is_floating_point:
            inputs[dtype] = numbers.to(dtype)
        else:
            # Sums leave the range of narrow integers, and wrap around.
            large = numbers * 2.0 ** (torch.iinfo(dtype).bits - 5)
            inputs[dtype] = large.to(torch.int64).to(dtype)
    return inputs


def reals(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` as float64 or int64, complex numbers as two."""
    flat = torch.view_as_real(values).flatten() if values.is_complex() else values
    return flat.to(torch.float64 if flat.is_floating_point() else torch.int64)


def run_one(communicator: Communicator, case: Case, data: Data) -> tuple[bool, torch.Tensor]:
    """Run one case; return whether this rank's result is right, and the result."""
    rank, numel = communicator.rank, case.numel
    rule = CONDITIONS[case.row.collective]
    offsets = chunk_offsets(numel, communicator.world_size)
    shard = slice(offsets[rank], offsets[rank + 1])
    buffer = torch.full((numel + 2 * GUARD,), GUARD, dtype=case.dtype)
    tensor = buffer[GUARD : GUARD + numel]
    start = shard if rule.start is Place.SHARD else slice(None)
    tensor[start] = data.of(rank, case)[start]
    call = getattr(communicator, case.row.collective)
    where = (case.root,) if rule.rooted else ()
    call(tensor, *where, algorithm=case.row.algorithm, options=case.options).wait()
    place = {
        Place.EVERYWHERE: slice(None),
        Place.SHARD: shard,
        Place.ROOT: slice(None) if rank == case.root else slice(0),
    }[rule.end]
    reference, allowed = data.expected(case)
    begin, end, _ = place.indices(numel)
    parts = 2 if case.dtype.is_complex else 1
    inside = slice(begin * parts, end * parts)
    error = (reals(tensor[place]) - reference[inside]).abs()
    untouched = torch.cat([buffer[:GUARD], buffer[GUARD + numel :]])
    right = bool((error <= allowed[inside]).all() and (untouched == GUARD).all())
    return right, tensor[place]


def sweep(rank: int, processes: int) -> dict[int, tuple[list[str], list[int], int]]:
    """Return per world size: the cases wrong on this rank, a checksum of each result, the count."""
    found = {}
    inputs = inputs_of(processes)
    for world_size in EXECUTED:
        group = dist.new_group(range(world_size))
        if rank < world_size:
            found[world_size] = sweep_group(group, Data(inputs, world_size))
        dist.barrier()
    return found


def sweep_group(group: dist.ProcessGroup, data: Data) -> tuple[list[str], list[int], int]:
    """Run the cases of one world size."""
    wrong: list[str] = []
    checksums = []
    world_size = data.world_size
    with Communicator(group, timeout_s=120) as communicator:
        assert communicator.world_size == world_size
        for case in cases(world_size):
            right, result = run_one(communicator, case, data)
            wrong += [] if right else [str(case)]
            if CONDITIONS[case.row.collective].end is Place.EVERYWHERE:
                checksums.append(zlib.crc32(result.view(torch.uint8).numpy().tobytes()))
    return wrong, checksums, len(list(cases(world_size)))


def test_results_are_right_and_bit_identical() -> None:
    by_rank = run_ranks(sweep, max(EXECUTED))
    for world_size in EXECUTED:
        _, checksums, count = by_rank[0][world_size]
        assert count > len(TABLE) * len(DTYPES)
        for rank in range(world_size):
            assert by_rank[rank][world_size] == ([], checksums, count)


def test_everything_has_its_turn() -> None:
    """What one world size leaves out another takes: every pair of dtype and count, every size."""
    for row in TABLE:
        seen = {
            (case.dtype, index)
            for world_size in EXECUTED
            for case in cases(world_size)
            if case.row is row and not case.options
            for index, numel in enumerate([*numels(world_size), LARGEST])
            if numel == case.numel
        }
        every = {(dtype, index) for dtype in DTYPES for index in range(len(numels(9)))}
        assert seen == every | {(torch.float32, len(numels(9)))}


def test_every_root_has_its_turn() -> None:
    for row in TABLE:
        for world_size in EXECUTED:
            seen = {case.root for case in cases(world_size) if case.row is row}
            assert seen == set(roots(row, world_size))
