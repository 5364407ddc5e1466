"""Processes that come while a job runs: whose places they take, and who is refused."""

from __future__ import annotations

import pytest

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.membership.incarnation import Incarnation
from syncopate.protocol.membership.scheduler import SchedulerMachine
from tests.unit.protocol.membership.members import LIMITS, beat, leave, register, told


def _worker(token, rank=-1, opens="lost"):
    return register("worker", token, rank, opens=opens)


def _complete(opens="lost", seated=None):
    """Return a scheduler of one server and two workers, all of which are there."""
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=seated)
    machine.tick(0.0)
    machine.receive("s", register("server", "s", 0), 0.0)
    for _ in range(2):
        for rank in range(2):
            machine.receive(f"w{rank}", _worker(f"w{rank}", rank, opens), 0.0)
    assert machine.complete
    return machine


def _lost(machine, rank=1, now_s=5.5):
    """Let a worker be silent until it is lost."""
    beat(machine, now_s - 0.5, "s", *(f"w{other}" for other in range(2) if other != rank))
    (remark,) = machine.tick(now_s)
    assert f"worker {rank} was silent for 5.5 s; another process may" in remark.text
    return machine


def _seat(machine, token, rank, now_s, opens="lost"):
    """Let a process take a place; return what others hear of it."""
    assert told(machine.receive(token, _worker(token, rank, opens), now_s)) == {
        token: msg.Heartbeat("")
    }
    return told(machine.tick(now_s))


def test_a_process_takes_the_place_of_a_lost_worker_when_the_server_knows_it():
    machine = _lost(_complete())
    taken = msg.Taken(1, "n", 1)
    assert _seat(machine, "n", 1, 6.0) == {"s": taken, "w0": taken}
    # Until the server answers it hears nothing but that it is there, and the server is asked again.
    again = told(machine.receive("n", _worker("n", 1), 7.0))
    assert again == {"n": msg.Heartbeat(""), "s": taken}
    roster = told(machine.receive("s", msg.Stands("s", "n", 7, 6), 7.1))["n"]
    assert roster.rank == 1
    assert (roster.workers, roster.lives) == (("w0", "n"), (0, 1))
    assert roster.incarnation == Incarnation(step=7)
    assert told(machine.receive("n", _worker("n", 1), 7.2))["n"] == roster
    former = told(machine.receive("w1", msg.Heartbeat("w1"), 7.3))["w1"]
    assert former.reason == "worker 1 is another process by now"


@pytest.mark.parametrize(
    ("step", "oldest", "begins"), [(0, 0, -1), (-1, 0, -1), (0, -1, -1), (None, -1, -1), (1, 1, 1)]
)
def test_before_the_first_step_it_begins_as_any_other(step, oldest, begins):
    machine = _lost(_complete())
    _seat(machine, "n", 1, 6.0)
    roster = told(machine.receive("s", msg.Stands("s", "n", step, oldest), 6.1))["n"]
    assert roster.incarnation.step == begins


def test_slices_that_are_too_far_apart_end_the_job():
    machine = _lost(_complete())
    _seat(machine, "n", 1, 6.0)
    fail = machine.receive("s", msg.Stands("s", "n", 5, 6), 6.1)[-1]
    assert isinstance(fail, act.Fail)
    assert "worker 1 cannot go on from step 5" in fail.reason


def test_without_a_rank_it_takes_the_lowest_lost_one():
    machine = _complete()
    beat(machine, 5.0, "s")
    assert len(machine.tick(5.5)) == 2
    assert _seat(machine, "n", -1, 6.0)["s"] == msg.Taken(0, "n", 1)
    assert _seat(machine, "m", -1, 6.0)["s"] == msg.Taken(1, "m", 1)


def test_a_process_whose_connection_is_gone_is_not_waited_for():
    machine = _complete()
    beat(machine, 1.0, "s", "w0", "w1")
    machine.receive("n", _worker("n", 1), 2.0)
    assert machine.tick(4.5, {"w0", "w1", "s"}.__contains__) == []
    machine.receive("n", _worker("n", 1), 4.5)
    assert told(machine.tick(4.6, {"w0", "s"}.__contains__))["s"] == msg.Taken(1, "n", 1)


def test_while_the_first_one_lives_a_second_one_is_refused():
    machine = _complete()
    machine.receive("n", _worker("n", 1), 1.0)
    assert machine.tick(1.1) == []
    beat(machine, 3.5, "w1")
    refused = told(machine.tick(3.6))["n"]
    assert refused.reason.startswith("worker 1 is here, and was heard 0.1 s ago")


@pytest.mark.parametrize(
    ("newcomer", "words"),
    [
        (_worker("n", 2), "the job is complete, and no worker is lost"),
        (_worker("n", 5), "the job is complete, and there is no worker 5"),
        (_worker("n", 0), "worker 0 is done, and has left the job"),
    ],
)
def test_others_are_refused(newcomer, words):
    machine = _complete()
    leave(machine, 0.5, "w0")
    machine.receive("n", newcomer, 1.0)
    assert words in told(machine.tick(1.1))["n"].reason


@pytest.mark.parametrize(("theirs", "ours"), [("", "lost"), ("lost", "")])
def test_both_rules_have_to_say_so(theirs, ours):
    machine = _complete(theirs)
    refused = told(machine.receive("n", _worker("n", 1, ours), 1.0))["n"]
    assert refused.reason == "the job is complete; no process may join it any more"


