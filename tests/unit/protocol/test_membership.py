"""Membership: who is in, who is lost, and when it is over, by times passed in."""

from __future__ import annotations

import msgspec
import pytest

from syncopate.errors import InvalidValueError
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.limits import Limits
from syncopate.protocol.member import REGISTER_S, MemberMachine
from syncopate.protocol.scheduler import SchedulerMachine

LIMITS = Limits(heartbeat_s=1, silence_s=5, join_s=20, restart_s=30)


def _register(role, token, rank=-1, **given):
    address = f"tcp://{token}" if role == "server" else ""
    return msg.Register(msg.PROTOCOL, "job", role, token, address, rank, **given)


def _complete(durable=False, workers=2):
    machine = SchedulerMachine("job", "run", 1, workers, LIMITS)
    machine.tick(0.0)
    sent = machine.receive("s", _register("server", "s", durable=durable), 0.0)
    for rank in range(workers):
        sent += machine.receive(f"w{rank}", _register("worker", f"w{rank}"), 0.0)
    assert machine.complete
    return machine, sent


def _said(actions):
    return {action.to: action.message for action in actions if isinstance(action, act.Send)}


def _beat(machine, now_s, *tokens):
    for token in tokens:
        assert _said(machine.receive(token, msg.Heartbeat(token), now_s)) == {
            token: msg.Heartbeat("")
        }


def test_everybody_hears_who_is_who_when_the_last_one_comes():
    machine, sent = _complete()
    servers, workers = ("tcp://s",), ("w0", "w1")
    assert _said(sent) == {
        "s": msg.Roster("run", 0, servers, workers),
        "w0": msg.Roster("run", 0, servers, workers),
        "w1": msg.Roster("run", 1, servers, workers),
    }
    assert machine.here == {"server": 1, "worker": 2}


def test_ranks_are_those_that_were_wanted_where_they_are_free():
    machine = SchedulerMachine("job", "run", 1, 4, LIMITS)
    machine.receive("s", _register("server", "s"), 0.0)
    for token, rank in (("a", 2), ("b", -1), ("c", 2)):
        machine.receive(token, _register("worker", token, rank), 0.0)
    said = _said(machine.receive("d", _register("worker", "d", 0), 0.0))
    assert {token: said[token].rank for token in "abcd"} == {"a": 2, "b": 1, "c": 3, "d": 0}


def test_who_asks_again_is_told_again():
    machine, _ = _complete()
    assert _said(machine.receive("elsewhere", _register("worker", "w1"), 1.0)) == {
        "elsewhere": msg.Roster("run", 1, ("tcp://s",), ("w0", "w1"))
    }


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (msg.Register(9, "job", "worker", "x"), "protocol version 9"),
        (msg.Register(msg.PROTOCOL, "another", "worker", "x"), "'another'; the job here"),
        (_register("server", "x", run="old"), "state of run old"),
        (_register("worker", "x"), "the job is complete"),
        (_register("server", "x", rank=7, run="run"), "no server 7"),
    ],
)
def test_who_does_not_belong_is_refused(register, words):
    machine, _ = _complete()
    assert words in _said(machine.receive("x", register, 1.0))["x"].reason
    assert machine.refused.total() == 1


def test_one_too_many_is_refused_while_others_are_missing():
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS)
    machine.receive("s", _register("server", "s"), 0.0)
    assert (
        "1 servers already"
        in _said(machine.receive("t", _register("server", "t"), 0.0))["t"].reason
    )


def test_who_did_not_come_is_said():
    machine = SchedulerMachine("job", "run", 2, 3, LIMITS)
    machine.tick(0.0)
    machine.receive("s", _register("server", "s"), 18.0)
    assert machine.tick(20.0) == []
    fail = machine.tick(21.0)[-1]
    assert fail.reason == "1 of 2 servers and 0 of 3 workers came within 20 s (join_s)"


