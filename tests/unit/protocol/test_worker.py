"""One worker's machine: how long it waits for a server, and what it says then."""

from __future__ import annotations

from itertools import pairwise

import pytest

from syncopate.protocol import actions as act
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import HEADER_BYTES, Limits
from syncopate.protocol.placement.layout import Layout, TensorSpec
from syncopate.protocol.rules import Rules
from syncopate.protocol.server import Seat, ServerMachine
from syncopate.protocol.worker import WorkerMachine

LIMITS = Limits(restart_s=60.0, silence_s=6.0, slice_bytes=1 << 20)
UNTIL_S = 66.0
"""How long a worker waits for a server's first word."""

SLICE_S = 64.0
"""How much longer it waits where a slice may be under way, at 16 KiB/s."""


def _worker():
    layout = Layout([TensorSpec("a", "float32", 2), TensorSpec("b", "float32", 2)], 2, 1 << 20)
    roster = msg.Roster("run", 0, ("tcp://one", "tcp://two"), ("t0",))
    machine = WorkerMachine(roster, "t0", Rules(), LIMITS)
    machine.declare(layout, Rules())
    machine.connect(0.0)
    return machine


def _failures(actions):
    return [action.reason for action in actions if isinstance(action, act.Fail)]


def _fails_at(machine, from_s):
    """Return after how many more seconds the machine gives up, and why."""
    for second in range(400):
        if found := _failures(machine.tick(from_s + second)):
            return second, found[0]
    return None, ""


@pytest.mark.parametrize("moved", [False, True])
def test_a_server_that_cannot_be_reached_is_named(moved):
    machine = _worker()
    machine.receive(0, msg.Welcome("boot", False), None, 0.0)
    if moved:
        machine.moved(msg.Moved(1, "tcp://three"), 100.0)
    after_s, why = _fails_at(machine, 100.0 if moved else 0.0)
    assert UNTIL_S < after_s <= UNTIL_S + 1
    assert f"server 1 for {after_s} s" in why
    assert ("tcp://three" if moved else "tcp://two") in why


def test_a_server_that_answers_nothing_any_more_is_named_when_something_is_waited_for():
    machine = _worker()
    for rank in (0, 1):
        machine.receive(rank, msg.Welcome("boot", False), None, 0.0)
    assert _fails_at(machine, 0.0) == (None, "")
    machine.tick(1000.0)
    machine.pull(msg.Pull(0, 0, 0), 1000.0)
    after_s, why = _fails_at(machine, 1000.0)
    assert UNTIL_S + SLICE_S < after_s <= UNTIL_S + SLICE_S + 1
    assert "server 0" in why


def test_a_server_that_answers_questions_may_keep_a_worker_waiting():
    machine = _worker()
    for rank in (0, 1):
        machine.receive(rank, msg.Welcome("boot", False), None, 0.0)
    machine.pull(msg.Pull(0, 0, 0), 0.0)
    for second in range(1000):
        found = machine.tick(float(second))
        assert not _failures(found)
        for action in found:
            if isinstance(action, act.Send) and isinstance(action.message, msg.Query):
                ack = msg.Ack(0, -1, -1, action.message.number, 1)
                machine.receive(0, ack, None, float(second))


def _follower(window=2, durable=True):
    """Return a worker that begins with nothing, of one slice at one server that answers."""
    layout = Layout([TensorSpec("a", "float32", 2)], 1, 1 << 20)
    roster = msg.Roster("run", 1, ("tcp://one",), ("t0", "t1"))
    machine = WorkerMachine(roster, "t1", Rules(window=window), LIMITS)
    machine.declare(layout, Rules(window=window))
    machine.connect(0.0)
    machine.receive(0, msg.Welcome("boot", durable), None, 0.0)
    return machine


def _sequences(actions):
    sent = (one.message for one in actions if isinstance(one, act.Send))
    return [message.sequence for message in sent if isinstance(message, msg.Push)]


def _released(actions):
    return [one.sequence for one in actions if isinstance(one, act.Released)]


def _queries(actions):
    sent = (one.message for one in actions if isinstance(one, act.Send))
    return [message.number for message in sent if isinstance(message, msg.Query)]


def _pushed(machine, count, now_s=0.0):
    push = msg.Push(0, 0, 0.1)
    return [s for _ in range(count) for s in _sequences(machine.push(push, 0, now_s)[1])]


