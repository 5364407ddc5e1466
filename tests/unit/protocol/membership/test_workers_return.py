"""Workers that their launcher starts again: when the job waits for them, and whom it lets in."""

from __future__ import annotations

import msgspec
import pytest

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.membership.incarnation import Incarnation
from syncopate.protocol.membership.launch import Launch
from syncopate.protocol.membership.scheduler import SchedulerMachine
from tests.unit.protocol.membership.members import LIMITS, beat, register, told

COMPLETE = "the job is complete; no process may join it any more"


def _worker(token, rank, restart=0, most=2):
    return register("worker", token, rank, launch=Launch(restart, most))


def _server(token, steps):
    return register("server", token, 0, run="run", durable=True, steps=steps)


def _gathering(servers=1):
    machine = SchedulerMachine("job", "run", servers, 2, LIMITS)
    machine.tick(0.0)
    return machine


def _complete(most=2, durable=True, seated=None):
    """Return a scheduler of one server and two workers, all of which are there."""
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=seated)
    machine.tick(0.0)
    machine.receive("s", register("server", "s", 0, durable=durable), 0.0)
    for rank in range(2):
        machine.receive(f"w{rank}", _worker(f"w{rank}", rank, most=most), 0.0)
    sent = machine.receive("w0", _worker("w0", 0, most=most), 0.0)
    assert machine.complete
    assert most == 0 or set(told(sent)) == {"s", "w0", "w1"}
    return machine


def _come_again(machine, now_s, generation=1):
    """Let the server and new workers come; return the rosters that they hear."""
    server, workers = f"s{generation}", [f"w{rank} {generation}" for rank in range(2)]
    assert told(machine.receive("s", msg.Heartbeat("s"), now_s)) == {"s": msg.Again()}
    sent = machine.receive(server, _server(server, (3, 4)), now_s)
    for later_s in (0, 1):
        for rank, token in enumerate(workers):
            sent += machine.receive(token, _worker(token, rank, generation), now_s + later_s)
    assert machine.complete
    return {to: said for to, said in told(sent).items() if isinstance(said, msg.Roster)}


def _require_gathers(machine, actions, why):
    """Require that the server is told to begin again, and the worker that lives why."""
    said = told(actions)
    assert said["s"] == msg.Again()
    assert said["w0"].reason.startswith(why)
    assert not any(isinstance(action, act.Fail) for action in actions)
    assert not machine.complete
    assert not machine.over


def test_a_silent_worker_that_is_started_again_is_waited_for_and_the_job_goes_on():
    machine = _complete()
    beat(machine, 4.0, "s", "w0")
    _require_gathers(machine, machine.tick(5.5), "worker 1 was silent for 5.5 s; the job goes on")
    rosters = _come_again(machine, 7.0)
    assert {to: said.rank for to, said in rosters.items()} == {"s1": 0, "w0 1": 0, "w1 1": 1}
    assert {said.incarnation for said in rosters.values()} == {Incarnation(1, 4)}
    for token in ("w0", "w1"):
        answer = told(machine.receive(token, msg.Heartbeat(token), 8.0))[token]
        assert answer.reason.startswith("worker 1 was silent")
        assert told(machine.receive(token, _worker(token, 0), 8.0))[token] == answer


def test_workers_that_come_before_the_dead_are_given_up_wait():
    machine = _complete()
    for now_s in (1.0, 4.0):
        beat(machine, now_s, "s", "w0")
        # A host on which no worker died may start its workers again without counting that.
        assert machine.receive("n", _worker("n", 1), now_s) == [act.Send("n", msg.Heartbeat(""))]
        assert machine.tick(now_s) == []
    machine.tick(5.5)
    machine.receive("n", _worker("n", 1), 5.6)
    assert machine.here["worker"] == 1


def test_a_worker_in_the_place_of_one_that_is_in_says_that_it_died():
    machine = _complete()
    sent = machine.receive("w1 1", _worker("w1 1", 1, restart=1), 1.0)
    _require_gathers(machine, sent, "worker 1 was started again")
    assert told(sent)["w1 1"] == msg.Heartbeat("")
    assert set(_come_again(machine, 2.0)) == {"s1", "w0 1", "w1 1"}


def test_the_second_time_is_as_the_first():
    machine = _complete()
    machine.receive("w1 1", _worker("w1 1", 1, restart=1), 1.0)
    _come_again(machine, 2.0)
    sent = machine.receive("w0 2", _worker("w0 2", 0, restart=2), 4.0)
    assert told(sent)["s1"] == msg.Again()
    machine.receive("s2", _server("s2", (7,)), 5.0)
    machine.receive("w1 2", _worker("w1 2", 1, restart=2), 5.0)
    assert machine.complete  # none of them is started again any more, so nothing is to be asked
    assert machine.incarnation == Incarnation(2, 7)
    beat(machine, 9.0, "s2", "w0 2")
    assert told(machine.tick(10.5))["w0 2"] == msg.Lost(1, 5.5)


