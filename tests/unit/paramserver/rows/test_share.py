"""A server's share of a table: sums in the order of the ranks, rows made when they are touched."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncopate.paramserver.rows.frames import ascends, bytes_of, payload_of, rows_of
from syncopate.paramserver.rows.hashing import initial_rows
from syncopate.paramserver.rows.share import TableShare
from syncopate.paramserver.storage.shard import Shard
from syncopate.paramserver.tensors import aligned, frame_of
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Initialise, Stage, Update
from syncopate.protocol.messages import Refusal
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from syncopate.protocol.table import TABLES, Normal, Table

TABLE = Table(rows=10**9, width=3, initial=Normal(seed=5))
OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]


def _share(optimizer=OPTIMIZERS[0], table=TABLE):
    spec = Slice(TABLES, "t", table.dtype, 0, table.rows * table.width, table)
    share = TableShare(TableSlice(spec, Rules(optimizer=optimizer)))
    share.stage(Stage(TABLES, 0, 0), payload_of(np.empty(0, np.int64), []))
    share.initialise(Initialise(TABLES, 0))
    return share


def _push(share, worker, sequence, ids, values, *, number=0, reached=True):
    ids, values = np.array(ids, np.int64), torch.as_tensor(values, dtype=torch.float32)
    data = payload_of(ids, [values.reshape(len(ids), 3)])
    share.stage(Stage(TABLES, worker, sequence, number=number, reached=reached), data)


def _update(share, version, workers):
    gradients = tuple((worker, version) for worker in workers)
    share.update(Update(TABLES, version, gradients, None, None))


ROWS = st.dictionaries(st.integers(0, 12), st.floats(-10, 10, width=32), max_size=8)


@given(pushes=st.lists(ROWS, min_size=1, max_size=4), cut=st.integers(1, 5))
def test_the_sum_is_that_of_tensors_added_in_the_order_of_ranks(pushes, cut):
    share = _share(SGD(lr=1.0))
    ids = np.arange(13)
    before = share.rows(ids)
    total = torch.zeros(13, 3)
    for worker, rows in enumerate(pushes):
        numbers = sorted(rows)
        dense = torch.zeros(13, 3)
        for number in numbers:
            dense[number] = torch.tensor([1.0, 2.0, 3.0]) * rows[number]
        for part, begin in enumerate(range(0, max(len(numbers), 1), cut)):
            some = numbers[begin : begin + cut]
            _push(share, worker, 1, some, dense[some], number=part)
        total = dense if not worker else total + dense
    _update(share, 1, range(len(pushes)))
    if len(pushes) > 1:
        total /= len(pushes)
    assert torch.equal(share.rows(ids), before.add(total, alpha=-1.0))
    assert share.waiting == 0


def test_rows_that_were_not_pushed_to_are_not_kept():
    share = _share()
    ids = np.array([5, 7, 999_999_999])
    assert torch.equal(share.rows(ids), initial_rows(TABLE, ids))
    assert share.nbytes == 0
    _push(share, 0, 1, [7], [[1.0, 1.0, 1.0]])
    _update(share, 1, [0])
    assert share.nbytes == 8 + 12
    rows = share.rows(ids)
    assert torch.equal(rows[[0, 2]], initial_rows(TABLE, ids)[[0, 2]])
    assert torch.equal(rows[1], initial_rows(TABLE, ids)[1].sub(torch.ones(3), alpha=0.1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_share_comes_back_from_what_was_written(optimizer):
    one, two = _share(optimizer), _share(optimizer)
    written = []
    generator = np.random.default_rng(3)
    for step in range(1, 7):
        ids = np.unique(generator.integers(0, 5000, 400))
        _push(one, 0, step, ids, generator.normal(size=(len(ids), 3)))
        _update(one, step, [0])
        if step in (1, 4):
            written = [one.snapshot(whole=True)]
        elif step % 2 == 0 or step == 5:
            written.append(one.snapshot(whole=False))
    for record in written:
        two.restore(record)
    for share in (one, two):
        _push(share, 0, 7, [1, 2, 6000], torch.ones(3, 3))
        _update(share, 7, [0])
    first, second = one.snapshot(whole=True), two.snapshot(whole=True)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(two.snapshot(whole=False)["ids"]) == 0


def test_an_update_that_no_backward_reached_is_no_step():
    share = _share(Adam(lr=0.1))
    _push(share, 0, 1, [], torch.empty(0, 3), reached=False)
    _update(share, 1, [0])
    assert share.kept(0, 10)[1] == 0
    _push(share, 0, 2, [], torch.empty(0, 3), reached=False)
    _push(share, 1, 2, [], torch.empty(0, 3))
    _update(share, 2, [0, 1])
    assert share.kept(0, 10)[1] == 1


def test_kept_rows_are_given_some_at_a_time():
    share = _share(Adagrad(lr=0.1))
    _push(share, 0, 1, [2, 5, 9], torch.ones(3, 3))
    _update(share, 1, [0])
    held, steps, names, payload = share.kept(1, 5)
    assert (held, steps, names) == (3, 1, ("sum",))
    rows = rows_of(payload, TABLE, ("steps", "sum"))
    assert rows.ids.tolist() == [5, 9]
    assert torch.equal(rows.state["sum"], torch.ones(2, 3))
    assert share.kept(7, 5)[3].numel() == 0


@pytest.mark.parametrize("begin", [0, 1, 4])
def test_a_payload_is_read_wherever_it_lies(begin):
    ids, values = np.array([3, 8]), torch.randn(2, 3)
    data = torch.cat([torch.zeros(begin, dtype=torch.uint8), payload_of(ids, [values])])[begin:]
    rows = rows_of(data, TABLE)
    assert rows.ids.tolist() == [3, 8]
    assert torch.equal(rows.values, values)
    assert aligned(data[:16], torch.int64).tolist() == [3, 8]


def test_what_ascends():
    assert ascends(np.array([1, 2, 9]))
    assert ascends(np.empty(0, np.int64))
    assert not ascends(np.array([1, 1]))
    assert not ascends(np.array([2, 1]))


@pytest.mark.parametrize(
    ("ids", "servers", "accepted"),
    [
        ([1, 5, 999], 1, True),
        ([], 2, True),
        ([5, 5], 1, False),
        ([5, 1], 1, False),
        ([-1], 1, False),
        ([10**9], 1, False),
        (list(range(40)), 2, False),
    ],
)
def test_numbers_of_rows_are_looked_at_before_they_are_taken(ids, servers, accepted):
    spec = Slice(TABLES, "t", "float32", 0, TABLE.rows * 3, TABLE)
    shard = Shard()
    shard.keep_table(TableSlice(spec, Rules()))
    numbers = np.array(ids, np.int64)
    pushed = payload_of(numbers, [torch.ones(len(ids), 3)])
    for message, data in [
        (msg.PushRows(TABLES, 1), pushed),
        (msg.PullRows(TABLES, 0, 1, count=len(ids)), bytes_of(numbers)),
    ]:
        with nullcontext() if accepted else pytest.raises(Refusal, match="rows of t that are not"):
            shard.require_rows(message, frame_of(data), 0, servers)
