"""The scheduler: who is in, who is lost, and when the job is over, by times passed in."""

from __future__ import annotations

import msgspec
import pytest

from syncopate.errors import InvalidValueError
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.member import REGISTER_S
from syncopate.protocol.membership.scheduler import SchedulerMachine
from tests.unit.protocol.membership.members import (
    LIMITS,
    beat,
    complete,
    leave,
    register,
    told,
)


def test_everybody_hears_who_is_who_when_the_last_one_comes():
    machine, sent = complete()
    servers, workers = ("tcp://s",), ("w0", "w1")
    assert told(sent) == {
        "s": msg.Roster("run", 0, servers, workers),
        "w0": msg.Roster("run", 0, servers, workers),
        "w1": msg.Roster("run", 1, servers, workers),
    }
    assert machine.here == {"server": 1, "worker": 2}


def test_ranks_are_those_that_were_wanted_where_they_are_free():
    machine = SchedulerMachine("job", "run", 1, 4, LIMITS)
    machine.receive("s", register("server", "s"), 0.0)
    for token, rank in (("a", 2), ("b", -1), ("c", 2)):
        machine.receive(token, register("worker", token, rank), 0.0)
    said = told(machine.receive("d", register("worker", "d", 0), 0.0))
    assert {token: said[token].rank for token in "abcd"} == {"a": 2, "b": 1, "c": 3, "d": 0}


def test_who_asks_again_is_told_again():
    machine, _ = complete()
    assert told(machine.receive("elsewhere", register("worker", "w1"), 1.0)) == {
        "elsewhere": msg.Roster("run", 1, ("tcp://s",), ("w0", "w1"))
    }


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (msg.Register(9, "job", "worker", "x"), "protocol version 9"),
        (msg.Register(msg.PROTOCOL, "another", "worker", "x"), "'another'; the job here"),
        (register("server", "x", run="old"), "state of run old"),
        (register("worker", "x"), "the job is complete"),
        (register("server", "x", rank=7, run="run"), "no server 7"),
    ],
)
def test_who_does_not_belong_is_refused(register, words):
    machine, _ = complete()
    assert words in told(machine.receive("x", register, 1.0))["x"].reason
    assert machine.refused.total() == 1


def test_one_too_many_is_refused_while_others_are_missing():
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS)
    machine.receive("s", register("server", "s"), 0.0)
    assert (
        "1 servers already" in told(machine.receive("t", register("server", "t"), 0.0))["t"].reason
    )


def test_who_did_not_come_is_said():
    machine = SchedulerMachine("job", "run", 2, 3, LIMITS)
    machine.tick(0.0)
    machine.receive("s", register("server", "s"), 18.0)
    assert machine.tick(20.0) == []
    fail = machine.tick(21.0)[-1]
    assert fail.reason == "1 of 2 servers and 0 of 3 workers came within 20 s (join_s)"


@pytest.mark.parametrize(("rank", "name"), [(1, "worker 1"), (-1, "worker 0")])
def test_a_worker_that_dies_while_others_are_missing_is_named_at_once(rank, name):
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS)
    machine.tick(0.0)
    machine.receive("w", register("worker", "w", rank), 0.0)
    assert machine.tick(5.0) == []
    found = machine.tick(5.5)
    why = f"{name} was silent for 5.5 s before the job was complete"
    assert found[-1].reason == f"{why}; 0 of 1 servers and 1 of 2 workers had come"
    assert isinstance(told(found)["w"], msg.Abort)


def test_who_registers_only_now_and_then_is_not_taken_for_dead():
    quick = Limits(heartbeat_s=0.1, silence_s=0.5)
    machine = SchedulerMachine("job", "run", 1, 1, quick)
    machine.tick(0.0)
    machine.receive("w", register("worker", "w"), 0.0)
    assert machine.tick(3 * REGISTER_S) == []
    assert machine.tick(3 * REGISTER_S + 0.1) != []


def test_a_silent_worker_is_given_up_and_named_to_all_others():
    machine, _ = complete()
    beat(machine, 4.0, "s", "w0")
    assert machine.tick(4.9) == []
    found = machine.tick(5.5)
    assert told(found) == {"s": msg.Lost(1, 5.5), "w0": msg.Lost(1, 5.5)}
    assert machine.tick(5.6) == []
    came_back = told(machine.receive("w1", msg.Heartbeat("w1"), 6.0))
    assert "worker 1 was silent and given up" in came_back["w1"].reason


