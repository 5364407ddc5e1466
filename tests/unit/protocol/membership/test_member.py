"""A member: how it joins, says that it lives, waits for the scheduler, and leaves."""

from __future__ import annotations

import pytest

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.membership.member import MemberMachine
from syncopate.protocol.membership.scheduler import SchedulerMachine
from tests.unit.protocol.membership.members import (
    LIMITS,
    beat,
    complete,
    joined,
    new_member,
    register,
    told,
)

HEARD = act.Send(SCHEDULER, msg.Leave("me", heard=True))
"""A member confirms the last words."""


@pytest.mark.parametrize(("until_s", "lost"), [(15, True), (16, False)])
def test_a_connection_that_nothing_came_through_for_long_was_cut_by_the_network(until_s, lost):
    """The system closes those of a process that dies at once; these after 30 s."""
    machine, member = complete()[0], joined()
    for now_s in range(1, 36):
        reached = now_s <= until_s
        beat(machine, float(now_s), "s", "w0")
        found = machine.tick(float(now_s), lambda _: reached)  # noqa: B023
        gave_up = any(isinstance(a, act.Fail) for a in member.tick(1.0 + now_s, reached))
        if found or gave_up:
            break
    assert (bool(found), gave_up, now_s) == (lost, lost, 16 if lost else 35)
    if not lost:
        beat(machine, 35.5, "w1")
        beat(machine, 36.0, "s", "w0")
        assert machine.tick(36.0) == []
        assert machine.here == {"server": 1, "worker": 2}
        member.receive(msg.Heartbeat(""), 36.0)
        assert any(isinstance(a, act.Fail) for a in member.tick(41.1))  # it died this time


def test_a_member_registers_until_it_is_let_in_and_then_says_it_lives():
    member = new_member()
    assert member.tick(0.5) == []
    assert member.tick(1.0) == [act.Send(SCHEDULER, register("worker", "me"))]
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("me",)), 1.2)
    assert member.tick(2.1) == [act.Send(SCHEDULER, msg.Heartbeat("me"))]


def test_a_member_gives_up_on_a_scheduler_that_does_not_answer():
    fail = new_member().tick(21.0)[0]
    assert "no scheduler answered at tcp://there within 20 s" in fail.reason


def test_a_member_knows_a_scheduler_that_waits_for_others_from_none():
    machine, member = SchedulerMachine("job", "run", 1, 1, LIMITS), new_member()
    assert "no scheduler answered at tcp://there within 10 s" in member.waits_for("within 10 s")
    (answer,) = machine.receive("me", register("worker", "me"), 1.0)
    assert member.receive(answer.message, 1.0) == []
    assert "the job was not complete within 10 s" in member.waits_for("within 10 s")


def test_a_member_waits_for_a_scheduler_that_is_silent_and_connected():
    member = joined()
    assert not any(isinstance(a, act.Fail) for a in member.tick(36.0, is_connected=True))
    fail = member.tick(36.1, is_connected=True)[0]
    assert "was silent for 35.1 s" in fail.reason


@pytest.mark.parametrize(("kept", "until_s"), [(False, 2.0), (True, LIMITS.given_up_s)])
def test_last_words_are_said_as_long_as_a_scheduler_may_come_back(kept, until_s):
    member = new_member()
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("me",), kept), 1.0)
    member.leave()
    member.tick(10.0)
    member.tick(10.0 + until_s)
    assert not member.out
    member.tick(10.1 + until_s)
    assert member.out


def test_a_member_gives_up_on_a_scheduler_that_fell_silent():
    member = joined()
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
    member = MemberMachine(register(role, "me", durable=durable), LIMITS, "tcp://there")
    member.tick(0.0)
    member.receive(msg.Roster("run", 0, ("tcp://me",), ("w",), kept), 1.0)
    assert not any(isinstance(action, act.Fail) for action in member.tick(1.0 + patience_s))
    assert not member.over
    assert any(isinstance(action, act.Fail) for action in member.tick(1.1 + patience_s))


def test_a_server_that_was_cut_off_is_a_member_again_as_long_as_it_is_waited_for():
    machine, _ = complete(durable=True)
    member = MemberMachine(register("server", "s", durable=True), LIMITS, "tcp://there")
    member.tick(0.0)
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("w0", "w1")), 0.0)
    for now_s in range(1, int(LIMITS.restart_s)):  # what it says does not arrive
        beat(machine, float(now_s), "w0", "w1")
        assert machine.tick(float(now_s)) == []
        assert told(member.tick(float(now_s)))[SCHEDULER].token == "s"
    (answer,) = machine.receive("another connection", msg.Heartbeat("s"), 29.0)
    assert member.receive(answer.message, 29.0) == []
    assert machine.here == {"server": 1, "worker": 2}
    for now_s in (31.0, 58.0):
        beat(machine, now_s, "w0", "w1")
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
    assert joined().receive(message, 2.0) == [action]


@pytest.mark.parametrize(
    ("message", "action"),
    [(msg.Finish(), act.Stop()), (msg.Abort("why"), act.Fail("why"))],
)
def test_a_member_answers_the_last_words(message, action):
    member = joined()
    assert member.receive(message, 2.0) == [HEARD, action]
    assert member.out


@pytest.mark.parametrize("answer", [msg.Left(0), msg.Abort("why"), None])
def test_a_member_says_its_last_words_until_they_are_answered(answer):
    member = joined()
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
        assert member.receive(answer, 3.0) == [HEARD]
        assert member.receive(answer, 3.1) == []
    assert member.out


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