@pytest.mark.parametrize(("rank", "name"), [(1, "worker 1"), (-1, "worker 0")])
def test_a_worker_that_dies_while_others_are_missing_is_named_at_once(rank, name):
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS)
    machine.tick(0.0)
    machine.receive("w", _register("worker", "w", rank), 0.0)
    assert machine.tick(5.0) == []
    found = machine.tick(5.5)
    why = f"{name} was silent for 5.5 s before the job was complete"
    assert found[-1].reason == f"{why}; 0 of 1 servers and 1 of 2 workers had come"
    assert isinstance(_said(found)["w"], msg.Abort)


def test_who_registers_only_now_and_then_is_not_taken_for_dead():
    quick = Limits(heartbeat_s=0.1, silence_s=0.5)
    machine = SchedulerMachine("job", "run", 1, 1, quick)
    machine.tick(0.0)
    machine.receive("w", _register("worker", "w"), 0.0)
    assert machine.tick(3 * REGISTER_S) == []
    assert machine.tick(3 * REGISTER_S + 0.1) != []


def test_a_silent_worker_is_given_up_and_named_to_all_others():
    machine, _ = _complete()
    _beat(machine, 4.0, "s", "w0")
    assert machine.tick(4.9) == []
    found = machine.tick(5.5)
    assert _said(found) == {"s": msg.Lost(1, 5.5), "w0": msg.Lost(1, 5.5)}
    assert machine.tick(5.6) == []
    came_back = _said(machine.receive("w1", msg.Heartbeat("w1"), 6.0))
    assert "worker 1 was silent and given up" in came_back["w1"].reason


def test_when_no_worker_is_left_the_job_is_over():
    machine, _ = _complete(workers=1)
    _beat(machine, 4.0, "s")
    found = machine.tick(6.0)
    assert "worker 0 was silent for 6.0 s, and no worker is left" in found[-1].reason
    assert isinstance(_said(found)["s"], msg.Abort)


@pytest.mark.parametrize(("role", "token"), [("worker", "w1"), ("server", "s")])
def test_who_is_silent_and_connected_may_be_stopped_and_is_waited_for(role, token):
    machine, _ = _complete()
    others = {"s", "w0", "w1"} - {token}
    asked = []

    def reaches(peer):
        asked.append(peer)
        return True

    for now_s in range(1, 31):
        _beat(machine, float(now_s), *others)
        assert machine.tick(float(now_s), reaches) == []
    assert set(asked) == {token}
    _beat(machine, 30.5, "s", "w0", "w1")
    assert machine.here == {"server": 1, "worker": 2}
    for now_s in range(31, 66):
        _beat(machine, float(now_s), *others)
        assert machine.tick(float(now_s), reaches) == []
    found = machine.tick(65.6, reaches)
    assert found[0].message == (msg.Lost(1, 65.6 - 30.5) if role == "worker" else _abort(found))


def _abort(found):
    (reason,) = [action.reason for action in found if isinstance(action, act.Fail)]
    assert "server 0 at tcp://s was silent for 35.1 s" in reason
    return msg.Abort(reason)


def test_who_is_silent_and_not_connected_is_lost_though_it_was_connected_before():
    machine, _ = _complete()
    connected = True
    for now_s in range(1, 9):
        _beat(machine, float(now_s), "s", "w0")
        assert machine.tick(float(now_s), lambda _: connected) == []
    connected = False
    _beat(machine, 9.0, "s", "w0")
    assert _said(machine.tick(9.0, lambda _: connected))["w0"] == msg.Lost(1, 9.0)


