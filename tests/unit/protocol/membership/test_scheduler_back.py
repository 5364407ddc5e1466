"""A scheduler that comes back: what it kept, and what its members hear from it."""

from __future__ import annotations

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.membership.scheduler import SchedulerMachine
from tests.unit.protocol.membership.members import (
    LIMITS,
    beat,
    complete,
    leave,
    register,
    told,
)


def _kept(machine):
    """Return a scheduler that was started again with what ``machine`` had kept."""
    return SchedulerMachine("job", "run", 1, 3, LIMITS, seated=machine.seated)


def _begun():
    machine = SchedulerMachine("job", "run", 1, 3, LIMITS, seated=())
    machine.tick(0.0)
    assert machine.seated == ()
    sent = machine.receive("s", register("server", "s", durable=True), 0.0)
    for rank in range(3):
        sent += machine.receive(f"w{rank}", register("worker", f"w{rank}"), 0.0)
    assert all(said.durable for said in told(sent).values() if isinstance(said, msg.Roster))
    return machine


def test_a_scheduler_that_comes_back_knows_its_members_and_what_became_of_them():
    machine = _begun()
    machine.receive("w2", msg.Leave("w2"), 1.0)
    again = _kept(machine)
    assert again.complete
    assert again.seated == machine.seated
    assert again.tick(100.0) == []
    assert again.receive("new", msg.Heartbeat("w0"), 101.0) == [
        act.Send("new", msg.Heartbeat("")),
        act.Send("new", msg.Moved(0, "tcp://s")),
    ]
    assert again.receive("new s", msg.Heartbeat("s"), 101.0) == [
        act.Send("new s", msg.Heartbeat("")),
        act.Send("new s", msg.Left(2)),
    ]
    assert again.receive("new", msg.Heartbeat("w0"), 102.0) == [act.Send("new", msg.Heartbeat(""))]
    # Worker 1 died meanwhile.
    (lost,) = [a for a in again.tick(105.5) if a.to == "new"]
    assert lost.message == msg.Lost(1, 5.5)


def test_a_member_hears_again_what_a_connection_that_broke_may_have_taken_along():
    """A server that did not hear that a worker is lost would wait for its pushes for ever."""
    machine, _ = complete(durable=True)
    beat(machine, 5.0, "s", "w0")
    assert told(machine.tick(5.5))["s"] == msg.Lost(1, 5.5)
    heard = act.Send("s again", msg.Heartbeat(""))
    said = machine.receive("s again", msg.Heartbeat("s"), 6.0)
    assert said == [heard, act.Send("s again", msg.Lost(1, 0.0))]
    assert machine.receive("s again", msg.Heartbeat("s"), 6.5) == [heard]
    moved = act.Send("w0 again", msg.Moved(0, "tcp://s"))
    assert machine.receive("w0 again", msg.Heartbeat("w0"), 6.5)[1:] == [moved]
    # One that has not heard yet that the job is complete asks to be let in.
    roster, lost = machine.receive("s 3", register("server", "s", durable=True), 7.0)
    assert isinstance(roster.message, msg.Roster)
    assert lost == act.Send("s 3", msg.Lost(1, 0.0))


def test_a_server_that_comes_back_while_the_scheduler_is_gone_is_known_by_its_run():
    again = _kept(_begun())
    again.tick(100.0)
    back = msg.Register(msg.PROTOCOL, "job", "server", "new", "tcp://new", 0, "run", True)
    # Until a worker says that it lives, all of them may be gone.
    assert again.receive("n", back, 100.2) == [act.Send("n", msg.Heartbeat(""))]
    again.receive("w1 again", msg.Heartbeat("w1"), 100.3)
    roster, moved = again.receive("n", back, 100.5)
    assert roster.message.servers == ("tcp://new",)
    assert moved == act.Send("w1 again", msg.Moved(0, "tcp://new"))
    said = again.receive("w0 again", msg.Heartbeat("w0"), 101.0)
    assert said[-1] == act.Send("w0 again", msg.Moved(0, "tcp://new"))


def test_every_change_that_must_be_kept_is_counted():
    machine, seen = _begun(), [1]

    def changed():
        seen.append(machine.changes)
        return seen[-1] > seen[-2]

    assert machine.changes == 1
    machine.receive("w0", msg.Heartbeat("w0"), 1.0)
    assert not changed()
    machine.receive("w0", msg.Leave("w0"), 1.0)
    assert changed()
    beat(machine, 4.0, "s", "w1")
    machine.tick(5.5)
    assert [member.state for member in machine.seated] == ["here", "left", "here", "lost"]
    assert changed()
    back = msg.Register(msg.PROTOCOL, "job", "server", "new", "tcp://new", 0, "run", True)
    machine.receive("n", back, 5.6)
    assert changed()
    machine.abort("enough")
    assert changed()


def test_a_scheduler_killed_before_it_told_the_end_tells_it_when_it_is_back():
    before, _ = complete(durable=True)
    leave(before, 1.0, "w0")
    before.receive("w1", msg.Leave("w1"), 1.0)
    assert before.finished
    seated = before.seated
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=seated, finished=True)
    machine.tick(2.0)
    assert not machine.settled
    assert told(machine.receive("s", msg.Heartbeat("s"), 2.1)) == {"s": msg.Finish()}
    assert told(machine.receive("w1", msg.Leave("w1"), 2.2)) == {"w1": msg.Left(1)}
    for token in ("s", "w1"):
        machine.receive(token, msg.Leave(token, heard=True), 2.3)
    changes = machine.changes
    machine.tick(2.0 + LIMITS.silence_s)
    assert not machine.settled  # worker 0 may be there, and is not heard any more
    machine.tick(2.1 + LIMITS.silence_s)
    assert machine.settled
    assert machine.changes > changes
