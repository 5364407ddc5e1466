"""Every algorithm with its options compiles into programs that run right, however slow the network.

The programs of all ranks are interpreted at once; no message moves before both its ends wait for
it, and touching memory that a message still uses fails the test.
"""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.collectives.program import compile_program
from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, chunks_at
from syncopate.schedules.registry import build
from tests.conformance.table import TABLE, Row
from tests.unit.collectives.test_program import play

BLOCK_BYTES = 24
ITEM_BYTES = 8


def run(schedule: Schedule, numel: int) -> None:
    p, rule = schedule.world_size, CONDITIONS[schedule.collective]
    before = list(np.random.default_rng(numel).integers(-1000, 1000, (p, numel)))
    after = [values.copy() for values in before]
    programs = [compile_program(schedule, r, numel, ITEM_BYTES, BLOCK_BYTES) for r in range(p)]
    play(programs, after)
    offsets = chunk_offsets(numel, schedule.chunks)

    def elements(chunk: int) -> slice:
        return slice(offsets[chunk], offsets[chunk + 1])

    result = np.sum(before, axis=0)
    for rank in range(0 if rule.reduces else p):
        for chunk in chunks_at(rule.start, schedule, rank):
            result[elements(chunk)] = before[rank][elements(chunk)]
    for rank in range(p):
        for chunk in chunks_at(rule.end, schedule, rank):
            np.testing.assert_array_equal(after[rank][elements(chunk)], result[elements(chunk)])


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
