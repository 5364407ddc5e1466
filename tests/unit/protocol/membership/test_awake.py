"""A process's own pause does not count as the silence of others."""

from __future__ import annotations

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.awake import LONGEST_S, AwakeClock
from syncopate.protocol.membership.member import MemberMachine
from syncopate.protocol.membership.scheduler import SchedulerMachine

LIMITS = Limits(heartbeat_s=0.5, silence_s=6)
TICK_S = 0.25


def test_time_goes_on_with_who_looks_at_it_and_stands_still_with_who_does_not():
    clock = AwakeClock()
    assert [clock.at(100.0 + TICK_S * tick) for tick in range(3)] == [100.0, 100.25, 100.5]
    assert clock.at(112.5) == 100.5 + LONGEST_S
    assert clock.at(113.0) == 101.0 + LONGEST_S


def test_a_member_that_was_stopped_does_not_take_the_scheduler_for_silent():
    member, clock = MemberMachine(_register("worker", "w"), LIMITS, "tcp://there"), AwakeClock()
    member.tick(clock.at(0.0))
    member.receive(msg.Roster("run", 0, (), ("w",)), clock.at(0.0))
    assert not _failures(member.tick(clock.at(12.0)))
    now_s = 12.0
    while not (failures := _failures(member.tick(clock.at(now_s)))):
        now_s += TICK_S
    assert 12.0 + LIMITS.silence_s - LONGEST_S < now_s <= 12.0 + LIMITS.silence_s
    assert "the scheduler at tcp://there was silent for 6" in failures[0]


def test_a_scheduler_that_was_stopped_does_not_take_the_others_for_lost():
    machine, clock = SchedulerMachine("job", "run", 1, 1, LIMITS), AwakeClock()
    machine.tick(clock.at(0.0))
    for role, token in (("server", "s"), ("worker", "w")):
        machine.receive(token, _register(role, token), clock.at(0.0))
    assert machine.tick(clock.at(12.0)) == []
    for token in "sw":  # what waited to be read
        machine.receive(token, msg.Heartbeat(token), clock.at(12.0))
    assert machine.here == {"server": 1, "worker": 1}


def _register(role, token):
    address = "tcp://s" if role == "server" else ""
    return msg.Register(msg.PROTOCOL, "job", role, token, address)


def _failures(actions):
    return [action.reason for action in actions if isinstance(action, act.Fail)]
