"""Tables at the machines: a push counts when all its parts are there, and once."""

from __future__ import annotations

import msgspec
import pytest

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from syncopate.protocol.server import Kept, Seat, ServerMachine
from syncopate.protocol.slice import Position
from syncopate.protocol.table import (
    MOST_TABLES,
    TABLES,
    Constant,
    Normal,
    Table,
    Uniform,
    key_of,
    require_rows,
    server_of,
)
from syncopate.protocol.worker import WorkerMachine

TABLE = Table(rows=1000, width=3)
ROW = 8 + 12


def _slice(server=0, rules=None, table=TABLE):
    numel = table.rows * table.width
    return TableSlice(Slice(key_of(0, server), "t", table.dtype, 0, numel, table), rules or Rules())


def _server(rules=None, workers=2, *, durable=False, kept=None, declared=True):
    tokens = tuple(f"t{rank}" for rank in range(workers))
    seat = Seat(msg.Roster("run", 0, ("tcp://s",), tokens), "boot", durable)
    machine = ServerMachine(seat, Limits(payload_bytes=8 << 20), kept)
    for rank in range(workers):
        machine.receive(b"p%d" % rank, msg.Hello("run", rank, tokens[rank]), None)
        if declared:
            machine.receive(b"p%d" % rank, msg.DeclareTable(_slice(rules=rules)), None)
    return machine


def _push(machine, worker, sequence, rows=2, **given):
    kind = msg.BeginRows if not sequence else msg.PushRows
    return machine.receive(b"p%d" % worker, kind(TABLES, sequence, **given), rows * ROW)


def _of(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


def _acks(actions):
    return [
        (a.to, a.message.received, a.message.done)
        for a in _of(actions, act.Send)
        if isinstance(a.message, msg.Ack)
    ]


def test_a_table_begins_with_rank_0s_rows_in_parts():
    machine = _server()
    found = _push(machine, 0, 0, part=1, parts=2, state=(), steps=3)
    assert _of(found, act.Initialise) == [act.Initialise(TABLES, 0, (), 3)]
    assert _acks(found) == [(b"p0", -1, -1)]
    pull = msg.PullRows(TABLES, 0, 1, count=2)
    assert _of(machine.receive(b"p1", pull, 16), act.Answer) == []
    found = _push(machine, 0, 0, part=0, parts=2, steps=3)
    assert _acks(found) == [(b"p0", 0, 0)]
    assert _of(found, act.Answer) == [
        act.Answer(b"p1", msg.Rows(TABLES, 0, 1), 0, None, 1),
    ]


def test_a_push_counts_when_all_of_its_parts_are_there():
    machine = _server()
    _push(machine, 0, 0)
    assert _of(_push(machine, 1, 1), act.Update) == []
    for part in (2, 0, 2):
        found = _push(machine, 0, 1, part=part, parts=3, lr=0.5)
        assert _of(found, act.Stage) == [act.Stage(TABLES, 0, 1, number=part)]
        assert _of(found, act.Update) == []
    found = _push(machine, 0, 1, part=1, parts=3, lr=0.5)
    assert _of(found, act.Update) == [act.Update(TABLES, 1, ((0, 1), (1, 1)), 0.5, None)]
    assert _acks(_push(machine, 0, 1, part=1, parts=3)) == [(b"p0", 1, 1)]
    assert machine.refused == {msg.REPLAYED: 1}


def test_parts_before_a_restart_count_no_more():
    position = Position(4, {0: 4, 1: 4})
    kept = Kept("", None, (), {TABLES: position}, (_slice(),))
    machine = _server(durable=True, kept=kept, declared=False)
    assert machine.positions([TABLES]) == {TABLES: position}
    _push(machine, 0, 5, part=0, parts=2)
    again = _server(durable=True, kept=kept, declared=False)
    assert _acks(_push(again, 0, 5, part=1, parts=2)) == [(b"p0", 4, 4)]
    assert _acks(_push(again, 0, 5, part=0, parts=2)) == [(b"p0", 5, 4)]


def test_what_is_no_push_or_pull_of_rows_is_refused():
    machine = _server(Rules(optimizer=Adam()))
    _push(machine, 0, 0)
    for message, size, kind in [
        (msg.Push(TABLES, 1), ROW, msg.MALFORMED),
        (msg.PushRows(TABLES, 1, part=2, parts=2), ROW, msg.MALFORMED),
        (msg.BeginRows(TABLES, 1), ROW, msg.MALFORMED),
        (msg.PushRows(TABLES, 1), ROW + 1, msg.WRONG_SIZE),
        (msg.PushRows(TABLES, 1), None, msg.MALFORMED),
        (msg.Pull(TABLES, 0, 1), None, msg.MALFORMED),
        (msg.PullRows(TABLES, 0, 1, count=2), 8, msg.WRONG_SIZE),
        (msg.PullRows(TABLES, 0, 1, count=2), None, msg.MALFORMED),
        (msg.PullTable(TABLES, 0, 1, count=10**6), None, msg.WRONG_SIZE),
    ]:
        before = machine.refused[kind]
        found = machine.receive(b"p0", message, size)
        assert machine.refused[kind] == before + 1, message
        assert not _of(found, act.Stage)
        assert not _of(found, act.Answer)


def test_a_table_that_is_not_known_is_asked_for():
    machine = _server(declared=False)
    found = machine.receive(b"p0", msg.PullRows(TABLES, 0, 1, count=0), 0)
    assert found == [act.Send(b"p0", msg.HelloWanted())]
    table = _slice()
    assert machine.receive(b"p0", msg.DeclareTable(table), None) == [act.KeepTable(table)]
    assert machine.receive(b"p1", msg.DeclareTable(table), None) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (_slice(table=Table(rows=1000, width=4)), "another worker 't'"),
        (_slice(rules=Rules(optimizer=Adam())), "all workers declare the same tables"),
        (_slice(server=1), "declared t as no table here"),
        (_slice(rules=Rules(mode="dc-asgd")), "'ssgd' or 'asgd' for a table of rows"),
        (_slice(table=Table(rows=10, width=0)), "width is 0"),
        (_slice(table=Table(rows=10, width=2**21)), "rows of 8388616 bytes, state and all"),
    ],
)
def test_another_table_ends_the_job(other, words):
    machine = _server()
    (found,) = machine.receive(b"p1", msg.DeclareTable(other), None)
    assert isinstance(found, act.Fail)
    assert found.ranks == (1,)
    assert words in found.reason


