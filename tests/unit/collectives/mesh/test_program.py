"""Programs, run by an interpreter of all ranks at once: right results, no deadlock, no race."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.collectives.mesh.program import Memory, Op, Program, Region, compile_program
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.schedules.blocks import MAX_BLOCKS
from syncopate.units import MIB

ROWS = [
    (collective, name)
    for collective in ("all_reduce", "reduce_scatter", "all_gather")
    for name in registry.algorithms(collective)
]
Values = npt.NDArray[np.int64]

Delivery = tuple[int, int, int, int]
"""(source, its send, destination, its receive)."""


class _Rank:
    """One rank's state, with the network at its slowest: nothing moves until both sides posted."""

    def __init__(self, program: Program, values: Values) -> None:
        self.code = program.instructions
        self.memory = {
            Memory.BUFFER: values,
            Memory.SCRATCH: np.full(program.scratch_numel, -(10**9), values.dtype),
            Memory.WIRE: np.full(len(values), -(10**9), values.dtype),
        }
        self.position = 0
        self.pending: dict[int, tuple[Op, Region, int, int]] = {}

    def view(self, region: Region) -> Values:
        return self.memory[region.memory][region.start : region.stop]

    def touches_pending(self, region: Region, *, writes: bool) -> bool:
        return any(
            region.meets(other) and (writes or op is Op.POST)
            for op, other, _, _ in self.pending.values()
        )


def play(programs: list[Program], buffers: list[Values]) -> None:
    """Run all programs; a message is delivered as late as possible, when no rank can go on."""
    ranks = [_Rank(program, values) for program, values in zip(programs, buffers, strict=True)]
    while any(rank.position < len(rank.code) for rank in ranks) or any(r.pending for r in ranks):
        moved = [advance(rank) for rank in ranks]
        if not any(moved):
            assert deliver(ranks), "deadlock"


def advance(rank: _Rank, most: int | None = None) -> bool:
    """Run instructions, at most so many, until one has to wait; say whether there was any."""
    moved = False
    end = len(rank.code) if most is None else min(rank.position + most, len(rank.code))
    while rank.position < end:
        op, work, region, source, peer, tag = rank.code[rank.position]
        if op in {Op.AWAIT_RECEIVE, Op.AWAIT_SEND}:
            if work in rank.pending:
                return moved
        elif op in {Op.POST, Op.SEND}:
            assert not rank.touches_pending(region, writes=op is Op.POST), "data race"
            rank.pending[work] = (op, region, peer, tag)
        else:
            assert not rank.touches_pending(region, writes=True), "data race"
            assert not rank.touches_pending(source, writes=False), "data race"
            target = rank.view(region)
            target[:] = rank.view(source) + (target if op is Op.ADD else 0)
        rank.position += 1
        moved = True
    return moved


def deliver(ranks: list[_Rank], choose: Callable[[list[Delivery]], Delivery] | None = None) -> bool:
    """Deliver a message for which both sides have posted; say whether there was one."""
    found = deliverable(ranks)
    for delivery in found:
        src, work, dst, other = delivery if choose is None else choose([delivery, *found])
        region, landing = ranks[src].pending[work][1], ranks[dst].pending[other][1]
        assert region.stop - region.start == landing.stop - landing.start
        ranks[dst].view(landing)[:] = ranks[src].view(region)
        del ranks[src].pending[work], ranks[dst].pending[other]
        return True
    return False


def deliverable(ranks: list[_Rank]) -> Iterator[Delivery]:
    for src, sender in enumerate(ranks):
        for work, (op, _, dst, tag) in sender.pending.items():
            if op is not Op.SEND:
                continue
            for other, (kind, _, peer, tag_there) in ranks[dst].pending.items():
                if kind is Op.POST and (peer, tag_there) == (src, tag):
                    yield src, work, dst, other
                    break


def run(schedule: Schedule, numel: int, block_bytes: int, itemsize: int = 8) -> None:
    p = schedule.world_size
    random = np.random.default_rng(numel)
    before = [random.integers(-1000, 1000, numel) for _ in range(p)]
    buffers = [values.copy() for values in before]
    play(
        [compile_program(schedule, rank, numel, itemsize, block_bytes) for rank in range(p)],
        buffers,
    )
    total = np.sum(before, axis=0)
    offsets = chunk_offsets(numel, p)
    for rank, values in enumerate(buffers):
        shards = [slice(offsets[owner], offsets[owner + 1]) for owner in range(p)]
        if schedule.collective == "all_reduce":
            np.testing.assert_array_equal(values, total)
        elif schedule.collective == "reduce_scatter":
            np.testing.assert_array_equal(values[shards[rank]], total[shards[rank]])
        else:
            for owner, shard in enumerate(shards):
                np.testing.assert_array_equal(values[shard], before[owner][shard])


@pytest.mark.parametrize(("collective", "name"), ROWS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6, 7, 8, 13])
def test_every_schedule_runs_right(collective: str, name: str, world_size: int) -> None:
    schedule = registry.build(collective, name, world_size)
    for numel in (0, 1, 2, world_size - 1, world_size, 3 * world_size + 1, 97):
        run(schedule, numel, 64)


@settings(max_examples=60, deadline=None)
@given(
    row=st.sampled_from(ROWS),
    world_size=st.integers(1, 9),
    numel=st.integers(0, 300),
    block_bytes=st.sampled_from([1, 8, 24, 100, 4096]),
    itemsize=st.sampled_from([1, 8, MIB // 16, MIB]),
)
def test_any_cut_runs_right(
    row: tuple[str, str], world_size: int, numel: int, block_bytes: int, itemsize: int
) -> None:
    # A large itemsize takes the ways of a large buffer: scratch shared by two or by all rounds.
    run(registry.build(*row, world_size), numel, block_bytes * itemsize, itemsize)


@pytest.mark.parametrize("name", registry.algorithms("all_reduce"))
def test_blocks_are_bounded_and_scratch_too(name: str) -> None:
    schedule = registry.build("all_reduce", name, 8)
    program = compile_program(schedule, 0, 10 * MIB, 4, 64)
    assert program.works <= MAX_BLOCKS * len(schedule.of_rank(0))
    assert program.scratch_numel <= 10 * MIB


def test_a_small_program_posts_its_receives_first() -> None:
    program = compile_program(registry.build("all_reduce", "recursive_doubling", 8), 3, 256, 4, 64)
    kinds = [instruction.op for instruction in program.instructions]
    last_post = max(index for index, op in enumerate(kinds) if op is Op.POST)
    assert last_post < kinds.index(Op.AWAIT_RECEIVE)


def test_a_block_goes_on_before_the_next_has_arrived() -> None:
    # In a ring what one round received the next one sends: with two blocks, the first is sent on
    # while the second is still awaited.
    program = compile_program(registry.build("all_reduce", "ring", 4), 0, 4 * 16, 8, 64)
    ops = [instruction.op for instruction in program.instructions]
    first_add = ops.index(Op.ADD)
    following = ops[first_add + 1 :]
    assert following.index(Op.SEND) < following.index(Op.AWAIT_RECEIVE)
