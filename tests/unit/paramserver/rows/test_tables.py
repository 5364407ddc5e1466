"""A worker's tables: each row goes to its server once, for all ids in every order."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncopate.errors import InvalidValueError
from syncopate.paramserver.driver import Handle, Pending
from syncopate.paramserver.rows.frames import ascends, rows_of
from syncopate.paramserver.rows.hashing import servers_of
from syncopate.paramserver.rows.tables import Tables
from syncopate.paramserver.tensors import aligned
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import Adam, Rules
from syncopate.protocol.table import Table, server_of

ROWS, WIDTH = 40, 3
TABLE = Table(rows=ROWS, width=WIDTH)


class _Session:
    """Keeps what would be sent."""

    def __init__(self, servers):
        addresses = tuple(f"s{rank}" for rank in range(servers))
        self.roster = msg.Roster("run", 0, addresses, ("t",))
        self.pending, self.said = Pending(), []
        self.slices = ()

    def declare_table(self, slices):
        self.slices = [each.slice for each in slices]

    def push(self, push, priority, pushed):
        self.said.append(push)
        self.pending.pushed[push.key, len(self.said)] = pushed

    def pull(self, pull, pulled):
        self.said.append(pull)
        self.pending.pulled[pull.key, len(self.said)] = pulled

    def handle(self, parts, nbytes=0):
        return Handle(_NoDriver(), parts, None)

    def submit(self, slices, each, handle):
        for piece in slices:
            each(piece, (piece, 0, 0))


class _NoDriver(NamedTuple):
    """Drives nothing."""


def _tables(servers, rows_in_a_part, rules=None):
    session = _Session(servers)
    tables = Tables(session, Limits(slice_bytes=rows_in_a_part * TABLE.row_bytes()))
    tables.declare("t", TABLE, rules or Rules())
    return tables, session


def _drawn(ids, seed):
    return torch.randn(len(ids), WIDTH, generator=torch.Generator().manual_seed(seed))


IDS = st.lists(st.integers(0, ROWS - 1), max_size=60)


@given(ids=IDS, servers=st.integers(1, 4), part=st.integers(1, 9), seed=st.integers(0, 99))
def test_gradients_of_a_row_are_added_as_torch_adds_them(ids, servers, part, seed):
    tables, session = _tables(servers, part)
    numbers = torch.tensor(ids, dtype=torch.int64)
    values = _drawn(ids, seed)
    tables.push("t", numbers, values, 0, None)
    found, rows = torch.zeros(ROWS, WIDTH), 0
    assert len(session.pending.pushed) == servers
    for (key, number), pushed in session.pending.pushed.items():
        assert session.said[number - 1].parts == len(pushed.parts)
        for data in pushed.parts:
            some = rows_of(data, TABLE)
            assert len(some.ids) <= part
            assert ascends(some.ids)
            assert servers == 1 or (servers_of(some.ids, servers) == server_of(key)).all()
            found[torch.from_numpy(some.ids)] = some.values
            rows += len(some.ids)
    theirs = torch.sparse_coo_tensor(numbers[None], values, (ROWS, WIDTH), check_invariants=True)
    assert torch.equal(found, theirs.coalesce().to_dense())
    assert rows == len(set(ids))


@given(ids=IDS, servers=st.integers(1, 4), part=st.integers(1, 9), given=st.booleans())
def test_rows_come_back_in_the_order_in_which_they_were_asked_for(ids, servers, part, given):
    tables, session = _tables(servers, part)
    weights = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    numbers = torch.tensor(ids, dtype=torch.int32)
    out = torch.zeros(WIDTH, len(ids)).t() if given else None
    handle = tables.pull("t", numbers, out, 0)
    numbers.zero_()
    for (key, request), pulled in session.pending.pulled.items():
        asked = aligned(pulled.asked, torch.int64)
        assert session.said[request - 1].count == len(asked) <= part
        data = weights[asked].view(-1).view(torch.uint8)
        pulled.take(data, msg.Rows(key, 1, request))
        handle.part_done()
    assert handle.done()
    assert torch.equal(handle.out, weights[torch.tensor(ids, dtype=torch.int64)])
    assert out is None or handle.out is out


@given(order=st.permutations(range(7)), servers=st.integers(1, 3))
def test_a_table_begins_with_rows_and_state_in_any_order(order, servers):
    rules = Rules(optimizer=Adam())
    tables, session = _tables(servers, 2, rules)
    ids = torch.tensor(order)
    state = {"ids": ids, "steps": torch.tensor([5])}
    for scale, name in enumerate(("weights", "mean", "square"), 1):
        state[name] = scale * ids[:, None].expand(-1, WIDTH).float()
    tables.begin("t", state)
    found = []
    for (_, number), pushed in session.pending.pushed.items():
        first = session.said[number - 1]
        assert isinstance(first, msg.BeginRows)
        assert (first.state, first.steps) == (("mean", "square"), 5)
        for data in pushed.parts:
            rows = rows_of(data, TABLE, first.state)
            for scale, values in enumerate((rows.values, *rows.state.values()), 1):
                assert (values.numpy() == scale * rows.ids[:, None]).all()
            found += rows.ids.tolist()
    assert sorted(found) == list(range(7))


def test_what_a_table_cannot_begin_with_is_refused():
    tables, _ = _tables(1, 2)
    twice = {"ids": torch.tensor([1, 1]), "weights": torch.ones(2, WIDTH)}
    with pytest.raises(InvalidValueError, match="ids of 't' is 'some twice'"):
        tables.begin("t", twice)
    with pytest.raises(InvalidValueError, match="weights of 't'"):
        tables.begin("t", {"ids": torch.tensor([1])})
    wide = Table(rows=2, width=10**7)
    with pytest.raises(InvalidValueError, match="the width of 'wide' is 10000000; it must be so"):
        tables.declare("wide", wide, Rules(optimizer=Adam()))


def test_numbers_may_be_numpys():
    tables, session = _tables(1, 9)
    handle = tables.pull("t", np.array([[3, 1]], np.int32), None, 0)
    (pulled,) = session.pending.pulled.values()
    assert aligned(pulled.asked, torch.int64).tolist() == [1, 3]
    assert handle.out.shape == (1, 2, WIDTH)
    assert msgspec.structs.asdict(session.slices[0])["table"] == TABLE