def test_when_no_worker_is_left_the_job_is_over():
    machine, _ = complete(workers=1)
    beat(machine, 4.0, "s")
    found = machine.tick(6.0)
    assert "worker 0 was silent for 6.0 s, and no worker is left" in found[-1].reason
    assert isinstance(told(found)["s"], msg.Abort)


@pytest.mark.parametrize(("role", "token"), [("worker", "w1"), ("server", "s")])
def test_who_is_silent_and_connected_may_be_stopped_and_is_waited_for(role, token):
    machine, _ = complete()
    others = {"s", "w0", "w1"} - {token}
    asked = []

    def reaches(peer):
        asked.append(peer)
        return True

    for now_s in range(1, 31):
        beat(machine, float(now_s), *others)
        assert machine.tick(float(now_s), reaches) == []
    assert set(asked) == {token}
    beat(machine, 30.5, "s", "w0", "w1")
    assert machine.here == {"server": 1, "worker": 2}
    for now_s in range(31, 66):
        beat(machine, float(now_s), *others)
        assert machine.tick(float(now_s), reaches) == []
    found = machine.tick(65.6, reaches)
    assert found[0].message == (msg.Lost(1, 65.6 - 30.5) if role == "worker" else _abort(found))


def _abort(found):
    (reason,) = [action.reason for action in found if isinstance(action, act.Fail)]
    assert "server 0 at tcp://s was silent for 35.1 s" in reason
    return msg.Abort(reason)


def test_who_is_silent_and_not_connected_is_lost_though_it_was_connected_before():
    machine, _ = complete()
    connected = True
    for now_s in range(1, 9):
        beat(machine, float(now_s), "s", "w0")
        assert machine.tick(float(now_s), lambda _: connected) == []
    connected = False
    beat(machine, 9.0, "s", "w0")
    assert told(machine.tick(9.0, lambda _: connected))["w0"] == msg.Lost(1, 9.0)


def test_the_scheduler_waits_at_the_end_for_one_that_is_cut_off():
    machine, _ = complete()
    leave(machine, 8.0, "w0", "w1")
    assert machine.over
    for now_s in range(9, 36):
        machine.tick(float(now_s), lambda _: True)
        assert not machine.settled
    assert told(machine.receive("s2", msg.Heartbeat("s"), 36.0)) == {"s2": msg.Finish()}
    machine.receive("s2", msg.Leave("s", heard=True), 36.1)
    machine.tick(36.2, lambda _: True)
    assert machine.settled


@pytest.mark.parametrize(("reached", "until_s"), [(False, 6.0), (True, 36.0)])
def test_the_scheduler_does_not_wait_at_the_end_for_one_that_is_gone(reached, until_s):
    machine, _ = complete()
    leave(machine, 1.0, "w0", "w1")
    for now_s in range(2, int(until_s)):
        machine.tick(float(now_s), lambda _: reached)
        assert not machine.settled
    machine.tick(until_s, lambda _: reached)
    assert machine.settled


@pytest.mark.parametrize(("durable", "until_s"), [(False, 5.0), (True, 35.0)])
def test_a_silent_server_ends_the_job_unless_it_may_come_back(durable, until_s):
    machine, _ = complete(durable)
    for now_s in range(1, 40):
        beat(machine, float(now_s), "w0", "w1")
        found = machine.tick(float(now_s))
        if found:
            break
    assert now_s == int(until_s) + 1
    assert f"server 0 at tcp://s was silent for {now_s}.0 s" in found[-1].reason
    assert set(told(found)) == {"s", "w0", "w1"}


def test_a_server_that_comes_back_takes_its_place_and_the_workers_hear_where():
    machine, _ = complete(durable=True, workers=3)
    machine.receive("w2", msg.Leave("w2"), 1.0)
    back = msg.Register(msg.PROTOCOL, "job", "server", "new", "tcp://new", 0, "run", True)
    said = machine.receive("n", back, 9.0)
    assert said == [
        act.Send("n", msg.Roster("run", 0, ("tcp://new",), ("w0", "w1", "w2"))),
        act.Send("n", msg.Left(2)),
        act.Send("w0", msg.Moved(0, "tcp://new")),
        act.Send("w1", msg.Moved(0, "tcp://new")),
    ]


