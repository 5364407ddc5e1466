"""Outboxes: the urgent first, and no more under way than may be."""

from __future__ import annotations

import time

import numpy as np
import zmq

from syncopate.paramserver.wire import outbox as module
from syncopate.paramserver.wire.outbox import Outbox, Parcel
from tests.children import HANGS_S


class Socket:
    """A socket that takes so many messages, and keeps their frames until told to let go."""

    def __init__(self, room=1000):
        self.room, self.sent, self.held, self.gone = room, [], [], False

    def send(self, frame, flags, copy=True):
        assert flags & zmq.NOBLOCK
        if self.gone:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if not self.room:
            raise zmq.Again
        if copy:
            self.sent.append(bytes(frame))
        else:
            self.held.append(frame)
        if not flags & zmq.SNDMORE:
            self.room -= 1


def _payload(nbytes):
    return zmq.Frame(np.zeros(nbytes, np.uint8), track=True, copy=False)


def test_the_urgent_goes_first_and_equals_in_their_order():
    socket = Socket()
    box = Outbox(socket, ())
    for name, priority in ((b"a", 0), (b"b", 5), (b"c", -1), (b"d", 5), (b"e", 0)):
        box.put(Parcel(name, None, None), priority)
    assert box.flush()
    assert socket.sent == [b"b", b"d", b"a", b"e", b"c"]
    assert box.empty


def test_what_waits_can_be_overtaken_and_dropped():
    socket = Socket(room=1)
    box = Outbox(socket, ())
    for name, priority in ((b"a", 1), (b"b", 0), (b"c", 0)):
        box.put(Parcel(name, None, None), priority)
    assert box.flush()
    box.put(Parcel(b"late", None, None), 7)
    socket.room = 1
    assert box.flush()
    assert socket.sent == [b"a", b"late"]
    assert len(box) == 2
    box.clear()
    socket.room = 9
    assert box.flush()
    assert socket.sent == [b"a", b"late"]


def test_no_more_bytes_are_under_way_than_may_be():
    socket, sent = Socket(), []
    box = Outbox(socket, ())
    each = module.IN_FLIGHT_BYTES // 2
    for number in range(4):
        box.put(Parcel(b"%d" % number, _payload(each), lambda n=number: sent.append(n)), 0)
    box.flush()
    assert socket.sent == [b"0", b"1"]
    assert sent == []
    for expected in ([0, 1], [0, 1, 2, 3]):
        socket.held.clear()
        _wait(lambda expected=expected: box.flush() and sent == expected)
    assert socket.sent == [b"0", b"1", b"2", b"3"]
    assert box.empty


def test_of_payloads_that_are_larger_the_next_one_waits_at_zeromq():
    socket = Socket()
    box = Outbox(socket, ())
    for number in range(4):
        box.put(Parcel(b"%d" % number, _payload(module.IN_FLIGHT_BYTES), None), 0)
    box.flush()
    assert socket.sent == [b"0", b"1"]
    socket.held.clear()
    _wait(lambda: box.flush() and socket.sent == [b"0", b"1", b"2", b"3"])


def test_a_peer_that_is_gone_gets_nothing_more():
    socket = Socket()
    box = Outbox(socket, ())
    box.put(Parcel(b"a", None, None), 0)
    socket.gone = True
    assert not box.flush()
    assert box.empty


def _wait(condition):
    """ZeroMQ says from a thread of its own that it let go."""
    until_s = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < until_s, "it does not come about"
        time.sleep(0.005)


def test_of_short_payloads_no_more_are_under_way_than_may_be():
    socket = Socket()
    box = Outbox(socket, ())
    for number in range(module.IN_FLIGHT_MESSAGES + 3):
        box.put(Parcel(b"%d" % number, _payload(8), None), 0)
    box.flush()
    assert len(socket.sent) == module.IN_FLIGHT_MESSAGES
    assert len(box) == 3

    def emptied():
        socket.held.clear()
        return box.flush() and box.empty

    _wait(emptied)
    assert len(socket.sent) == module.IN_FLIGHT_MESSAGES + 3
