"""Status: what a scheduler tells who asks, and what it does not tell."""

from __future__ import annotations

import pytest

from syncopate.protocol import actions as act
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.figures import Figures
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.member import MemberMachine
from syncopate.protocol.membership.scheduler import SchedulerMachine


def register(role, token, rank=-1, address=""):
    return msg.Register(msg.PROTOCOL, "job", role, token, address, rank)


def asked(machine, now_s, job="job"):
    (action,) = machine.receive("who asks", msg.Status(job), now_s)
    assert isinstance(action, act.Send)
    assert action.to == "who asks"
    return action.message


@pytest.fixture
def machine():
    found = SchedulerMachine("job", "run", 1, 2, Limits())
    found.receive("a", register("worker", "a"), 0.0)
    found.receive("s", register("server", "s", address="tcp://s"), 0.0)
    return found


def test_a_job_that_gathers_says_who_came(machine):
    said = asked(machine, 1.0)
    assert (said.complete, said.servers, said.workers) == (False, 1, 2)
    assert [(node.role, node.rank, node.state) for node in said.nodes] == [
        ("server", -1, "here"),
        ("worker", -1, "here"),
    ]


def test_who_asks_learns_how_far_each_is_and_since_when_it_is_silent(machine):
    machine.receive("b", register("worker", "b"), 1.0)
    machine.receive("s", msg.Heartbeat("s", Figures(step=5, slices=3, nbytes=12)), 3.0)
    machine.receive("a", msg.Heartbeat("a", Figures(step=6)), 4.0)
    machine.receive("a", msg.Leave("a"), 4.5)
    server, left, silent = asked(machine, 5.0).nodes
    assert (server.silent_s, server.address, server.figures.slices) == (2.0, "tcp://s", 3)
    assert (left.rank, left.state, left.figures.step) == (0, "left", 6)
    assert (silent.rank, silent.state, silent.silent_s) == (1, "here", 4.0)


def test_a_heartbeat_without_figures_leaves_what_was_said_before(machine):
    machine.receive("b", register("worker", "b"), 1.0)
    machine.receive("a", msg.Heartbeat("a", Figures(step=6)), 2.0)
    machine.receive("a", msg.Heartbeat("a"), 3.0)
    assert asked(machine, 3.0).nodes[1].figures.step == 6


def test_who_asks_learns_nothing_with_which_to_take_a_place(machine):
    machine.receive("b", register("worker", "b"), 1.0)
    told = codec.encode(asked(machine, 2.0))
    assert b"run" not in told
    assert machine.is_stranger(msg.Status("job"))
    assert not hasattr(asked(machine, 2.0).nodes[0], "token")


def test_who_names_another_job_is_refused_and_counted(machine):
    said = asked(machine, 1.0, job="another")
    assert said == msg.Refused("job 'another'; the job here has another name")
    assert machine.refused == {msg.OTHER_RUN: 1}


def test_a_status_and_its_answer_travel_as_they_are(machine):
    assert codec.decode(codec.ToScheduler, codec.encode(msg.Status("job"))) == msg.Status("job")
    said = asked(machine, 1.0)
    assert codec.decode(codec.FromScheduler, codec.encode(said)) == said


def test_a_member_says_its_figures_in_its_heartbeats():
    member = MemberMachine(register("worker", "me"), Limits(), "tcp://scheduler")
    member.tick(0.0)
    member.receive(msg.Roster("run", 0, ("tcp://s",), ("me",)), 0.1)
    member.figures = Figures(step=3)
    assert member.tick(1.0) == [act.Send("scheduler", msg.Heartbeat("me", Figures(step=3)))]
