"""A process takes a worker's place at a server: what counts, and what it answers."""

from __future__ import annotations

import pytest

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import Rules
from syncopate.protocol.server import Kept, Seat, ServerMachine
from syncopate.protocol.slice import Position
from syncopate.protocol.table import Table, key_of

SLICES = (Slice(0, "a", "float32", 0, 4), Slice(1, "b", "float32", 0, 4))
WAIT = Rules(on_worker_loss="wait")
TAKEN = msg.Taken(1, "new", 1)


def _server(rules=WAIT, *, durable=False, kept=None, roster=None):
    """Return a server of two workers that have declared two slices."""
    roster = roster or msg.Roster("run", 0, ("tcp://s",), ("t0", "t1"))
    machine = ServerMachine(Seat(roster, "boot", durable), Limits(), kept)
    for rank, token in enumerate(roster.workers):
        _greet(machine, rank, token, rules)
    return machine


def _greet(machine, rank, token, rules=WAIT):
    found = machine.receive(token, msg.Hello("run", rank, token), None)
    machine.receive(token, msg.Declare("d", rules, SLICES), None)
    return found[-1].message


def _steps(machine, *pushes):
    """Let workers push, each named by its token, a slice and a number."""
    return [
        action
        for token, key, number in pushes
        for action in machine.receive(token, msg.Push(key, number), 16)
    ]


def _stands(actions):
    return [a.message for a in actions if isinstance(a, act.Send) and a.to == SCHEDULER]


def _answers(machine, token, key, after):
    found = machine.receive(token, msg.Pull(key, after, 9), None)
    return [(a.message.version, a.before) for a in found if isinstance(a, act.Answer)]


BEGUN = (("t0", 0, 0), ("t0", 1, 0))
STEP = tuple((token, key, 1) for token in ("t0", "t1") for key in (0, 1))
HALF = (("t0", 0, 2), ("t0", 1, 2), ("t1", 0, 2))
"""The second step, of which worker 1 has pushed one of two slices when it dies."""


def test_a_process_goes_on_from_the_step_that_all_slices_have():
    machine = _server()
    _steps(machine, *BEGUN, *STEP, *HALF)
    assert _stands(machine.taken(TAKEN)) == [msg.Stands("boot", "new", 1, 1)]
    # The one before is heard no more, nor let in again.
    assert isinstance(machine.receive("t1", msg.Push(1, 2), 16)[0].message, msg.HelloWanted)
    assert "another process has the place of worker 1" in _greet(machine, 1, "t1").reason
    assert machine.positions([0, 1]) == {
        0: Position(2, {0: 2, 1: 2}),
        1: Position(1, {0: 1, 1: 1}),
    }
    # The new one has the weights of step 1 of both, and what it pushes again counts once.
    assert isinstance(_greet(machine, 1, "new"), msg.Welcome)
    assert _answers(machine, "new", 0, 1) == [(1, True)]
    assert _answers(machine, "new", 1, 1) == [(1, False)]
    updates = [a for a in _steps(machine, ("new", 0, 2), ("new", 1, 2)) if type(a) is act.Update]
    assert [(a.key, a.version, a.gradients) for a in updates] == [(1, 2, ((0, 2), (1, 2)))]
    assert machine.refused[msg.REPLAYED] == 1


def test_the_same_is_answered_as_often_as_it_is_asked_and_nothing_to_one_of_before():
    machine = _server()
    _steps(machine, *BEGUN, *STEP)
    for _ in range(2):
        assert _stands(machine.taken(TAKEN)) == [msg.Stands("boot", "new", 1, 0)]
    newest = msg.Taken(1, "newest", 2)
    assert _stands(machine.taken(newest)) == [msg.Stands("boot", "newest", 1, 0)]
    assert machine.taken(TAKEN) == []


def test_where_state_is_kept_it_answers_when_all_is_on_disk():
    machine = _server(durable=True)
    _steps(machine, *BEGUN, *STEP)
    machine.committed({0: Position(1, {0: 1, 1: 1}), 1: Position(0, {0: 0})})
    assert _stands(machine.taken(TAKEN)) == []
    found = machine.committed({1: Position(1, {0: 1, 1: 1})})
    assert _stands(found) == [msg.Stands("boot", "new", 1, 0)]


@pytest.mark.parametrize(("before", "oldest"), [(frozenset({0, 1}), 3), (frozenset({1}), 4)])
def test_a_server_that_comes_back_has_the_version_before_if_its_disk_has(before, oldest):
    at = Position(4, {0: 4, 1: 4})
    kept = Kept("d", WAIT, SLICES, {0: at, 1: at}, before=before)
    machine = _server(durable=True, kept=kept)
    assert _stands(machine.taken(TAKEN)) == [msg.Stands("boot", "new", 4, oldest)]
    if 0 in before:
        assert _answers(machine, "t0", 0, 3) == [(3, True)]
        return
    (failed,) = machine.receive("t0", msg.Pull(0, 3, 1), None)
    assert isinstance(failed, act.Fail)
    assert "worker 0 goes on from step 3, and of 'a' there only are newer weights" in failed.reason


