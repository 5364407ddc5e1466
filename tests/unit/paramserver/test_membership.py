"""Membership's thread: heartbeats while the node computes, news for when it looks, last words."""

from __future__ import annotations

import time

import pytest

from syncopate.paramserver import membership as module
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.node import Node
from syncopate.paramserver.wire.sockets import Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import actions as act
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from tests.children import HANGS_S

LIMITS = Limits(heartbeat_s=0.02, silence_s=60.0)
ROSTER = msg.Roster("run", 0, ("tcp://s",), ("token",))


class Scheduler:
    """One that a test tells what to say."""

    def __init__(self):
        port = free_port()
        self.wire = Wire(None, LIMITS, Tap("scheduler"))
        self.wire.listen("127.0.0.1", port)
        self.address = f"tcp://127.0.0.1:{port}"
        self.heard = []

    def until(self, condition):
        """Take in what comes until ``condition()``; return what came last."""
        until_s = time.monotonic() + HANGS_S
        while not condition():
            assert time.monotonic() < until_s, self.heard
            for arrival in self.wire.receive(0.01):
                message = codec.decode(codec.ToScheduler, arrival.frames[0].buffer)
                self.heard.append(message)
                self.peer = arrival.peer

    def hears(self, kind, count):
        self.until(lambda: sum(isinstance(one, kind) for one in self.heard) >= count)

    def says(self, message):
        self.wire.send(self.peer, message)
        self.wire.flush()


@pytest.fixture
def scheduler():
    found = Scheduler()
    yield found
    found.wire.close(0)


def _node(scheduler):
    wire = Wire(None, LIMITS, Tap(msg.WORKER))
    register = msg.Register(msg.PROTOCOL, "job", msg.WORKER, "token")
    return Node(wire, register, LIMITS, scheduler.address)


def _end(node, scheduler):
    node.member.leave()
    scheduler.hears(msg.Leave, 1)
    scheduler.says(msg.Left(0))
    node.part()
    node.close()


def test_a_node_that_never_looks_says_that_it_lives_all_the_same(scheduler):
    node = _node(scheduler)
    scheduler.hears(msg.Register, 1)
    scheduler.says(ROSTER)
    scheduler.hears(msg.Heartbeat, 5)
    _end(node, scheduler)


def test_what_the_scheduler_says_is_news_when_the_node_looks(scheduler):
    node = _node(scheduler)
    scheduler.hears(msg.Register, 1)
    for message in (ROSTER, msg.Left(1), msg.Moved(0, "tcp://x")):
        scheduler.says(message)
    scheduler.hears(msg.Heartbeat, 1)
    heard = []
    until_s = time.monotonic() + HANGS_S
    while len(heard) < 3 and time.monotonic() < until_s:
        node.step(heard.extend, lambda _: None, lambda _: None)
    assert heard == [act.Told(m) for m in (ROSTER, msg.Left(1), msg.Moved(0, "tcp://x"))]
    _end(node, scheduler)


def test_a_failure_is_said_and_its_answer_waited_for(scheduler):
    node = _node(scheduler)
    scheduler.hears(msg.Register, 1)
    scheduler.says(ROSTER)
    scheduler.hears(msg.Heartbeat, 1)
    node.member.fail("no memory")
    scheduler.hears(msg.Failed, 2)  # said again until it is answered
    assert not node.member.out
    scheduler.says(msg.Abort("worker 0: no memory"))
    node.part()
    scheduler.hears(msg.Leave, 1)
    node.close()


def test_who_waits_for_the_job_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    wire = Wire(None, Limits(), Tap(msg.WORKER))
    register = msg.Register(msg.PROTOCOL, "job", msg.WORKER, "token")
    node = Node(wire, register, Limits(), "tcp://127.0.0.1:9")
    until_s = time.monotonic() + HANGS_S
    while not caplog.messages and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(4 * module.TICK_S)
    node.member.leave()
    node.part()
    node.close()
    (said,) = caplog.messages
    assert said.startswith("no scheduler answered at tcp://127.0.0.1:9 within 0 s")