@pytest.mark.parametrize(("until_s", "lost"), [(15, True), (16, False)])
def test_a_connection_that_nothing_came_through_for_long_was_cut_by_the_network(until_s, lost):
    """The system closes those of a process that dies at once; these after 30 s."""
    machine, member = _complete()[0], _joined()
    for now_s in range(1, 36):
        reached = now_s <= until_s
        _beat(machine, float(now_s), "s", "w0")
        found = machine.tick(float(now_s), lambda _: reached)  # noqa: B023
        gave_up = any(isinstance(a, act.Fail) for a in member.tick(1.0 + now_s, reached))
        if found or gave_up:
            break
    assert (bool(found), gave_up, now_s) == (lost, lost, 16 if lost else 35)
    if not lost:
        _beat(machine, 35.5, "w1")
        _beat(machine, 36.0, "s", "w0")
        assert machine.tick(36.0) == []
        assert machine.here == {"server": 1, "worker": 2}
        member.receive(msg.Heartbeat(""), 36.0)
        assert any(isinstance(a, act.Fail) for a in member.tick(41.1))  # it died this time


def test_the_scheduler_waits_at_the_end_for_one_that_is_cut_off():
    machine, _ = _complete()
    for token in ("w0", "w1"):
        machine.receive(token, msg.Leave(token), 8.0)
    assert machine.over
    for now_s in range(9, 36):
        machine.tick(float(now_s), lambda _: True)
        assert not machine.settled
    assert _said(machine.receive("s2", msg.Heartbeat("s"), 36.0)) == {"s2": msg.Finish()}
    machine.receive("s2", msg.Leave("s"), 36.1)
    machine.tick(36.2, lambda _: True)
    assert machine.settled


@pytest.mark.parametrize(("reached", "until_s"), [(False, 6.0), (True, 36.0)])
def test_the_scheduler_does_not_wait_at_the_end_for_one_that_is_gone(reached, until_s):
    machine, _ = _complete()
    for token in ("w0", "w1"):
        machine.receive(token, msg.Leave(token), 1.0)
    for now_s in range(2, int(until_s)):
        machine.tick(float(now_s), lambda _: reached)
        assert not machine.settled
    machine.tick(until_s, lambda _: reached)
    assert machine.settled


@pytest.mark.parametrize(("durable", "until_s"), [(False, 5.0), (True, 35.0)])
def test_a_silent_server_ends_the_job_unless_it_may_come_back(durable, until_s):
    machine, _ = _complete(durable)
    for now_s in range(1, 40):
        _beat(machine, float(now_s), "w0", "w1")
        found = machine.tick(float(now_s))
        if found:
            break
    assert now_s == int(until_s) + 1
    assert f"server 0 at tcp://s was silent for {now_s}.0 s" in found[-1].reason
    assert set(_said(found)) == {"s", "w0", "w1"}


def test_a_server_that_comes_back_takes_its_place_and_the_workers_hear_where():
    machine, _ = _complete(durable=True, workers=3)
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
    machine, _ = _complete(durable=True)
    again = _register("server", "n", rank=0, durable=True)
    other = _register("server", "o", rank=0)
    assert "the job is complete" in _said(machine.receive("o", other, 0.5))["o"].reason
    said = _said(machine.receive("n", again, 0.5))
    assert said["n"] == msg.Roster("run", 0, ("tcp://n",), ("w0", "w1"))
    assert said["w1"] == msg.Moved(0, "tcp://n")
    _beat(machine, 0.6, "n")  # from here on it has state, which must not be lost
    third = _register("server", "m", rank=0, durable=True)
    assert "the job is complete" in _said(machine.receive("m", third, 0.7))["m"].reason


def test_a_server_killed_while_others_are_missing_is_waited_out():
    machine = SchedulerMachine("job", "run", 1, 1, LIMITS)
    machine.tick(0.0)
    machine.receive("s", _register("server", "s", rank=0, durable=True), 0.0)
    again = _register("server", "n", rank=0, durable=True)
    assert machine.receive("n", again, 1.0) == []
    machine.tick(6.0)
    assert machine.here == {"server": 0, "worker": 0}
    machine.receive("n", again, 6.0)
    said = _said(machine.receive("w", _register("worker", "w"), 6.0))
    assert said["w"] == msg.Roster("run", 0, ("tcp://n",), ("w",))


