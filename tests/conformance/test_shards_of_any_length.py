"""Every algorithm with shards, run on real processes with shards of any length.

Eight processes make groups of their first 1 to 8 ranks in turn, and sweep algorithm x bounds x
dtype x options over each of the carriers: the communicator's (mesh, and Gloo's own collectives),
NCCL's batches and NCCL's stages, which run on Gloo as well. Data and sums are small integers, exact
in every dtype, so that results are equal or wrong.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.nccl.batches import Rounds
from syncopate.collectives.nccl.stages import Stages
from syncopate.collectives.shards import Form
from syncopate.schedules.conditions import CONDITIONS
from syncopate.schedules.registry import NATIVE, build
from syncopate.units import DTYPE_BYTES
from tests.conformance.table import TABLE
from tests.multiprocess.harness import run_ranks

WORLDS = (1, 2, 3, 4, 5, 8)
DTYPES = tuple(getattr(torch, name) for name in DTYPE_BYTES)
SHARDED = [(row.collective, row.algorithm) for row in TABLE if CONDITIONS[row.collective].sharded]
OWN = [(collective, NATIVE) for collective in dict.fromkeys(name for name, _ in SHARDED)]

LONG = 140_009
"""Elements of the longest shard: more than one block of float32, and more than is staged."""

OWNED = 17
"""Elements of a buffer that is one rank's."""

VALUES = 15
"""Values of every rank, so that their sum over eight ranks fits an int8."""

GUARD = 3
"""Elements before and after the buffer, and a value in them, that no collective may touch."""

Bounds = tuple[int, ...]


class Case(NamedTuple):
    """One collective to run."""

    collective: str
    algorithm: str
    bounds: Bounds
    dtype: torch.dtype
    options: dict[str, Any]