@pytest.mark.parametrize(
    ("rules", "begun", "step"),
    [(WAIT, (), -1), (WAIT, BEGUN[:1], -1), (WAIT, BEGUN, 0), (Rules(mode="asgd"), BEGUN, 1)],
)
def test_before_the_first_step_it_says_so(rules, begun, step):
    machine = _server(rules)
    _steps(machine, *begun)
    assert [each.step for each in _stands(machine.taken(TAKEN))] == [step]


def test_a_server_without_slices_goes_on_from_any_step_and_one_that_knows_none_from_nothing():
    roster = msg.Roster("run", 0, ("tcp://s",), ("t0", "t1"))
    machine = ServerMachine(Seat(roster, "boot"), Limits())
    assert _stands(machine.taken(TAKEN)) == [msg.Stands("boot", "new", -1)]
    machine.receive("t0", msg.Hello("run", 0, "t0"), None)
    machine.receive("t0", msg.Declare("d", WAIT, ()), None)
    assert _stands(machine.taken(TAKEN)) == [msg.Stands("boot", "new", None)]


def test_parts_of_a_push_of_rows_that_is_not_whole_are_dropped():
    table = Table(rows=10, width=1)
    spec = TableSlice(Slice(key_of(0, 0), "t", "float32", 0, 10, table), WAIT)
    machine = _server()
    machine.receive("t0", msg.DeclareTable(spec), None)
    key = spec.slice.key
    machine.receive("t0", msg.BeginRows(key, 0), 0)
    machine.receive("t1", msg.PushRows(key, 1, part=0, parts=2), 12)
    assert act.Unstage(key, 1, 1) in machine.taken(TAKEN)
    _greet(machine, 1, "new")
    again = machine.receive("new", msg.PushRows(key, 1, part=1, parts=2), 12)
    assert not any(isinstance(each, act.Send) and each.message.received == 1 for each in again[1:])


ASYNC = Rules(mode="asgd", on_worker_loss="wait", staleness=2)


def test_asynchronous_pushes_are_counted_on_from_those_of_the_process_before():
    machine = _server(ASYNC)
    _steps(machine, *BEGUN, ("t1", 0, 1), ("t1", 0, 2), ("t1", 1, 1))
    assert [each.step for each in _stands(machine.taken(TAKEN))] == [1]
    _greet(machine, 1, "new", ASYNC)
    assert _answers(machine, "new", 0, 0) == [(2, False)]
    found = _steps(machine, ("t0", 0, 1), ("new", 0, 1))
    updates = [a.gradients for a in found if isinstance(a, act.Update)]
    assert updates == [((0, 1),), ((1, 3),)]
    acks = [a.message for a in found if isinstance(a, act.Send) and a.to == "new"]
    assert [(ack.received, ack.done) for ack in acks] == [(1, 1)]
    assert machine.positions([0])[0].origins == {1: (1, 2)}


def test_what_a_server_lost_of_a_place_it_counts_again_when_it_comes_back():
    """The life on disk is older than the roster's: none of the new process's pushes are there."""
    kept = Kept("d", ASYNC, SLICES, {key: Position(2, {0: 1, 1: 1}) for key in (0, 1)})
    roster = msg.Roster("run", 0, ("tcp://s",), ("t0", "new"), lives=(0, 1))
    machine = _server(ASYNC, durable=True, kept=kept, roster=roster)
    found = _steps(machine, ("new", 0, 1))
    assert [a.gradients for a in found if isinstance(a, act.Update)] == [((1, 2),)]
    at = machine.positions([0])[0]
    back = Kept("d", ASYNC, SLICES, {0: at, 1: at})
    again = _server(ASYNC, durable=True, kept=back, roster=roster)
    assert not any(isinstance(a, act.Update) for a in _steps(again, ("new", 0, 1)))


def test_a_worker_more_counts_from_the_slowest():
    machine = _server(ASYNC)
    _steps(machine, *BEGUN, ("t0", 0, 1), ("t0", 0, 2), ("t1", 0, 1))
    machine.taken(msg.Taken(2, "more", 1))
    _greet(machine, 2, "more", ASYNC)
    found = _steps(machine, ("more", 0, 1), *(("t0", 0, n) for n in (3, 4, 5)))
    updates = [a.gradients[0] for a in found if isinstance(a, act.Update)]
    assert updates == [(2, 2), (0, 3), (0, 4)]


def test_where_updates_are_asynchronous_no_worker_has_first_values_that_are_not_on_disk():
    """Else it could push what follows from them, and after a crash there would be that alone."""
    machine = _server(Rules(mode="asgd"), durable=True)
    _steps(machine, *BEGUN)
    assert _answers(machine, "t1", 0, 0) == []
    found = machine.committed({0: Position(0, {0: 0})})
    assert [a.to for a in found if isinstance(a, act.Answer)] == ["t1"]