@pytest.mark.parametrize("fixed_port", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_a_server_killed_while_others_are_missing_pushes_nobody_out(fixed_port, durable):
    """The first of two comes back before its silence is noticed; then comes the second."""
    machine = SchedulerMachine("job", "run", 2, 1, LIMITS)
    machine.tick(0.0)
    machine.receive("s", _register("server", "s", rank=0, durable=durable), 0.0)
    again = _register("server", "n", rank=0, durable=durable)
    if fixed_port:
        again = msgspec.structs.replace(again, address="tcp://s")
    machine.receive("n", again, 1.0)
    assert machine.here["server"] == 1
    found = machine.receive("t", _register("server", "t", rank=1, durable=durable), 1.5)
    assert _said(found) == {"t": msg.Heartbeat("")}
    machine.receive("n", again, LIMITS.silence_s / 2 + 1.0)
    said = _said(machine.receive("w", _register("worker", "w"), LIMITS.silence_s / 2 + 1.5))
    assert said["w"].servers == (again.address, "tcp://t")
    assert said["n"].rank == 0
    assert "s" not in said


def test_of_two_servers_that_want_one_rank_and_live_both_may_come():
    machine = SchedulerMachine("job", "run", 2, 1, LIMITS)
    machine.tick(0.0)
    one, two = (_register("server", token, rank=0) for token in "st")
    machine.receive("s", one, 0.0)
    assert machine.receive("t", two, 0.5) == []
    assert machine.here["server"] == 1
    machine.receive("s", one, 1.0)
    machine.receive("t", two, 1.5)
    said = _said(machine.receive("w", _register("worker", "w"), 1.5))
    assert {said[token].rank for token in "st"} == {0, 1}


def test_the_job_ends_when_all_workers_left_and_the_servers_heard_it():
    machine, _ = _complete()
    assert _said(machine.receive("w0", msg.Leave("w0"), 1.0)) == {
        "w0": msg.Left(0),
        "s": msg.Left(0),
    }
    assert _said(machine.receive("w0", msg.Leave("w0"), 1.1)) == {"w0": msg.Left(0)}
    found = machine.receive("w1", msg.Leave("w1"), 2.0)
    assert found[-2:] == [act.Send("s", msg.Finish()), act.Stop()]
    machine.tick(2.0)
    assert machine.over
    assert not machine.settled
    assert _said(machine.receive("s", msg.Heartbeat("s"), 2.5)) == {"s": msg.Finish()}
    machine.receive("s", msg.Leave("s"), 2.6)
    machine.tick(2.7)
    assert machine.settled


def test_the_scheduler_waits_for_the_deaf_only_for_a_moment():
    machine, _ = _complete()
    machine.abort("why")
    for now_s in (3.0, 4.9):
        machine.tick(now_s)
        assert not machine.settled
    machine.tick(5.1)
    assert machine.settled


def test_a_failure_is_passed_on():
    machine, _ = _complete()
    found = machine.receive("w1", msg.Failed("w1", "no memory"), 1.0)
    assert set(_said(found).values()) == {msg.Abort("worker 1: no memory")}
    assert found[-1] == act.Fail("worker 1: no memory")


@pytest.mark.parametrize("message", [msg.Heartbeat("x"), msg.Leave("x"), msg.Failed("x", "lie")])
def test_strangers_are_not_heard(message):
    machine, _ = _complete()
    assert "not a member of this run" in _said(machine.receive("x", message, 1.0))["x"].reason
    assert not machine.over
    assert machine.refused == {msg.OTHER_RUN: 1}


def test_strangers_are_told_neither_the_jobs_name_nor_the_runs():
    machine = SchedulerMachine("secret", "secret", 1, 1, LIMITS)
    strangers = [
        msg.Register(msg.PROTOCOL, "another", "worker", "x"),
        msg.Register(msg.PROTOCOL, "secret", "server", "x", run="old"),
        msg.Heartbeat("x"),
    ]
    said = [_said(machine.receive("x", one, 1.0))["x"].reason for one in strangers]
    machine.abort("enough")
    said.append(_said(machine.receive("x", msg.Heartbeat("x"), 1.0))["x"].reason)
    assert not [reason for reason in said if "secret" in reason]


# The member's side.


def _member(limits=LIMITS):
    member = MemberMachine(_register("worker", "me"), limits, "tcp://there")
    assert member.tick(0.0) == [act.Send(SCHEDULER, _register("worker", "me"))]
    return member


def _joined():
    member = _member()
    roster = msg.Roster("run", 0, ("tcp://s",), ("me",))
    assert member.receive(roster, 1.0) == [act.Told(roster)]
    assert member.receive(roster, 1.0) == []
    return member


def test_a_member_registers_until_it_is_let_in_and_then_says_it_lives():
    member = _member()
    assert member.tick(0.5) == []
    assert member.tick(1.0) == [act.Send(SCHEDULER, _register("worker", "me"))]
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("me",)), 1.2)
    assert member.tick(2.1) == [act.Send(SCHEDULER, msg.Heartbeat("me"))]


