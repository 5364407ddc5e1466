"""Every algorithm is proved right at every world size of the table."""

from __future__ import annotations

import pytest

from syncopate.schedules.checker import check
from syncopate.schedules.conditions import CONDITIONS
from syncopate.schedules.registry import ALGORITHMS, build
from tests.conformance.table import EXECUTED, PROVED, TABLE, Row, factorisations

ROOTED = [row for row in TABLE if CONDITIONS[row.collective].rooted]
SHARDED = [row for row in TABLE if CONDITIONS[row.collective].sharded]


def test_the_table_lists_every_registered_algorithm():
    assert {(row.collective, row.algorithm) for row in TABLE} == set(ALGORITHMS)
    assert len(TABLE) == len(ALGORITHMS)


def test_no_row_is_let_off():
    for row in TABLE:
        assert set(row.proved) >= set(PROVED)
        assert set(row.executed) >= set(EXECUTED)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_proved(row: Row):
    for world_size in row.proved:
        for options in ({}, *row.variants(world_size)):
            schedule = build(row.collective, row.algorithm, world_size, **options)
            assert (schedule.collective, schedule.algorithm) == (row.collective, row.algorithm)
            assert schedule.world_size == world_size
            check(schedule)


@pytest.mark.parametrize("row", ROOTED, ids=str)
def test_proved_for_every_root(row: Row):
    for world_size in row.proved:
        roots = range(world_size) if world_size <= 17 else (1, world_size // 2, world_size - 1)
        for root in roots:
            schedule = build(row.collective, row.algorithm, world_size, root)
            assert schedule.root == root
            check(schedule)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_proved_in_any_order(row: Row):
    """The last rank first, and a zigzag between two halves, as a launcher may number them."""
    rooted = CONDITIONS[row.collective].rooted
    for world_size in row.proved:
        half = (world_size + 1) // 2
        zigzag = sorted(range(world_size), key=lambda rank: (rank % half, rank))
        for order in (list(reversed(range(world_size))), zigzag):
            root = world_size // 2 if rooted else 0
            check(build(row.collective, row.algorithm, world_size, root, order=order))


def test_blueconnect_in_pipelines():
    for world_size in (*range(1, 17), 24, 36):
        for factors in factorisations(world_size):
            for pipelines in (2, 5):
                options = {"factors": factors, "pipelines": pipelines}
                check(build("all_reduce", "blueconnect", world_size, **options))


@pytest.mark.parametrize("row", SHARDED, ids=str)
def test_shards_are_the_balanced_cut_of_the_buffer(row: Row):
    """One chunk per rank, so that a shard is what ``chunk_offsets(numel, p)`` gives the rank."""
    for world_size in row.proved:
        schedule = build(row.collective, row.algorithm, world_size)
        assert schedule.chunks == world_size
        assert [schedule.shard(r) for r in range(world_size)] == [
            (r, r + 1) for r in range(world_size)
        ]
