from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.errors import InvalidValueError, ScheduleError
from syncopate.schedules.algorithms import ring
from syncopate.schedules.base import (
    COPY,
    REDUCE,
    Schedule,
    Transfer,
    Transfers,
    checked_bounds,
    chunk_offsets,
    mirrored,
    rounds_of,
    rows,
    stacked,
)

EXCHANGE = (Transfer(0, 0, 1, 0, 1, "reduce"), Transfer(0, 1, 0, 0, 1, "reduce"))


def schedule(*transfers: Transfer, world_size: int = 3, chunks: int = 3, root: int = 0) -> Schedule:
    return Schedule("all_reduce", "toy", world_size, chunks, transfers, root)


@given(st.integers(0, 10**12), st.integers(1, 300))
def test_chunks_are_balanced_and_cover_the_buffer(numel, chunks):
    offsets = chunk_offsets(numel, chunks)
    lengths = np.diff(offsets)
    assert (offsets[0], offsets[-1], len(offsets)) == (0, numel, chunks + 1)
    assert (lengths[: numel % chunks] == numel // chunks + 1).all()
    assert (lengths[numel % chunks :] == numel // chunks).all()


def test_fewer_elements_than_chunks_leaves_the_last_empty():
    assert chunk_offsets(2, 4) == (0, 1, 2, 2, 2)
    assert chunk_offsets(0, 3) == (0, 0, 0, 0)


@pytest.mark.parametrize(("numel", "chunks"), [(-1, 1), (4, 0)])
def test_impossible_cuts_are_refused(numel, chunks):
    with pytest.raises(InvalidValueError, match="must be an integer >="):
        chunk_offsets(numel, chunks)


def test_bounds_are_a_tuple_or_none_where_they_are_the_balanced_cut():
    assert checked_bounds([0, 5, 5, 9], 9, 3) == (0, 5, 5, 9)
    assert checked_bounds(np.array([0, 9, 9, 9]), 9, 3) == (0, 9, 9, 9)
    assert checked_bounds([0, 3, 6, 9], 9, 3) is None
    assert checked_bounds((0, 0), 0, 1) is None


@pytest.mark.parametrize(
    "bounds",
    [(), (0,), (0, 9), (0, 3, 9), (0, 3, 6, 8), (1, 3, 6, 9), (0, 6, 3, 9), (0, 3, 6.0, 9), 7],
)
def test_other_bounds_are_refused(bounds):
    with pytest.raises(InvalidValueError) as caught:
        checked_bounds(bounds, 9, 3)
    assert str(caught.value) == (
        f"bounds is {bounds!r}; it must be 4 element offsets that never decrease, from 0 to the 9 "
        "elements of the tensor, so that rank r's shard is bounds[r]:bounds[r + 1]; or None for "
        "shards of equal length"
    )


def test_transfers_read_like_a_tuple():
    found = schedule(*EXCHANGE).transfers
    assert tuple(found) == EXCHANGE
    assert (found[0], found[-1], len(found)) == (EXCHANGE[0], EXCHANGE[1], 2)
    assert tuple(found[1:]) == EXCHANGE[1:]
    assert EXCHANGE[1] in found
    assert repr(found) == "<2 transfers>"
    with pytest.raises(IndexError):
        found[2]


def test_transfers_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        schedule(*EXCHANGE).table.table[0, 0] = 7


def test_order_given_does_not_matter():
    late = Transfer(2, 0, 2, 0, 3, "copy")
    early = Transfer(1, 2, 1, 1, 2, "reduce")
    one, two = schedule(late, *EXCHANGE, early), schedule(early, EXCHANGE[1], EXCHANGE[0], late)
    assert tuple(one.transfers) == (*EXCHANGE, early, late)
    assert one == two
    assert hash(one) == hash(two)
    assert one != schedule(*EXCHANGE)


def test_rounds_and_the_transfers_of_a_rank():
    last = Transfer(4, 0, 2, 0, 3, "copy")
    found = schedule(*EXCHANGE, last)
    assert found.rounds == 5
    assert found.of_rank(1) == EXCHANGE
    assert found.of_rank(2) == (last,)
    assert schedule().rounds == 0
    assert schedule().of_rank(0) == ()
    with pytest.raises(InvalidValueError, match=r"rank is 3; it must be in 0\.\.2"):
        found.of_rank(3)


def test_shards():
    found = schedule(world_size=3, chunks=6)
    assert [found.shard(rank) for rank in range(3)] == [(0, 2), (2, 4), (4, 6)]
    with pytest.raises(ScheduleError, match=r"4 chunks do not divide.*a multiple of 3"):
        schedule(world_size=3, chunks=4).shard(0)
    with pytest.raises(InvalidValueError, match="rank"):
        found.shard(-1)


@pytest.mark.parametrize(
    "bad",
    [
        Transfer(-1, 0, 1, 0, 1, "copy"),
        Transfer(0, -1, 1, 0, 1, "copy"),
        Transfer(0, 0, 3, 0, 1, "copy"),
        Transfer(0, 1, 1, 0, 1, "copy"),
        Transfer(0, 0, 1, -1, 1, "copy"),
        Transfer(0, 0, 1, 2, 2, "copy"),
        Transfer(0, 0, 1, 2, 4, "reduce"),
    ],
)
def test_a_transfer_that_cannot_be_is_refused(bad):
    with pytest.raises(ScheduleError, match=r"all_reduce \(toy\), 3 ranks: Transfer\(round="):
        schedule(*EXCHANGE, bad)


def test_an_unknown_op_is_refused():
    with pytest.raises(ScheduleError, match="op must be one of copy, reduce"):
        schedule(Transfer(0, 0, 1, 0, 1, "max"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"world_size": 0}, "world_size is 0"),
        ({"chunks": 0}, "chunks is 0"),
        ({"root": 3}, "root is 3"),
        ({"root": -1}, "root is -1"),
    ],
)
def test_impossible_schedules_are_refused(changes, match):
    with pytest.raises(InvalidValueError, match=match):
        schedule(**changes)


def test_rows_broadcast_and_leave_out_the_empty():
    table = rows(np.array([[0], [1]]), np.array([0, 1]), 2, (0, np.array([3, 0])), REDUCE)
    assert table.tolist() == [[0, 0, 2, 0, 3, 1], [1, 0, 2, 0, 3, 1]]
    assert rounds_of(table) == 2
    assert stacked([]).shape == (0, 6)
    assert rounds_of(stacked([])) == 0


def test_a_mirror_runs_backwards_and_copies():
    table = rows([0, 1, 1], [1, 2, 3], [0, 0, 1], (0, 2), REDUCE)
    found = tuple(Transfers(mirrored(table, first_round=2)))
    assert set(found) == {
        Transfer(2, 0, 2, 0, 2, "copy"),
        Transfer(2, 1, 3, 0, 2, "copy"),
        Transfer(3, 0, 1, 0, 2, "copy"),
    }
    assert COPY != REDUCE


def test_transfers_of_a_list_are_those_of_a_table():
    stored = ring.all_reduce(4).table
    listed = Transfers.of(list(stored))
    assert listed == stored
    assert hash(listed) == hash(stored)
    assert listed.table.dtype == stored.table.dtype == np.int32
    assert Transfers.of([]).table.shape == (0, 6)