def test_a_member_gives_up_on_a_scheduler_that_does_not_answer():
    fail = _member().tick(21.0)[0]
    assert "no scheduler answered at tcp://there within 20 s" in fail.reason


def test_a_member_knows_a_scheduler_that_waits_for_others_from_none():
    machine, member = SchedulerMachine("job", "run", 1, 1, LIMITS), _member()
    assert "no scheduler answered at tcp://there within 10 s" in member.waits_for("within 10 s")
    (answer,) = machine.receive("me", _register("worker", "me"), 1.0)
    assert member.receive(answer.message, 1.0) == []
    assert "the job was not complete within 10 s" in member.waits_for("within 10 s")


def test_a_member_waits_for_a_scheduler_that_is_silent_and_connected():
    member = _joined()
    assert not any(isinstance(a, act.Fail) for a in member.tick(36.0, is_connected=True))
    fail = member.tick(36.1, is_connected=True)[0]
    assert "was silent for 35.1 s" in fail.reason


@pytest.mark.parametrize(("kept", "until_s"), [(False, 2.0), (True, LIMITS.given_up_s)])
def test_last_words_are_said_as_long_as_a_scheduler_may_come_back(kept, until_s):
    member = _member()
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("me",), kept), 1.0)
    member.leave()
    member.tick(10.0)
    member.tick(10.0 + until_s)
    assert not member.out
    member.tick(10.1 + until_s)
    assert member.out


def test_a_member_gives_up_on_a_scheduler_that_fell_silent():
    member = _joined()
    assert not any(isinstance(action, act.Fail) for action in member.tick(6.0))
    fail = member.tick(6.1)[0]
    assert fail.reason == "the scheduler at tcp://there was silent for 5.1 s"
    assert member.out


@pytest.mark.parametrize(
    ("role", "durable", "kept", "patience_s"),
    [
        ("server", True, False, LIMITS.given_up_s),
        ("server", False, False, LIMITS.silence_s),
        ("worker", False, False, LIMITS.silence_s),
        ("worker", False, True, LIMITS.given_up_s),
    ],
)
def test_who_is_waited_for_waits_as_long_for_the_scheduler(role, durable, kept, patience_s):
    """A server that keeps state and was cut off joins again until ``restart_s``."""
    member = MemberMachine(_register(role, "me", durable=durable), LIMITS, "tcp://there")
    member.tick(0.0)
    member.receive(msg.Roster("run", 0, ("tcp://me",), ("w",), kept), 1.0)
    assert not any(isinstance(action, act.Fail) for action in member.tick(1.0 + patience_s))
    assert not member.over
    assert any(isinstance(action, act.Fail) for action in member.tick(1.1 + patience_s))