@pytest.mark.parametrize(
    ("table", "error", "words"),
    [
        (Table(rows=0, width=1), InvalidValueError, "rows is 0"),
        (Table(rows=2**40, width=2**23), InvalidValueError, "rows of 8388608 elements"),
        (Table(rows=1, width=1, dtype="int32"), UnknownNameError, "known: float32, float64"),
        (Table(rows=1, width=1, initial=Normal(std=-1.0)), InvalidValueError, "std is -1.0"),
        (Table(rows=1, width=1, initial=Uniform(0.0, 1.0, seed=-1)), InvalidValueError, "seed"),
        (
            Table(rows=1, width=1, initial=Constant(float("nan"))),
            InvalidValueError,
            "value is nan; it must be finite",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused(table, error, words):
    with pytest.raises(error, match=words):
        table.require_valid()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(mode="dc-asgd"), "mode"),
        (Rules(optimizer=SGD(lr=0.1, momentum=0.9)), "momentum"),
        (Rules(optimizer=SGD(lr=0.1, weight_decay=0.1)), "weight_decay"),
        (Rules(optimizer=Adagrad(weight_decay=0.1)), "weight_decay"),
        (Rules(optimizer=Adam(weight_decay=0.1)), "weight_decay"),
    ],
)
def test_rules_that_change_other_rows_are_refused(rules, words):
    with pytest.raises(InvalidValueError, match=words):
        require_rows(rules)


def test_keys_of_tables_are_those_of_no_slice_or_bundle():
    assert key_of(0, 0) == TABLES
    last = key_of(MOST_TABLES - 1, 2**16 - 1)
    assert last == 2**31 - 1
    assert server_of(last) == 2**16 - 1


def _worker():
    roster = msg.Roster("run", 0, ("tcp://one", "tcp://two"), ("t0",))
    machine = WorkerMachine(roster, "t0", Rules(), Limits())
    machine.connect(0.0)
    machine.declare_table([_slice(0), _slice(1)])
    return machine


def _welcomed(machine, server, boot="boot"):
    return machine.receive(server, msg.Welcome(boot, True), None, 0.0)


def test_a_worker_declares_its_tables_again_to_a_server_that_came_back():
    machine = _worker()
    number, _ = machine.push(msg.BeginRows(key_of(0, 1), 9, parts=2), 0, 0.0)
    assert number == 0
    for boot in ("boot", "another"):
        found = _welcomed(machine, 1, boot)
        declared, *pushed = [action.message for action in _of(found, act.Send)]
        assert declared == msg.DeclareTable(_slice(1))
        assert [(each.sequence, each.part, each.parts) for each in pushed] == [(0, 0, 2), (0, 1, 2)]
        machine.moved(msg.Moved(1, "tcp://again"), 0.0)


def test_a_worker_takes_rows_of_the_size_that_it_asked_for():
    machine = _worker()
    _welcomed(machine, 0)
    request, (found,) = machine.pull(msg.PullRows(TABLES, 0, 0, count=4), 0.0)
    assert found.message == msg.PullRows(TABLES, 0, request, count=4)
    rows = msg.Rows(TABLES, 3, request)
    assert machine.receive(0, rows, 3 * 12, 0.0) == []
    assert machine.receive(0, msg.Weights(TABLES, 3, request), 4 * 12, 0.0) == []
    assert machine.receive(0, rows, 4 * 12, 0.0) == [act.Fill(rows)]
    assert machine.receive(0, rows, 4 * 12, 0.0) == []
    assert machine.refused == {msg.WRONG_SIZE: 1, msg.MALFORMED: 1, msg.REPLAYED: 1}
    request, _ = machine.pull(msg.PullTable(TABLES, 0, 0, begin=5, count=4), 0.0)
    told = msg.TableState(TABLES, 3, request, held=7)
    assert machine.receive(0, msgspec.structs.replace(told, held=6), 2 * ROW, 0.0) == []
    assert machine.receive(0, told, 2 * ROW, 0.0) == [act.Fill(told)]


@pytest.mark.parametrize("declared", [False, True])
def test_a_table_without_a_first_value_ends_the_job(declared):
    machine = _server(declared=declared)
    found = machine.left(0)
    if not declared:
        assert found == []
        found = machine.receive(b"p1", msg.DeclareTable(_slice()), None)
    (failed,) = found
    assert isinstance(failed, act.Fail)
    assert "worker 0 left and never gave 't' its first value" in failed.reason