def test_a_server_killed_before_it_wrote_anything_is_replaced_by_one_without_state():
    machine, _ = complete(durable=True)
    again = register("server", "n", rank=0, durable=True)
    other = register("server", "o", rank=0)
    assert "the job is complete" in told(machine.receive("o", other, 0.5))["o"].reason
    said = told(machine.receive("n", again, 0.5))
    assert said["n"] == msg.Roster("run", 0, ("tcp://n",), ("w0", "w1"))
    assert said["w1"] == msg.Moved(0, "tcp://n")
    beat(machine, 0.6, "n")  # from here on it has state, which must not be lost
    third = register("server", "m", rank=0, durable=True)
    assert "the job is complete" in told(machine.receive("m", third, 0.7))["m"].reason


def test_a_server_killed_while_others_are_missing_is_waited_out():
    machine = SchedulerMachine("job", "run", 1, 1, LIMITS)
    machine.tick(0.0)
    machine.receive("s", register("server", "s", rank=0, durable=True), 0.0)
    again = register("server", "n", rank=0, durable=True)
    assert machine.receive("n", again, 1.0) == []
    machine.tick(6.0)
    assert machine.here == {"server": 0, "worker": 0}
    machine.receive("n", again, 6.0)
    said = told(machine.receive("w", register("worker", "w"), 6.0))
    assert said["w"] == msg.Roster("run", 0, ("tcp://n",), ("w",))


@pytest.mark.parametrize("fixed_port", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_a_server_killed_while_others_are_missing_pushes_no_other_out(fixed_port, durable):
    """The first of two comes back before its silence is noticed; then comes the second."""
    machine = SchedulerMachine("job", "run", 2, 1, LIMITS)
    machine.tick(0.0)
    machine.receive("s", register("server", "s", rank=0, durable=durable), 0.0)
    again = register("server", "n", rank=0, durable=durable)
    if fixed_port:
        again = msgspec.structs.replace(again, address="tcp://s")
    machine.receive("n", again, 1.0)
    assert machine.here["server"] == 1
    found = machine.receive("t", register("server", "t", rank=1, durable=durable), 1.5)
    assert told(found) == {"t": msg.Heartbeat("")}
    machine.receive("n", again, LIMITS.silence_s / 2 + 1.0)
    said = told(machine.receive("w", register("worker", "w"), LIMITS.silence_s / 2 + 1.5))
    assert said["w"].servers == (again.address, "tcp://t")
    assert said["n"].rank == 0
    assert "s" not in said


def test_of_two_servers_that_want_one_rank_and_live_both_may_come():
    machine = SchedulerMachine("job", "run", 2, 1, LIMITS)
    machine.tick(0.0)
    one, two = (register("server", token, rank=0) for token in "st")
    machine.receive("s", one, 0.0)
    assert machine.receive("t", two, 0.5) == []
    assert machine.here["server"] == 1
    machine.receive("s", one, 1.0)
    machine.receive("t", two, 1.5)
    said = told(machine.receive("w", register("worker", "w"), 1.5))
    assert {said[token].rank for token in "st"} == {0, 1}


def test_the_job_ends_when_all_workers_left_and_the_servers_heard_it():
    machine, _ = complete()
    assert told(machine.receive("w0", msg.Leave("w0"), 1.0)) == {
        "w0": msg.Left(0),
        "s": msg.Left(0),
    }
    assert told(machine.receive("w0", msg.Leave("w0"), 1.1)) == {"w0": msg.Left(0)}
    found = machine.receive("w1", msg.Leave("w1"), 2.0)
    assert found[-2:] == [act.Send("s", msg.Finish()), act.Stop()]
    machine.tick(2.0)
    assert machine.over
    assert not machine.settled
    assert told(machine.receive("s", msg.Heartbeat("s"), 2.5)) == {"s": msg.Finish()}
    machine.receive("s", msg.Leave("s", heard=True), 2.6)
    machine.tick(2.7)
    assert not machine.settled  # neither worker said that it heard it
    leave(machine, 2.8, "w0", "w1")
    machine.tick(2.9)
    assert machine.settled


def test_the_scheduler_stays_until_a_worker_that_left_has_heard_the_answer():
    """A worker waits for a scheduler that keeps its state; one that has ended never answers."""
    machine, _ = complete(durable=True)
    leave(machine, 1.0, "w0")
    machine.receive("w1", msg.Leave("w1"), 1.0)
    machine.receive("s", msg.Leave("s", heard=True), 1.1)
    machine.tick(1.2)
    assert not machine.settled
    assert told(machine.receive("w1", msg.Leave("w1"), 1.3)) == {"w1": msg.Left(1)}
    machine.tick(1.4)
    assert not machine.settled
    assert machine.receive("w1", msg.Leave("w1", heard=True), 1.5) == []
    machine.tick(1.6)
    assert machine.settled


def test_the_scheduler_waits_for_the_deaf_only_for_a_moment():
    machine, _ = complete()
    machine.abort("why")
    for now_s in (3.0, 4.9):
        machine.tick(now_s)
        assert not machine.settled
    machine.tick(5.1)
    assert machine.settled


def test_a_failure_is_passed_on():
    machine, _ = complete()
    found = machine.receive("w1", msg.Failed("w1", "no memory"), 1.0)
    assert set(told(found).values()) == {msg.Abort("worker 1: no memory")}
    assert found[-1] == act.Fail("worker 1: no memory")


@pytest.mark.parametrize("message", [msg.Heartbeat("x"), msg.Leave("x"), msg.Failed("x", "lie")])
def test_strangers_are_not_heard(message):
    machine, _ = complete()
    assert "not a member of this run" in told(machine.receive("x", message, 1.0))["x"].reason
    assert not machine.over
    assert machine.refused == {msg.OTHER_RUN: 1}


def test_strangers_are_told_neither_the_jobs_name_nor_the_runs():
    machine = SchedulerMachine("secret", "secret", 1, 1, LIMITS)
    strangers = [
        msg.Register(msg.PROTOCOL, "another", "worker", "x"),
        msg.Register(msg.PROTOCOL, "secret", "server", "x", run="old"),
        msg.Heartbeat("x"),
    ]
    said = [told(machine.receive("x", one, 1.0))["x"].reason for one in strangers]
    machine.abort("enough")
    said.append(told(machine.receive("x", msg.Heartbeat("x"), 1.0))["x"].reason)
    assert not [reason for reason in said if "secret" in reason]


# The member's side.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"heartbeat_s": 0}, "heartbeat_s is 0"),
        ({"silence_s": 0.6}, "at least twice heartbeat_s"),
        ({"slice_bytes": 2**40}, "at most payload_bytes"),
    ],
)
def test_limits_that_make_no_sense_are_refused(given, words):
    with pytest.raises(InvalidValueError, match=words):
        Limits(**given).require_valid()