def test_a_server_that_was_cut_off_is_a_member_again_as_long_as_it_is_waited_for():
    machine, _ = _complete(durable=True)
    member = MemberMachine(_register("server", "s", durable=True), LIMITS, "tcp://there")
    member.tick(0.0)
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("w0", "w1")), 0.0)
    for now_s in range(1, int(LIMITS.restart_s)):  # what it says does not arrive
        _beat(machine, float(now_s), "w0", "w1")
        assert machine.tick(float(now_s)) == []
        assert _said(member.tick(float(now_s)))[SCHEDULER].token == "s"
    (answer,) = machine.receive("another connection", msg.Heartbeat("s"), 29.0)
    assert member.receive(answer.message, 29.0) == []
    assert machine.here == {"server": 1, "worker": 2}
    for now_s in (31.0, 58.0):
        _beat(machine, now_s, "w0", "w1")
        assert machine.tick(now_s) == []
        assert not any(isinstance(action, act.Fail) for action in member.tick(now_s))


@pytest.mark.parametrize(
    ("message", "action"),
    [
        (msg.Lost(2, 6.0), act.Told(msg.Lost(2, 6.0))),
        (msg.Left(2), act.Told(msg.Left(2))),
        (msg.Moved(1, "tcp://x"), act.Told(msg.Moved(1, "tcp://x"))),
    ],
)
def test_a_member_passes_on_what_it_hears(message, action):
    assert _joined().receive(message, 2.0) == [action]


@pytest.mark.parametrize(
    ("message", "action"),
    [(msg.Finish(), act.Stop()), (msg.Abort("why"), act.Fail("why"))],
)
def test_a_member_answers_the_last_words(message, action):
    member = _joined()
    assert member.receive(message, 2.0) == [act.Send(SCHEDULER, msg.Leave("me")), action]
    assert member.out


@pytest.mark.parametrize("answer", [msg.Left(0), msg.Abort("why"), None])
def test_a_member_says_its_last_words_until_they_are_answered(answer):
    member = _joined()
    failed = act.Send(SCHEDULER, msg.Failed("me", "no memory"))
    assert member.fail("no memory") == [failed]
    assert member.fail("something else") == []
    said = [action for i in range(5) for action in member.tick(2.0 + 0.2 * i)]
    assert said == [failed, failed]
    assert not member.out
    if answer is None:
        member.tick(4.2)
    else:
        member.receive(msg.Left(5), 3.0)
        assert not member.out
        member.receive(answer, 3.0)
    assert member.out


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
    machine, _ = _complete(durable=True)
    machine.receive("s", msg.Heartbeat("s", settled=False), 1.0)
    again = _register("server", "n", rank=0, durable=True)
    kept = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=machine.seated)
    for one in (machine, kept):  # also to a scheduler that was killed with it
        one.tick(1.5)
        assert _said(one.receive("n", again, 2.0))["n"].rank == 0
        assert one.receive("n", msg.Heartbeat("n"), 3.0)
        other = _register("server", "o", rank=0, durable=True)
        assert isinstance(_said(one.receive("o", other, 4.0))["o"], msg.Refused)


@pytest.mark.parametrize(
    ("role", "durable", "run", "settled"),
    [
        ("worker", False, "", True),
        ("server", False, "", True),
        ("server", True, "", False),
        ("server", True, "run", True),
    ],
)
def test_a_member_that_keeps_state_says_when_it_has_written_down_which_it_is(
    role, durable, run, settled
):
    register = msg.Register(msg.PROTOCOL, "job", role, "me", "tcp://me", 0, run, durable)
    member = MemberMachine(register, LIMITS, "tcp://there")
    member.tick(0.0)
    member.receive(msg.Roster("run", 0, ("tcp://me",), ("w",)), 1.0)
    (said,) = member.tick(2.0)
    assert said.message.settled == settled
    member.settled = True
    (said,) = member.tick(3.0)
    assert said.message.settled