def test_the_window_begins_at_what_is_over_and_not_at_what_came():
    machine = _follower(window=2)
    assert _pushed(machine, 5) == [1, 2]
    assert _sequences(machine.receive(0, msg.Ack(0, 2, 0, 0, 0), None, 0.0)) == []
    assert _sequences(machine.receive(0, msg.Ack(0, 2, 1, 0, 0), None, 0.0)) == [3]
    assert _sequences(machine.receive(0, msg.Ack(0, 3, 3, 0, 0), None, 0.0)) == [4, 5]


@pytest.mark.parametrize(("received", "done"), [(3, 0), (3, 3), (1, 2)])
def test_acknowledgements_of_what_cannot_be_are_refused(received, done):
    """Two pushes were sent: a third cannot have come, and none is over before it came."""
    machine = _follower(window=2)
    assert _pushed(machine, 3) == [1, 2]
    assert machine.receive(0, msg.Ack(0, received, done, 0, 0), None, 0.0) == []
    assert machine.refused == {msg.EARLY: 1}
    found = machine.receive(0, msg.Ack(0, 2, 2, 0, 0), None, 0.0)
    assert (_released(found), _sequences(found)) == ([1, 2], [3])


def test_nothing_is_asked_about_pushes_that_have_not_left_also_when_sent_again():
    """The answer to a question may be late only where all that it is about has left."""
    machine = _follower(window=2)
    assert _pushed(machine, 2) == [1, 2]
    assert _queries(machine.tick(50.0)) == []
    for _ in range(2):
        machine.sent(0, 50.0)
    (number,) = _queries(machine.tick(100.0))
    again = machine.receive(0, msg.Ack(0, 1, 1, number, 0), None, 100.0)
    assert _sequences(again) == [2]
    assert _queries(machine.tick(150.0)) == []  # it waits to be sent a second time
    machine.sent(0, 150.0)
    assert len(_queries(machine.tick(200.0))) == 1


def test_what_is_lost_is_sent_again_once():
    machine = _follower(window=2)
    _pushed(machine, 2)
    for _ in range(2):
        machine.sent(0, 0.0)
    (number,) = _queries(machine.tick(50.0))
    assert _sequences(machine.receive(0, msg.Ack(0, 0, 0, number, 0), None, 50.0)) == [1, 2]
    assert _sequences(machine.receive(0, msg.Ack(0, 0, 0, number, 0), None, 50.0)) == []
    found = machine.receive(0, msg.Ack(0, 2, 2, 0, 0), None, 50.0)
    assert _released(found) == [1, 2]
    assert machine.idle


def _asked(machine, from_s, until_s):
    """Return when the machine first asks, looking each millisecond."""
    for ms in range(int(1000 * (until_s - from_s)) + 1):
        at_s = from_s + ms / 1000
        if found := _queries(machine.tick(at_s)):
            return at_s, found[0]
    return None, 0


def _sent(machine, at_s):
    _pushed(machine, 1, at_s)
    machine.sent(0, at_s)


def _quick(machine, steps):
    """Push at 0.1, 0.2, ... s; each time the server says 2 ms later that it has the push."""
    for step in range(1, steps + 1):
        _sent(machine, step / 10)
        machine.receive(0, msg.Ack(0, step, step, 0, 0), None, step / 10 + 0.002)


def test_a_link_that_lost_nothing_is_asked_after_a_twentieth_of_retry_s():
    machine = _follower()
    _quick(machine, 5)
    _sent(machine, 1.0)
    at_s, _ = _asked(machine, 1.0, 3.0)
    assert at_s == pytest.approx(1.0 + LIMITS.retry_s / 20, abs=0.002)


def test_after_a_loss_an_answer_is_late_when_it_takes_longer_than_others():
    machine = _follower()
    _quick(machine, 5)
    _sent(machine, 1.0)
    at_s, number = _asked(machine, 1.0, 3.0)
    assert _sequences(machine.receive(0, msg.Ack(0, 5, 5, number, 0), None, at_s)) == [6]
    machine.sent(0, at_s)
    machine.receive(0, msg.Ack(0, 6, 6, 0, 0), None, at_s + 0.002)
    _sent(machine, 2.0)
    at_s, _ = _asked(machine, 2.0, 3.0)
    assert 2.002 <= at_s <= 2.01


def test_a_minute_without_a_loss_and_a_link_counts_as_one_that_loses_nothing():
    machine = _follower()
    _quick(machine, 5)
    _sent(machine, 1.0)
    at_s, number = _asked(machine, 1.0, 3.0)
    machine.receive(0, msg.Ack(0, 5, 5, number, 0), None, at_s)
    machine.sent(0, at_s)
    machine.receive(0, msg.Ack(0, 6, 6, 0, 0), None, at_s + 0.002)
    later_s = at_s + 30 * LIMITS.retry_s + 0.1
    _sent(machine, later_s)
    asked_s, _ = _asked(machine, later_s, later_s + 3.0)
    assert asked_s == pytest.approx(later_s + LIMITS.retry_s / 20, abs=0.002)


