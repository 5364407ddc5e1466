"""Every algorithm with its options compiles into programs that run right, however slow the network.

The programs of all ranks are interpreted at once; no message moves before both its ends wait for
it, and touching memory that a message still uses fails the test. That is the network at its
slowest; hypothesis draws any other speed, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.collectives.mesh.program import Program, compile_program
from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from syncopate.schedules.registry import build
from tests.conformance.drawn import PLAYED, Drawn, drawn, drawn_bounds
from tests.conformance.table import TABLE, Row
from tests.unit.collectives.mesh.test_program import Values, _Rank, advance, deliver, play

BLOCK_BYTES = 24
ITEM_BYTES = 8

Play = Callable[[list[Program], list[Values]], None]


def run(
    schedule: Schedule,
    numel: int,
    block_bytes: int = BLOCK_BYTES,
    item_bytes: int = ITEM_BYTES,
    play: Play = play,
    *,
    bounds: tuple[int, ...] | None = None,
) -> None:
    p, rule = schedule.world_size, CONDITIONS[schedule.collective]
    before = list(np.random.default_rng(numel).integers(-1000, 1000, (p, numel)))
    after = [values.copy() for values in before]
    programs = [
        compile_program(schedule, r, numel, item_bytes, block_bytes, bounds=bounds)
        for r in range(p)
    ]
    play(programs, after)
    shards = chunk_offsets(numel, p) if bounds is None else bounds

    def elements(place: Place, rank: int) -> slice:
        if place is Place.SHARD:
            return slice(*shards[rank : rank + 2])
        return slice(0, 0 if place is Place.ROOT and rank != schedule.root else numel)

    result = np.sum(before, axis=0)
    for rank in range(0 if rule.reduces else p):
        result[elements(rule.start, rank)] = before[rank][elements(rule.start, rank)]
    for rank in range(p):
        held = elements(rule.end, rank)
        np.testing.assert_array_equal(after[rank][held], result[held])


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_programs(row: Row) -> None:
    for world_size in (2, 5, 6, 8):
        root = world_size - 2 if CONDITIONS[row.collective].rooted else 0
        for options in ({}, *row.variants(world_size)):
            schedule = build(row.collective, row.algorithm, world_size, root, **options)
            for numel in (1, world_size + 1, 61):
                run(schedule, numel)
        order = list(reversed(range(world_size)))
        run(build(row.collective, row.algorithm, world_size, root, order=order), 61)


@pytest.mark.parametrize("factors", [(2, 3), (3, 2), (2, 2, 2), (6,)])
def test_programs_in_pipelines(factors: tuple[int, ...]) -> None:
    world_size = int(np.prod(factors))
    for pipelines in (2, 3):
        options = {"factors": factors, "pipelines": pipelines}
        run(build("all_reduce", "blueconnect", world_size, **options), 61)


def at_any_speed(speeds: random.Random) -> Play:
    """Return a play in which ranks and messages move on in any order that they can."""

    def play(programs: list[Program], buffers: list[Values]) -> None:
        ranks = [_Rank(program, values) for program, values in zip(programs, buffers, strict=True)]
        while any(rank.position < len(rank.code) for rank in ranks):
            eager = speeds.random()
            moved = speeds.random() < eager and deliver(ranks, speeds.choice)
            for rank in speeds.sample(ranks, len(ranks)):
                moved |= advance(rank, speeds.randint(0, 3))
            if not moved:
                moved = any(map(advance, ranks)) or deliver(ranks, speeds.choice)
                assert moved, "deadlock"
        assert not any(rank.pending for rank in ranks)

    return play


@settings(max_examples=100)
@given(
    case=drawn(12),
    numel=st.integers(0, 200),
    **PLAYED,
)
def test_any_world_root_options_order_blocks_and_speed(
    case: Drawn, numel: int, block_bytes: int, item_bytes: int, speeds: random.Random | None
) -> None:
    """Large items take the ways of large buffers: memory shared by several rounds."""
    how = play if speeds is None else at_any_speed(speeds)
    run(case.schedule(), numel, block_bytes * item_bytes, item_bytes, how)


@settings(max_examples=100)
@given(
    case=drawn(12, sharded=True),
    data=st.data(),
    **PLAYED,
)
def test_any_bounds_of_the_shards(
    case: Drawn,
    data: st.DataObject,
    block_bytes: int,
    item_bytes: int,
    speeds: random.Random | None,
) -> None:
    bounds = data.draw(drawn_bounds(case.world_size))
    how = play if speeds is None else at_any_speed(speeds)
    sizes = bounds[-1], block_bytes * item_bytes, item_bytes
    run(case.schedule(), *sizes, how, bounds=bounds)
