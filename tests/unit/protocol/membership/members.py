"""A job of one server and some workers, and what its members say and hear."""

from __future__ import annotations

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.member import MemberMachine
from syncopate.protocol.membership.scheduler import SchedulerMachine

LIMITS = Limits(heartbeat_s=1, silence_s=5, join_s=20, restart_s=30)


def register(role, token, rank=-1, **given):
    address = f"tcp://{token}" if role == "server" else ""
    return msg.Register(msg.PROTOCOL, "job", role, token, address, rank, **given)


def complete(durable=False, workers=2):
    machine = SchedulerMachine("job", "run", 1, workers, LIMITS)
    machine.tick(0.0)
    sent = machine.receive("s", register("server", "s", durable=durable), 0.0)
    for rank in range(workers):
        sent += machine.receive(f"w{rank}", register("worker", f"w{rank}"), 0.0)
    assert machine.complete
    return machine, sent


def told(actions):
    return {action.to: action.message for action in actions if isinstance(action, act.Send)}


def leave(machine, now_s, *tokens):
    """Let nodes leave, and say that they heard the answer."""
    for token in tokens:
        machine.receive(token, msg.Leave(token), now_s)
        machine.receive(token, msg.Leave(token, heard=True), now_s)


def beat(machine, now_s, *tokens):
    for token in tokens:
        assert told(machine.receive(token, msg.Heartbeat(token), now_s)) == {
            token: msg.Heartbeat("")
        }


def new_member(limits=LIMITS):
    member = MemberMachine(register("worker", "me"), limits, "tcp://there")
    assert member.tick(0.0) == [act.Send(SCHEDULER, register("worker", "me"))]
    return member


def joined():
    member = new_member()
    roster = msg.Roster("run", 0, ("tcp://s",), ("me",))
    assert member.receive(roster, 1.0) == [act.Told(roster)]
    assert member.receive(roster, 1.0) == []
    return member
