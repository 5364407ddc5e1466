"""Outbox: what waits to be sent to one peer, by priority, so many bytes at a time.

ZeroMQ sends in the order in which it is given messages. So it is given little: what waits here can
still be overtaken by something more urgent.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import zmq

from syncopate.protocol.messages import Message

IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Payload bytes that ZeroMQ holds for a peer at most, but for :data:`IN_FLIGHT_LEAST` payloads."""

IN_FLIGHT_LEAST = 2
"""Payloads that ZeroMQ may hold at any size: while one is sent, the next is there."""

IN_FLIGHT_MESSAGES = 256
"""Payloads that ZeroMQ holds for a peer at most."""

_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


class Parcel(NamedTuple):
    """A message to be sent.

    Attributes:
        header: its first frame.
        payload: its second frame, tracked, and in no other parcel: of what ZeroMQ holds, an outbox
            waits for the oldest, whose frame must not lie in a parcel that waits itself. None:
            there is none.
        on_sent: called when ZeroMQ has let go of the payload.
        message: what the header says.
        queued_s: when it was given to be sent, by ``time.perf_counter``.
    """

    header: bytes
    payload: zmq.Frame | None
    on_sent: Callable[[], None] | None
    message: Message | None = None
    queued_s: float = 0.0

    def doubled(self) -> Parcel:
        """Return a parcel with the same bytes, in memory of its own; it is not waited for."""
        payload = None if self.payload is None else zmq.Frame(self.payload.bytes, track=True)
        return self._replace(payload=payload, on_sent=None)


Noted = Callable[[Message, tuple[int, int, float, float]], None]
"""Called with a message that ZeroMQ was given, its priority, its bytes, when it was given to be
sent, and when it was."""


class _Held(NamedTuple):
    """A payload that ZeroMQ holds; its frame is gone, or it would be held for ever."""

    tracker: zmq.MessageTracker
    nbytes: int
    on_sent: Callable[[], None] | None


class Outbox:
    """The messages for one peer."""

    def __init__(
        self, socket: zmq.Socket[bytes], prefix: tuple[bytes, ...], noted: Noted | None = None
    ) -> None:
        """Send through ``socket``, with ``prefix`` before every message."""
        self._socket = socket
        self._noted = noted
        self._prefix = prefix
        self._waiting: list[tuple[int, int, Parcel]] = []
        self._in_flight: deque[_Held] = deque()
        self._in_flight_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def empty(self) -> bool:
        """Whether nothing waits and ZeroMQ holds no payload."""
        return not self._waiting and not self._in_flight

    def put(self, parcel: Parcel, priority: int) -> None:
        """Queue ``parcel``; among equal priorities the first goes first."""
        self._count += 1
        heapq.heappush(self._waiting, (-priority, self._count, parcel))

    def clear(self) -> None:
        """Drop what waits."""
        self._waiting.clear()

    def flush(self) -> bool:
        """Give ZeroMQ what it may have; return whether the peer can still be reached."""
        self._settle()
        while self._waiting and self._room():
            priority, _, parcel = self._waiting[0]
            at_s = perf_counter()  # before: no receive may be noted earlier than its send
            try:
                for frame in self._prefix:
                    self._socket.send(frame, _MORE)
                if parcel.payload is None:
                    self._socket.send(parcel.header, _LAST)
                else:
                    self._socket.send(parcel.header, _MORE)
                    self._socket.send(parcel.payload, _LAST, copy=False)
            except zmq.Again:
                return True
            except zmq.ZMQError as error:
                if error.errno == zmq.EHOSTUNREACH:
                    self.clear()
                    return False
                raise
            heapq.heappop(self._waiting)
            if self._noted is not None and parcel.message is not None:
                nbytes = len(parcel.header) + (len(parcel.payload) if parcel.payload else 0)
                self._noted(parcel.message, (-priority, nbytes, parcel.queued_s, at_s))
            if parcel.payload is not None:
                assert parcel.payload.tracker is not None
                self._hold(_Held(parcel.payload.tracker, len(parcel.payload), parcel.on_sent))
            del parcel
        return True

    def _room(self) -> bool:
        count = len(self._in_flight)
        few = count < IN_FLIGHT_LEAST or self._in_flight_bytes < IN_FLIGHT_BYTES
        return few and count < IN_FLIGHT_MESSAGES

    def _hold(self, held: _Held) -> None:
        if held.tracker.done:  # ZeroMQ copies what is short
            if held.on_sent is not None:
                held.on_sent()
            return
        self._in_flight.append(held)
        self._in_flight_bytes += held.nbytes

    def _settle(self) -> None:
        """Take note of payloads that ZeroMQ has let go of: it does so in their order."""
        while self._in_flight and self._in_flight[0].tracker.done:
            held = self._in_flight.popleft()
            self._in_flight_bytes -= held.nbytes
            if held.on_sent is not None:
                held.on_sent()