def test_each_question_without_an_answer_doubles_the_wait():
    machine = _follower()
    _sent(machine, 0.0)
    asked_s = [0.0]
    while len(asked_s) < 6:
        at_s, _ = _asked(machine, asked_s[-1] + 0.001, asked_s[-1] + 20.0)
        asked_s.append(at_s)
    waits = [b - a for a, b in pairwise(asked_s)]
    assert waits == pytest.approx([LIMITS.retry_s / 20 * 2**n for n in range(5)], abs=0.005)


def test_weights_acknowledge_the_pushes_that_are_in_them():
    """The acknowledgement itself may be lost; nothing has to be asked then."""
    machine = _follower(durable=False)
    _sent(machine, 0.0)
    request, _ = machine.pull(msg.Pull(0, 0, 0), 0.0)
    found = machine.receive(0, msg.Weights(0, 1, request), 8, 0.01)
    assert _released(found) == [1]
    assert machine.idle


def test_a_server_whose_state_is_older_than_what_it_acknowledged_is_named():
    """It answers 'early' to every message, so no answer is ever late."""
    machine = _follower(window=8)
    _pushed(machine, 5)
    for _ in range(5):
        machine.sent(0, 0.0)
    machine.receive(0, msg.Ack(0, 5, 5, 0, 0), None, 0.0)
    machine.moved(msg.Moved(0, "tcp://one"), 10.0)
    machine.receive(0, msg.Welcome("another boot", True), None, 10.0)
    _, found = machine.push(msg.Push(0, 0, 0.1), 0, 10.0)
    assert _sequences(found) == [6]
    machine.sent(0, 10.0)
    number, now_s = 0, 10.0
    while not number:
        machine.receive(0, msg.Ack(0, 3, 3), None, now_s)  # 6 is early: 4 comes first
        (number,) = _queries(machine.tick(now_s)) or (0,)
        now_s += 0.5
    assert now_s <= 10.0 + LIMITS.retry_s + 1.0
    (why,) = _failures(machine.receive(0, msg.Ack(0, 3, 3, number), None, now_s))
    assert why.startswith("server 0 has 3 pushes of 'a' by worker 1, and had acknowledged 5")


def test_a_server_that_lost_what_it_had_not_acknowledged_gets_it_again():
    machine = _follower(window=8)
    _pushed(machine, 5)
    for _ in range(5):
        machine.sent(0, 0.0)
    machine.receive(0, msg.Ack(0, 5, 3, 0, 0), None, 0.0)
    found = machine.receive(0, msg.Welcome("another boot", True), None, 1.0)
    assert found == []  # it is open already: the same hello was answered twice
    machine.moved(msg.Moved(0, "tcp://one"), 10.0)
    found = machine.receive(0, msg.Welcome("another boot", True), None, 10.0)
    assert _sequences(found) == [4, 5]


def test_many_slices_are_declared_in_parts_that_fit_into_messages():
    specs = [
        TensorSpec(f"table.{number:06d}." + "x" * 100, "float32", 1) for number in range(40000)
    ]
    layout = Layout(specs, 1, 1 << 20)
    roster = msg.Roster("run", 0, ("tcp://one",), ("t0",))
    machine = WorkerMachine(roster, "t0", Rules(), LIMITS)
    machine.declare(layout, Rules())
    machine.connect(0.0)
    found = machine.receive(0, msg.Welcome("boot", False), None, 0.0)
    parts = [one.message for one in found if isinstance(one, act.Send)]
    assert all(isinstance(part, msg.Declare) for part in parts)
    frames = [codec.encode(part) for part in parts]
    assert sum(map(len, frames)) > HEADER_BYTES > 2 * max(map(len, frames))
    server = ServerMachine(Seat(roster, "boot"), LIMITS)
    server.receive(b"p", msg.Hello("run", 0, "t0"), None)
    order = [*range(len(frames))][::-1]  # in any order, and some of them twice
    for number in [order[0], *order[:-1]]:
        message = codec.decode(codec.ToServer, frames[number])
        assert server.receive(b"p", message, None) == []
        assert server.rules is None
    found = server.receive(b"p", codec.decode(codec.ToServer, frames[order[-1]]), None)
    assert found == [act.Keep(Rules(), layout.slices)]
    assert server.receive(b"p", codec.decode(codec.ToServer, frames[0]), None) == []