def some_bounds(world_size: int) -> list[Bounds]:
    """Return bounds with empty shards, one owner, few elements, and at random."""
    p, draw = world_size, random.Random(world_size)
    lengths = [
        [OWNED if r == owner else 0 for r in range(p)] for owner in sorted({0, p // 2, p - 1})
    ]
    lengths.append([int(r % 2 == 1) for r in range(p)])  # fewer elements than ranks
    lengths.append([3 * r for r in range(p)])
    lengths += [[draw.choice((0, 1, 2, 100, 1013)) for _ in range(p)] for _ in range(3)]
    lengths.append([draw.choice((0, 5, 40_009, LONG)) for _ in range(p - 1)] + [LONG])
    return [(0, *itertools.accumulate(each)) for each in lengths]


def cases(world_size: int) -> Iterator[Case]:
    """Return what to run on ``world_size`` ranks, in the same order on all of them."""
    dtypes = itertools.cycle(DTYPES)
    sweep = some_bounds(world_size)
    for collective, algorithm in (*SHARDED, *OWN):
        for bounds in sweep[:-1]:
            # Where buffers are as long, of one dtype: bounds alone tell those collectives apart.
            dtype = torch.int32 if bounds[-1] == OWNED else next(dtypes)
            yield Case(collective, algorithm, bounds, dtype, {})
        yield Case(collective, algorithm, sweep[-1], torch.float32, {})
    order = [*range(1, world_size, 2), *range(0, world_size, 2)]
    for row in TABLE:
        if (row.collective, row.algorithm) not in SHARDED:
            continue
        yield Case(row.collective, row.algorithm, sweep[-2], next(dtypes), {"order": order})
        for turn, options in enumerate(row.variants(world_size)):
            ordered = {**options, "order": order} if turn % 2 else options
            yield Case(row.collective, row.algorithm, sweep[-2 - turn % 4], next(dtypes), ordered)


def contribution(rank: int, case: Case) -> torch.Tensor:
    """Return what ``rank`` has to give: small integers, imaginary parts included."""
    numbers = torch.arange(case.bounds[-1], dtype=torch.int32) * 7 + 5 * rank
    real = numbers % VALUES
    if case.dtype.is_complex:
        return torch.complex(real.double(), (numbers % 11).double()).to(case.dtype)
    return real.to(case.dtype)


def is_right(run: Callable[[torch.Tensor], object], case: Case, rank: int, world_size: int) -> bool:
    """Run one case; say whether this rank's result is right, and nothing else was touched."""
    numel = case.bounds[-1]
    inputs = [contribution(peer, case) for peer in range(world_size)]
    mine = slice(*case.bounds[rank : rank + 2])
    buffer = torch.full((numel + 2 * GUARD,), GUARD, dtype=case.dtype)
    tensor = buffer[GUARD : GUARD + numel]
    if case.collective == "all_gather":
        tensor.fill_(VALUES)  # a value that may not come through
        tensor[mine] = inputs[rank][mine]
        parts = itertools.pairwise(case.bounds)
        wanted = torch.cat([inputs[peer][a:b] for peer, (a, b) in enumerate(parts)])
        place = slice(None)
    else:
        tensor.copy_(inputs[rank])
        wanted = torch.stack(inputs).sum(0).to(case.dtype)[mine]
        place = mine
    run(tensor)
    untouched = torch.cat([buffer[:GUARD], buffer[GUARD + numel :]])
    return torch.equal(tensor[place], wanted) and bool((untouched == GUARD).all())


def sweep_group(group: dist.ProcessGroup, rank: int, world_size: int) -> tuple[list[str], int]:
    """Run the cases of one world size over every carrier; return those wrong, and the count."""
    wrong, count = [], 0
    batches, stages = Rounds(group, rank), Stages(group, rank, 60)
    with Communicator(group, timeout_s=120, check=True) as communicator:
        for case in cases(world_size):
            collective, algorithm, bounds, _, options = case
            call = getattr(communicator, collective)
            asked = {"algorithm": algorithm, "options": options, "bounds": list(bounds)}
            ways: list[Callable[[torch.Tensor], object]] = [
                lambda tensor, call=call, asked=asked: call(tensor, **asked)
            ]
            if algorithm != NATIVE and bounds[-1] and world_size > 1:
                schedule = build(collective, algorithm, world_size, **options)
                ways.append(
                    lambda tensor, schedule=schedule, bounds=bounds: batches.run(
                        schedule, tensor, Form(bounds)
                    )
                )
                # Subgroups take long to make.
                staged = None if options else stages.staged(collective, algorithm, bounds=bounds)
                ways += [staged] if staged else []
            for way, run in enumerate(ways):
                count += 1
                if not is_right(run, case, rank, world_size):
                    wrong.append(f"{case} on {world_size} ranks, carrier {way}")
    stages.close()
    return wrong, count


def sweep(rank: int, processes: int) -> tuple[list[str], int]:
    """Return what was wrong at any world size on this rank, and how many cases there were."""
    wrong, count = [], 0
    for world_size in WORLDS:
        group = dist.new_group(range(world_size))
        if rank < world_size:
            failed, ran = sweep_group(group, rank, world_size)
            wrong += failed
            count += ran
        dist.barrier()
    return wrong, count


def test_every_algorithm_gives_exact_sums_for_shards_of_any_length() -> None:
    results = run_ranks(sweep, max(WORLDS))
    for rank, (wrong, count) in enumerate(results):
        assert wrong == []
        worlds = sum(rank < world_size for world_size in WORLDS)
        assert count >= worlds * 8 * (len(SHARDED) + len(OWN))


def test_the_sweep_holds_every_kind_of_bounds_and_dtype() -> None:
    for world_size in WORLDS[1:]:
        found = [case.bounds for case in cases(world_size)]
        lengths = [[b - a for a, b in itertools.pairwise(bounds)] for bounds in found]
        assert world_size == 2 or any(0 in each and sum(map(bool, each)) > 1 for each in lengths)
        assert any(sum(map(bool, each)) == 1 and each[0] for each in lengths)
        assert any(sum(map(bool, each)) == 1 and each[-1] for each in lengths)
        assert any(0 < sum(each) < world_size for each in lengths)
        assert {case.dtype for case in cases(world_size)} == set(DTYPES)
