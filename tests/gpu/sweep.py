"""Every collective on a device: each algorithm, option, size and dtype, ordered by streams."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from syncopate.collectives import Communicator
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from syncopate.schedules.registry import NATIVE
from tests.conformance.table import TABLE
from tests.multiprocess.harness import REAL_DTYPES

SPIN_CYCLES = 100_000_000
"""About a twentieth of a second of a GPU's time, so that a missing wait shows."""

NUMEL = 1003
DTYPES = (*REAL_DTYPES, torch.complex64)


@dataclass(frozen=True)
class Case:
    """One collective; ``spins`` lets the caller's stream be busy when it is called.

    ``lengths`` are those of the ranks' shards, repeated for as many ranks as there are.
    """

    collective: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    numel: int = NUMEL
    dtype: torch.dtype = torch.float32
    spins: bool = False
    lengths: tuple[int, ...] = ()

    def bounds(self, world_size: int) -> tuple[int, ...]:
        """Return where the shards begin."""
        if not self.lengths:
            return chunk_offsets(self.numel, world_size)
        found = itertools.islice(itertools.cycle(self.lengths), world_size)
        return tuple(itertools.accumulate(found, initial=0))

    def of_lengths(self, lengths: tuple[int, ...], world_size: int) -> Case:
        """Return the case with shards of other lengths."""
        other = replace(self, lengths=lengths)
        return replace(other, numel=other.bounds(world_size)[-1])


def cases(world_size: int) -> Iterator[Case]:
    """Yield sizes and dtypes for every algorithm, and each of its options once."""
    known = [(row.collective, row.algorithm) for row in TABLE]
    for collective, algorithm in [*known, *((name, NATIVE) for name in CONDITIONS)]:
        yield Case(collective, algorithm, spins=True)
        for numel in (1, world_size - 1, world_size, 300_001):
            yield Case(collective, algorithm, numel=numel)
        for dtype in DTYPES:
            yield Case(collective, algorithm, dtype=dtype)
    order = {"order": [*range(1, world_size), 0]}
    for row in TABLE:
        for options in (*row.variants(world_size), order):
            yield Case(row.collective, row.algorithm, options)
        if CONDITIONS[row.collective].sharded:
            case = Case(row.collective, row.algorithm, order, dtype=torch.int16)
            yield case.of_lengths((5, 0, 70_001, 1), world_size)
    for collective, algorithm in [*known, *((name, NATIVE) for name in CONDITIONS)]:
        if CONDITIONS[collective].sharded:
            for lengths in ((1, 0), (0, 0, 3, 5), (100_003, 7)):
                yield Case(collective, algorithm, spins=True).of_lengths(lengths, world_size)
    for options in ({"pipelines": 3}, {"pipelines": 4, **order}):
        yield Case("all_reduce", "blueconnect", options, numel=300_001, spins=True)
    # Long enough for message chunks.
    yield Case("all_reduce", "binary_tree", numel=5_000_001, spins=True)


def inputs(rank: int, case: Case, device: torch.device) -> torch.Tensor:
    """Return small integers, so that sums are exact in every dtype and every order."""
    return ((torch.arange(case.numel, device=device) + 3 * rank) % 7).to(case.dtype)


def expected(case: Case, world_size: int, root: int, device: torch.device) -> torch.Tensor:
    """Return the result of the whole buffer."""
    before = [inputs(rank, case, device) for rank in range(world_size)]
    conditions = CONDITIONS[case.collective]
    if conditions.reduces:
        return torch.stack(before).sum(0).to(case.dtype)
    if conditions.rooted:
        return before[root]
    offsets = case.bounds(world_size)
    return torch.cat([before[r][offsets[r] : offsets[r + 1]] for r in range(world_size)])


def held(case: Case, rank: int, world_size: int, root: int) -> slice:
    """Return where ``rank`` must hold the result."""
    end = CONDITIONS[case.collective].end
    if end is Place.SHARD:
        return slice(*case.bounds(world_size)[rank : rank + 2])
    return slice(0) if end is Place.ROOT and rank != root else slice(None)


def right(communicator: Communicator, case: Case, device: torch.device, number: int) -> bool:
    """Run a case on a stream of its own; say whether this rank holds what it must."""
    p, rank = communicator.world_size, communicator.rank
    rooted = CONDITIONS[case.collective].rooted
    root = number % p if rooted else 0
    further: dict[str, Any] = {"bounds": case.bounds(p)} if case.lengths else {}
    values = inputs(rank, case, device)
    tensor = torch.zeros_like(values)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream(device))
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        if case.spins and stream is not None:
            torch.cuda._sleep(SPIN_CYCLES)
        tensor.copy_(values)  # the collective must wait for this
        handle = getattr(communicator, case.collective)(
            tensor, *((root,) if rooted else ()), algorithm=case.algorithm,
            options=case.options, channel=number % communicator.channels, async_op=True, **further,
        )  # fmt: skip
        handle.wait()
        after = tensor.clone()  # and this for the collective
        tensor.zero_()
    if stream is not None:
        stream.synchronize()
    place = held(case, rank, p, root)
    return (
        torch.equal(after[place], expected(case, p, root, device)[place])
        and handle.done()
        and handle.finished_s >= handle.started_s
    )


def sweep(communicator: Communicator, device: torch.device) -> list[str]:
    """Return the cases that went wrong on this rank."""
    found = enumerate(cases(communicator.world_size))
    return [str(case) for number, case in found if not right(communicator, case, device, number)]