def test_one_more_may_come_where_the_rules_say_so():
    machine = _complete("more")
    taken = msg.Taken(2, "n", 1)
    assert _seat(machine, "n", 2, 1.0, "more") == {"s": taken, "w0": taken, "w1": taken}
    roster = told(machine.receive("s", msg.Stands("s", "n", 1), 1.1))["n"]
    assert (roster.rank, len(roster.workers)) == (2, 3)
    standing = told(machine.receive("?", msg.Status("job"), 1.2))["?"]
    assert (standing.workers, len(standing.nodes)) == (3, 4)
    # Without a rank: first it may be that one is lost and was not missed yet.
    machine.receive("m", _worker("m", -1, "more"), 1.2)
    assert machine.tick(1.3) == []
    for now_s in (3.0, 5.0, 7.0, 7.5):
        beat(machine, now_s, "s", "w0", "w1", "n")
        machine.receive("m", _worker("m", -1, "more"), now_s)
    assert told(machine.tick(7.6))["s"] == msg.Taken(3, "m", 1)


def test_the_job_ends_where_no_process_comes():
    machine = _lost(_complete())
    for now_s in (10.0, 15.0, 20.0, 24.0):
        beat(machine, now_s, "s", "w0")
        assert machine.tick(now_s + 0.5) == []
    beat(machine, 25.0, "s", "w0")
    fail = machine.tick(25.1)[-1]
    assert fail.reason == "worker 1 was lost, and no process took its place within 20 s (join_s)"


def test_a_lost_worker_that_is_heard_again_is_there_again():
    machine = _lost(_complete())
    beat(machine, 6.0, "w1")
    assert machine.here["worker"] == 2


def test_a_job_does_not_end_well_without_a_worker_that_is_waited_for():
    machine = _lost(_complete())
    leave(machine, 6.0, "w0")
    assert not machine.over
    _seat(machine, "n", 1, 6.5)
    machine.receive("s", msg.Stands("s", "n", 9, 9), 6.6)
    leave(machine, 7.0, "n")
    assert machine.finished


@pytest.mark.parametrize("own", [True, False])
def test_a_script_that_raised_is_waited_for_and_a_job_that_cannot_go_on_ends(own):
    machine = _complete()
    found = machine.receive("w1", msg.Failed("w1", "some bug", own), 1.0)
    assert told(found)["w1"] == msg.Abort("worker 1: some bug")
    assert machine.over != own
    # Its last words are said again until they are answered, and then confirmed.
    if own:
        assert "w1" in told(machine.receive("w1", msg.Failed("w1", "some bug", own), 1.2))
        assert machine.receive("w1", msg.Leave("w1", heard=True), 1.3) == []
        assert _seat(machine, "n", 1, 1.4)["s"] == msg.Taken(1, "n", 1)


def test_a_scheduler_that_comes_back_goes_on_waiting():
    first = _lost(_complete(seated=()))
    assert _seat(first, "n", 1, 6.0)["s"] == msg.Taken(1, "n", 1)
    back = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=first.seated)
    back.tick(0.0)
    for token in ("s", "w0"):
        back.receive(token, msg.Heartbeat(token), 0.5)
    assert told(back.receive("n", _worker("n", 1), 0.6))["s"] == msg.Taken(1, "n", 1)
    assert told(back.receive("s", msg.Stands("s", "n", 3, 3), 0.7))["n"].incarnation.step == 3


def test_a_server_that_comes_back_counts_on_a_lost_worker_that_is_waited_for():
    """It would end the job if it heard that the worker was lost."""
    machine = _lost(_complete())
    back = msg.Register(msg.PROTOCOL, "job", "server", "new", "tcp://new", 0, "run", True)
    heard = [each.message for each in machine.receive("n", back, 6.0) if each.to == "n"]
    assert [type(each) for each in heard] == [msg.Roster]


def test_servers_count_on_it_when_the_scheduler_comes_back_too():
    first = _lost(_complete(seated=()))
    back = SchedulerMachine("job", "run", 1, 2, LIMITS, seated=first.seated)
    back.tick(0.0)
    assert back.receive("s", msg.Heartbeat("s"), 0.5) == [act.Send("s", msg.Heartbeat(""))]
    assert back.here["worker"] == 1


def test_one_that_waits_for_the_servers_is_a_worker_that_lives():
    """A scheduler that comes back to it need not begin again with others."""
    first = SchedulerMachine("job", "run", 1, 1, LIMITS, seated=())
    first.tick(0.0)
    first.receive("s", register("server", "s", 0, durable=True), 0.0)
    first.receive("w0", _worker("w0", 0), 0.0)
    first.receive("w0", _worker("w0", 0), 0.0)
    beat(first, 5.0, "s")
    first.tick(5.5)
    assert _seat(first, "n", 0, 6.0)["s"] == msg.Taken(0, "n", 1)
    back = SchedulerMachine("job", "run", 1, 1, LIMITS, seated=first.seated)
    for now_s in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        assert back.tick(now_s) == []
        back.receive("n", _worker("n", 0), now_s)  # the server is not there yet
    assert back.complete


def test_a_worker_that_dies_before_all_are_there_may_come_again():
    machine = SchedulerMachine("job", "run", 1, 2, LIMITS)
    machine.tick(0.0)
    machine.receive("w0", _worker("w0", 0), 0.0)
    assert not any(isinstance(each, act.Fail) for each in machine.tick(5.5))
    machine.receive("n", _worker("n", 0), 5.6)
    assert machine.here["worker"] == 1
