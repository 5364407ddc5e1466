"""Every algorithm is proved right at every world size of the table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.errors import ScheduleError
from syncopate.schedules.base import Schedule, Transfers, chunk_offsets, stacked
from syncopate.schedules.checker import check
from syncopate.schedules.compose import by_element, renamed, shifted
from syncopate.schedules.conditions import CONDITIONS, element_offsets
from syncopate.schedules.registry import ALGORITHMS, build
from tests.conformance.drawn import Drawn, drawn, drawn_bounds
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


@settings(max_examples=200)
@given(case=drawn(16, sharded=True), data=st.data())
def test_proved_for_any_bounds_of_the_shards(case: Drawn, data: st.DataObject):
    bounds = data.draw(drawn_bounds(case.world_size, least=1))
    schedule = by_element(case.schedule(), bounds)
    check(schedule, bounds)
    turned_round = tuple(bounds[-1] - bound for bound in reversed(bounds))
    if turned_round != bounds:  # shards that it does not start from, or end with
        with pytest.raises(ScheduleError):
            check(schedule, turned_round)


def test_several_chunks_of_a_rank_make_up_its_shard():
    """Of other lengths, or of equal ones: there too, a shard is what the rank's bounds say."""
    ring = build("reduce_scatter", "ring", 3)
    table = renamed(ring.table.table, range(3), [0, 2, 4])
    table = stacked([table, shifted(table, 0, 1)])
    doubled = Schedule("reduce_scatter", "in pairs", 3, 6, Transfers(table))
    check(doubled)
    assert element_offsets(doubled, 13, (0, 5, 5, 13)) == (0, 3, 5, 5, 5, 9, 13)
    for numel in (1, 4, 10, 13):
        assert element_offsets(doubled, numel)[::2] == chunk_offsets(numel, 3)
    for bounds in ((0, 5, 5, 13), (0, 0, 1, 1), (0, 2, 4, 6)):
        check(by_element(doubled, bounds), bounds)
    assert element_offsets(build("all_reduce", "ring", 3), 13) == chunk_offsets(13, 3)