def test_a_worker_that_failed_is_started_again():
    machine = _complete()
    sent = machine.receive("w1", msg.Failed("w1", "broken"), 1.0)
    _require_gathers(machine, sent, "worker 1: broken; the job goes on")
    assert told(sent)["w1"] == told(sent)["w0"]  # its last words are answered


def test_a_worker_that_left_and_is_started_again_because_of_another_one_comes_in():
    machine = _complete()
    machine.receive("w0", msg.Leave("w0"), 1.0)
    sent = machine.receive("w0 1", _worker("w0 1", 0, restart=1), 2.0)
    assert told(sent)["s"] == msg.Again()
    assert "w0" not in told(sent)
    assert set(_come_again(machine, 3.0)) == {"s1", "w0 1", "w1 1"}


@pytest.mark.parametrize("given", [{"most": 0}, {"durable": False}])
def test_without_a_launcher_or_state_the_job_ends_and_refuses_as_ever(given):
    machine = _complete(**given)
    newcomer = _worker("n", 1, 1) if given != {"most": 0} else register("worker", "n", 1)
    assert told(machine.receive("n", newcomer, 1.0))["n"].reason == COMPLETE
    beat(machine, 4.0, "s", "w0")
    assert told(machine.tick(5.5)) == {"s": msg.Lost(1, 5.5), "w0": msg.Lost(1, 5.5)}


def test_a_job_that_ended_well_is_over():
    machine = _complete()
    for token in ("w0", "w1"):
        machine.receive(token, msg.Leave(token), 1.0)
    assert machine.finished
    refused = told(machine.receive("n", _worker("n", 1, restart=1), 1.5))["n"]
    assert refused.reason == "the job is over"


def test_one_too_many_is_refused_when_all_that_are_in_have_had_the_time_to_die():
    machine = _complete()
    for second in range(int(LIMITS.given_up_s) + 1):
        beat(machine, 1.0 + second, "s", "w0", "w1")
        assert told(machine.receive("n", _worker("n", 1), 1.0 + second)) == {"n": msg.Heartbeat("")}
    beat(machine, 40.0, "s", "w0", "w1")
    assert told(machine.receive("n", _worker("n", 1), 40.0))["n"].reason == COMPLETE


@pytest.mark.parametrize("strange", [{"job": "another"}, {"protocol": 1}, {"run": "old"}])
def test_a_stranger_is_refused_while_workers_are_waited_for(strange):
    machine = _complete()
    machine.receive("w1", msg.Failed("w1", "broken"), 1.0)
    stranger = msgspec.structs.replace(_worker("n", 1, 1), **strange)
    assert isinstance(told(machine.receive("n", stranger, 2.0))["n"], msg.Refused)
    assert machine.here == {"server": 0, "worker": 0}


def test_a_worker_that_dies_while_others_are_missing_is_waited_for():
    machine = _gathering()
    machine.receive("w0", _worker("w0", 0), 0.0)
    machine.receive("w1", _worker("w1", 1), 0.0)
    machine.receive("w0", _worker("w0", 0), 4.0)
    assert told(machine.tick(5.5))["w1"].reason.startswith("worker 1 was silent for 5.5 s")
    assert machine.here["worker"] == 1
    assert told(machine.receive("w0", msg.Failed("w0", "no"), 6.0))["w0"].reason == "worker 0: no"
    assert machine.here["worker"] == 0
    assert machine.tick(20.0) == []
    assert machine.tick(20.5)[-1].reason.endswith("came within 20 s (join_s)")


def test_no_job_begins_with_a_worker_that_died_meanwhile():
    machine = _gathering()
    machine.receive("w1", _worker("w1", 1), 0.0)  # and dies
    machine.receive("s", register("server", "s", 0, durable=True), 0.5)
    machine.receive("w0 1", _worker("w0 1", 0, restart=1), 1.0)
    machine.receive("w0 1", _worker("w0 1", 0, restart=1), 2.0)
    assert machine.here == {"server": 1, "worker": 2}
    assert not machine.complete
    # The other one comes in the place of the dead; the one that lives registers once more.
    machine.receive("w1 1", _worker("w1 1", 1, restart=1), 2.5)
    assert not machine.complete
    machine.receive("w0 1", _worker("w0 1", 0, restart=1), 3.0)
    assert not machine.complete
    sent = machine.receive("w1 1", _worker("w1 1", 1, restart=1), 3.5)
    assert {to: said.rank for to, said in told(sent).items()} == {"s": 0, "w0 1": 0, "w1 1": 1}


def test_a_scheduler_that_comes_back_knows_who_is_started_again():
    kept = _complete(seated=()).seated
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=kept)
    machine.tick(10.0)
    for token in ("s", "w0"):
        machine.receive(token, msg.Heartbeat(token), 14.0)
    _require_gathers(machine, machine.tick(15.5), "worker 1 was silent")
    # Until the next incarnation begins, it keeps the one of before.
    assert [each.token for each in machine.seated] == ["s", "w0", "w1"]