def test_a_server_that_lives_but_has_written_nothing_yet_may_be_replaced():
    """Heartbeats go out while a server is still writing down which member it is."""
    machine, _ = complete(durable=True)
    machine.receive("s", msg.Heartbeat("s", settled=False), 1.0)
    again = register("server", "n", rank=0, durable=True)
    kept = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=machine.seated)
    for one in (machine, kept):  # also to a scheduler that was killed with it
        one.tick(1.5)
        one.receive("w0", msg.Heartbeat("w0"), 1.8)
        assert told(one.receive("n", again, 2.0))["n"].rank == 0
        assert one.receive("n", msg.Heartbeat("n"), 3.0)
        other = register("server", "o", rank=0, durable=True)
        assert isinstance(told(one.receive("o", other, 4.0))["o"], msg.Refused)


def test_a_server_that_was_killed_and_comes_back_to_a_job_that_is_over_hears_it():
    machine, _ = complete(durable=True)
    leave(machine, 1.0, "w0", "w1")
    assert machine.over
    back = msg.Register(msg.PROTOCOL, "job", "server", "new", "tcp://new", 0, "run", True)
    assert told(machine.receive("n", back, 2.0)) == {"n": msg.Finish()}
    machine.tick(5.0)
    assert not machine.settled
    machine.receive("n", msg.Leave("new", heard=True), 5.1)
    machine.tick(5.2)
    assert machine.settled
    other = msg.Register(msg.PROTOCOL, "job", "server", "o", "tcp://o", 0, "another run", True)
    assert isinstance(told(machine.receive("o", other, 5.3))["o"], msg.Refused)
