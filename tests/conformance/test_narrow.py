"""Narrowed programs: every algorithm ends with the same bits everywhere, and rounds as it says."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.collectives.mesh.narrow import narrowed
from syncopate.collectives.mesh.program import Instruction, Memory, Op, Program, compile_program
from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from syncopate.schedules.registry import build
from tests.conformance.drawn import PLAYED, Drawn, drawn, drawn_bounds
from tests.conformance.table import TABLE, Row
from tests.conformance.test_programs import Play, at_any_speed
from tests.unit.collectives.mesh import test_program
from tests.unit.collectives.mesh.test_program import Values, play

SUMS = [row for row in TABLE if CONDITIONS[row.collective].reduces]


class _Wire(np.ndarray):
    """Memory of the wire's type, float16; the buffers are float64."""

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, np.asarray(value, np.float16))  # type: ignore[call-overload]


def compiled(
    schedule: Schedule, numel: int, sizes: tuple[int, int], **told: object
) -> list[Program]:
    agree = CONDITIONS[schedule.collective].agrees
    return [
        narrowed(compile_program(schedule, rank, numel, *sizes, **told), agree=agree)  # type: ignore[arg-type]
        for rank in range(schedule.world_size)
    ]


def run(
    schedule: Schedule,
    numel: int,
    sizes: tuple[int, int] = (2, 6),
    how: Play = play,
    bounds: tuple[int, ...] | None = None,
) -> None:
    """Run the narrowed programs of all ranks; check the sums, and that the bits are the same."""
    p = schedule.world_size
    before = np.random.default_rng(numel).uniform(-1000, 1000, (p, numel))
    after = list(before.copy())
    how(compiled(schedule, numel, sizes, bounds=bounds), after)
    exact = before.sum(axis=0)
    # Every contribution is in at most p sums that were rounded.
    allowed = p * np.finfo(np.float16).eps / 2 * np.abs(before).sum(axis=0) * 1.01
    shards = chunk_offsets(numel, p) if bounds is None else bounds
    rule = CONDITIONS[schedule.collective]
    for rank in range(p):
        held = slice(0, 0 if rule.end is Place.ROOT and rank != schedule.root else numel)
        if rule.end is Place.SHARD:
            held = slice(*shards[rank : rank + 2])
        assert (np.abs(after[rank] - exact) <= allowed)[held].all()
        if rule.agrees and p > 1:
            np.testing.assert_array_equal(after[rank], after[0])
            np.testing.assert_array_equal(after[rank], after[rank].astype(np.float16))


@pytest.fixture(autouse=True)
def memory_that_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = test_program._Rank.__init__

    def init(rank: test_program._Rank, program: Program, values: Values) -> None:
        plain(rank, program, values)
        for kind in (Memory.SCRATCH, Memory.WIRE):
            rank.memory[kind] = rank.memory[kind].view(_Wire)

    monkeypatch.setattr(test_program._Rank, "__init__", init)


@pytest.mark.parametrize("row", SUMS, ids=str)
def test_every_algorithm(row: Row) -> None:
    for world_size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13):
        root = world_size // 2 if CONDITIONS[row.collective].rooted else 0
        for options in ({}, *row.variants(world_size)):
            run(build(row.collective, row.algorithm, world_size, root, **options), 61)


@settings(max_examples=75)
@given(
    case=drawn(12).filter(lambda case: CONDITIONS[case.collective].reduces),
    data=st.data(),
    **PLAYED,
)
def test_any_world_options_order_bounds_blocks_and_speed(
    case: Drawn,
    data: st.DataObject,
    block_bytes: int,
    item_bytes: int,
    speeds: random.Random | None,
) -> None:
    bounds = None
    numel = data.draw(st.integers(0, 200))
    if CONDITIONS[case.collective].sharded:
        bounds = data.draw(drawn_bounds(case.world_size))
        numel = bounds[-1]
    how = play if speeds is None else at_any_speed(speeds)
    run(case.schedule(), numel, (item_bytes, block_bytes * item_bytes), how, bounds)


def test_messages_are_never_in_the_buffer() -> None:
    for row in SUMS:
        for program in compiled(build(row.collective, row.algorithm, 5), 61, (2, 6)):
            for step in program.instructions:
                assert step.op not in (Op.SEND, Op.POST) or step.region.memory is not Memory.BUFFER


def test_what_is_there_is_not_brought_there_again() -> None:
    """In a ring's second half a rank sends on what it received, as it came."""
    ring = compile_program(build("all_reduce", "ring", 4), 0, 40, 4, 1000)
    code = narrowed(ring, agree=True).instructions
    rounded = [step for step in code if _copies(step, Memory.WIRE)]
    assert len(rounded) == 4  # each of its three partial sums, and the one it finishes
    kept = [step for step in code if _copies(step, Memory.BUFFER)]
    assert len(kept) == 4 + 3  # the same, and what the others finished


def test_who_hands_nothing_on_rounds_at_the_end() -> None:
    """Of three ranks that double, one is a guest, whom only one of the others tells the sum."""
    doubling = build("all_reduce", "recursive_doubling", 3)
    ends = [program.instructions[-1] for program in compiled(doubling, 8, (4, 64))]
    assert [_copies(step, Memory.BUFFER) for step in ends] == [False, True, True]
    assert [step.source.memory for step in ends[1:]] == [Memory.WIRE] * 2


def _copies(step: Instruction, into: Memory) -> bool:
    return step.op is Op.COPY and step.region.memory is into
