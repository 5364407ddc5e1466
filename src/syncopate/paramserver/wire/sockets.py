"""Wire: the ZeroMQ sockets of one process.

A listener has a ROUTER; a connecting process has one DEALER for each listener. A payload is sent
from the memory where it lies, and received into memory that ZeroMQ made for it: neither is copied
here.

[Note: on one machine] On Linux, a listener for this machine alone, on any port, does so on a
Unix socket: it takes a quarter less time for a tensor than TCP. Its name is random, and abstract:
it belongs to a network namespace, as a port does. The listener gives it as its address.

[Note: dead connections] The kernel looks for them, and not ZeroMQ by its own heartbeats: those take
a connection for dead on which no whole frame came for some seconds. On a slow link, or one that
many share, a frame takes longer; its connection would be cut, and the next one likewise.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import zmq

from syncopate.errors import InvalidValueError, ParameterServerError
from syncopate.paramserver.wire.addresses import endpoint, is_local, numeric
from syncopate.paramserver.wire.faults import Faults
from syncopate.paramserver.wire.outbox import Outbox, Parcel
from syncopate.paramserver.wire.security import Doorkeeper, JobKey, secure_caller, watch_listener
from syncopate.paramserver.wire.tap import Tap
from syncopate.paramserver.wire.unadmitted import Unadmitted, can_watch
from syncopate.ports import bound
from syncopate.protocol.actions import SCHEDULER, Peer
from syncopate.protocol.codec import decode, encode
from syncopate.protocol.limits import HEADER_BYTES, STUCK_S, Limits
from syncopate.protocol.messages import MALFORMED, Heartbeat, Message, Refusal

_RECEIVE_QUEUE = 16
"""Messages of one peer that wait to be read; beyond, its TCP connection stops it."""

_SEND_QUEUE = 4096
_MOST_WAITING = 1 << 16
_BATCH = 64
_UNIX = "ipc://"
_AT_ONCE, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)
_BUSY_MS = 1
_LINGER_MS = 500
_PROBE_S = 1
_DEAD_S = 10
_CONNECT_S = 5
"""How long an attempt to connect may take: the system asks again after 1 and 3 s of it."""

_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 1000


_log = logging.getLogger("syncopate")


class Arrival(NamedTuple):
    """What came from a peer: one frame or two; more are none of ours.

    Attributes:
        peer: the node that it came from.
        frames: what came.
        at_s: when it was taken from ZeroMQ, by ``time.perf_counter``.
    """

    peer: Peer
    frames: list[zmq.Frame]
    at_s: float


class RefusalLog:
    """Logs that something was refused, when it happens first, and how much it was at the end."""

    def __init__(self, who: str) -> None:
        """Log for ``who``."""
        self._who = who
        self._said = False

    def note(self, counts: Mapping[str, int], *, last: bool = False) -> None:
        """Take note of ``counts`` by reason; ``last``: there will be no more."""
        if counts and (last or not self._said):
            self._said = True
            _log.warning("%s refused messages: %s", self._who, dict(counts))


class Wire:
    """The sockets of one process: one thread's at a time, but for :meth:`wake`, :meth:`let_go`."""

    def __init__(
        self, key: JobKey | None, limits: Limits, tap: Tap, faults: Faults | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            key: of the job; None: nothing is encrypted.
            limits: how large a frame may be.
            tap: notes every message.
            faults: what goes wrong between workers and servers.
        """
        self.tap = tap
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._key = key
        self._limits = limits
        self._faults = faults
        self._doorkeeper: Doorkeeper | None = None
        self._unadmitted: Unadmitted | None = None
        self._poller = zmq.Poller()
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: dict[Peer, zmq.Socket[bytes]] = {}
        self._outboxes: dict[Peer, Outbox] = {}
        self._late: list[tuple[float, int, Peer, Parcel, int]] = []
        self._count = 0
        self._waiting = False
        self._ready: list[tuple[object, int]] = []
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._waker, False)
        self._poller.register(self._awake, zmq.POLLIN)

    def beside(self) -> Wire:
        """Return a wire of the same node for another thread; it has sockets of its own."""
        return Wire(self._key, self._limits, self.tap)

    @property
    def turned_away(self) -> dict[str, int]:
        """How many callers were sent away, by reason; empty: none.

        They had not the job's key, were of another user, or sent much before they were admitted.
        """
        kind = "of another user" if self._key is None else "without the key"
        found = {kind: self._doorkeeper.turned_away if self._doorkeeper is not None else 0}
        found["unadmitted"] = self._unadmitted.turned_away if self._unadmitted is not None else 0
        return {reason: count for reason, count in found.items() if count}

    def listen(self, host: str, port: int, frame_bytes: int = 0) -> str:
        """Listen on ``host``; return the ZeroMQ address.

        Args:
            host: a local address.
            port: 0: any free one, or one of those of :mod:`syncopate.ports`; see [Note: on one
                machine].
            frame_bytes: no larger frame is read; 0: what the limits say.

        Raises:
            ParameterServerError: it cannot listen there.
            InvalidValueError: the range of ports is none.
        """
        at = endpoint(numeric(host), port) if port else _anywhere(numeric(host))
        socket = self._context.socket(zmq.ROUTER)
        self._set_up(socket)
        if frame_bytes:
            socket.maxmsgsize = frame_bytes
        socket.router_mandatory = True
        socket.sndhwm = _SEND_QUEUE
        if self._key is not None or at.startswith(_UNIX):
            self._doorkeeper = Doorkeeper(self._context, self._key)
            watch_listener(socket, self._key)
        if can_watch(at):
            self._unadmitted = Unadmitted(socket)
        try:
            if port or at.startswith(_UNIX):
                _bind(socket, at)
            else:
                bound(lambda free: _bind(socket, endpoint(numeric(host), free)))
        except (InvalidValueError, OSError) as error:
            socket.close()
            if isinstance(error, InvalidValueError):
                raise
            where = f"port {port} of {host}" if port else host
            raise ParameterServerError(
                f"cannot listen on {where}: {error.strerror}; give another host or port"
            ) from None
        self._router = socket
        self._poller.register(socket, zmq.POLLIN)
        last = socket.last_endpoint
        return last.decode() if isinstance(last, bytes) else str(last)

    def connect(self, peer: Peer, address: str) -> None:
        """Connect to ``address``, in the place of an earlier connection to ``peer``.

        Raises:
            ParameterServerError: that is no address.
        """
        before = self._dealers.pop(peer, None)
        if before is not None:
            self._poller.unregister(before)
            before.close()
        socket = self._context.socket(zmq.DEALER)
        self._set_up(socket)
        # What is sent waits in our outbox, where it can be dropped, and not for a connection.
        socket.immediate = True
        socket.reconnect_ivl = _RECONNECT_MS
        socket.reconnect_ivl_max = _RECONNECT_MAX_MS
        if self._key is not None:
            secure_caller(socket, self._key)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close()
            raise ParameterServerError(f"cannot connect to {address}: {error.strerror}") from None
        self._dealers[peer] = socket
        self._outboxes[peer] = Outbox(socket, (), partial(self.tap.sent, peer))
        self._poller.register(socket, zmq.POLLIN)

    def send(
        self,
        peer: Peer,
        message: Message,
        priority: int = 0,
        payload: zmq.Frame | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send ``message`` to ``peer`` when its turn comes.

        Args:
            peer: a connection of this process, or one that something arrived from.
            message: what to say.
            priority: the highest goes first.
            payload: a tracked frame that follows it.
            on_sent: called when the payload has left.
        """
        parcel = Parcel(encode(message), payload, on_sent, message, time.perf_counter())
        if self._faults is None or peer == SCHEDULER:
            self._put(peer, parcel, priority)
            return
        delays = self._faults.delays()
        if not delays and on_sent is not None:
            on_sent()  # lost on the wire, as far as the sender knows
        for number, delay_s in enumerate(delays):
            each = parcel.doubled() if number else parcel
            if delay_s > 0:
                self._count += 1
                due_s = time.monotonic() + delay_s
                heapq.heappush(self._late, (due_s, self._count, peer, each, priority))
            else:
                self._put(peer, each, priority)

    def admit(self, arrival: Arrival) -> None:
        """Take note that who sent something is in the job; others may bring little."""
        if self._unadmitted is not None and arrival.frames:
            self._unadmitted.admit(arrival.frames[0])

    def forget(self, peer: Peer) -> None:
        """Drop what waits to be sent to ``peer``."""
        if peer in self._outboxes:
            self._outboxes[peer].clear()

    def reaches(self, peer: Peer) -> bool:
        """Say whether there is a connection to ``peer``; one that connected here hears it."""
        if isinstance(peer, bytes):
            assert self._router is not None
            try:
                self._router.send_multipart([peer, encode(Heartbeat(""))], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                return error.errno != zmq.EHOSTUNREACH
            return True
        socket = self._dealers.get(peer)
        # It has no queue before it is connected, nor after.
        return socket is not None and bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def receive(self, timeout_s: float) -> Iterator[Arrival]:
        """Send what can be sent; give what came, waiting for it for a while if nothing has."""
        self.flush()
        self.wait(timeout_s)
        return self.read()

    def heard(self, kinds: object, timeout_s: float) -> Iterator[tuple[Peer, Message]]:
        """Give what :meth:`receive` does, opened and without payloads; not what is no message."""
        for arrival in self.receive(timeout_s):
            with suppress(Refusal):
                yield arrival.peer, self.opened(kinds, arrival)[0]

    def wait(self, timeout_s: float) -> None:
        """Wait for something that :meth:`read` may return; an exception here loses nothing."""
        self._waiting = any(len(outbox) for outbox in self._outboxes.values())
        busy = self._waiting or self._late
        timeout_ms = min(math.ceil(timeout_s * 1000), _BUSY_MS if busy else 1 << 30)
        self._ready = self._poller.poll(timeout_ms)

    def read(self) -> Iterator[Arrival]:
        """Give what came before :meth:`wait` returned.

        One by one, so that the caller lets go of one frame before the next is read:
        ZeroMQ then has the same memory for each, and need not ask the system for more.
        """
        ready, self._ready = dict(self._ready), []
        if self._awake in ready:
            os.read(self._awake, 1 << 16)
        if self._router is not None and self._router in ready:
            for frames in _read(self._router):
                yield Arrival(frames[0].bytes, frames[1:], time.perf_counter())
        for peer, socket in list(self._dealers.items()):
            # What came from one peer may be that another one moved.
            if socket in ready and self._dealers.get(peer) is socket:
                for frames in _read(socket):
                    yield Arrival(peer, frames, time.perf_counter())

    def opened(self, kinds: object, arrival: Arrival) -> tuple[Message, zmq.Frame | None]:
        """Return the message that came, and its payload if it has one.

        Args:
            kinds: which messages may come.
            arrival: what came.

        Raises:
            Refusal: it is no message.
        """
        peer, frames, at_s = arrival
        nbytes = sum(map(len, frames))
        try:
            if not 1 <= len(frames) <= 2:
                raise Refusal(MALFORMED, f"{len(frames)} frames; a message has 1 or 2")
            message = decode(kinds, frames[0].buffer)
        except Refusal:
            self.tap.received(peer, None, nbytes, at_s)
            raise
        self.tap.received(peer, message, nbytes, at_s)
        return message, frames[1] if len(frames) > 1 else None

    def wake(self) -> None:
        """Make :meth:`receive` return; any thread may."""
        try:
            os.write(self._waker, b"!")
        except OSError:  # full: it will wake anyway; closed: no thread is left to wake
            return

    def let_go(self) -> None:
        """Take note that ZeroMQ let go of a payload: what waits may follow; any thread may."""
        if self._waiting:
            self.wake()

    def queued(self) -> int:
        """Return how many messages wait to be sent; any thread may ask."""
        return sum(len(outbox) for outbox in list(self._outboxes.values()))

    def drain(self, limit_s: float) -> None:
        """Send what waits, for at most ``limit_s``."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            self.flush()
            if all(outbox.empty for outbox in self._outboxes.values()):
                return
            time.sleep(0.005)

    def close(self, linger_s: float = 0.5) -> None:
        """Close all sockets; give ZeroMQ ``linger_s`` to send what it holds."""
        for socket in (self._router, *self._dealers.values()):
            if socket is not None:
                socket.close(linger=int(linger_s * 1000))
        self._outboxes.clear()
        self._late.clear()
        self._context.term()
        for thread in (self._doorkeeper, self._unadmitted):
            if thread is not None:
                thread.join()
        self.tap.close()
        awake, waker, self._waker = self._awake, self._waker, -1
        os.close(waker)
        os.close(awake)

    def _set_up(self, socket: zmq.Socket[bytes]) -> None:
        socket.linger = _LINGER_MS
        socket.ipv6 = True
        socket.maxmsgsize = max(HEADER_BYTES, self._limits.payload_bytes)
        socket.rcvhwm = _RECEIVE_QUEUE
        # See [Note: dead connections].
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = _PROBE_S
        socket.tcp_keepalive_cnt = _DEAD_S // _PROBE_S
        socket.tcp_maxrt = int(STUCK_S * 1000)
        socket.connect_timeout = _CONNECT_S * 1000

    def _put(self, peer: Peer, parcel: Parcel, priority: int) -> None:
        outbox = self._outboxes.get(peer)
        if outbox is None:
            if self._router is None or not isinstance(peer, bytes):
                return  # a connection that is gone
            noted = partial(self.tap.sent, peer)
            outbox = self._outboxes[peer] = Outbox(self._router, (peer,), noted)
        if isinstance(peer, bytes) and len(outbox) >= _MOST_WAITING:
            return  # a peer that does not read; one of ours asks again
        outbox.put(parcel, priority)
        outbox.flush()  # ZeroMQ's own thread sends it while this one goes on

    def flush(self) -> None:
        """Send what can be sent."""
        now_s = time.monotonic()
        while self._late and self._late[0][0] <= now_s:
            _, _, peer, parcel, priority = heapq.heappop(self._late)
            self._put(peer, parcel, priority)
        for peer, outbox in list(self._outboxes.items()):
            there = outbox.flush()
            if isinstance(peer, bytes) and (not there or outbox.empty):
                del self._outboxes[peer]


def _anywhere(host: str) -> str:
    """Return an address on ``host`` that no other process has; see [Note: on one machine]."""
    if sys.platform == "linux" and is_local(host) and zmq.has("ipc"):
        return f"{_UNIX}@syncopate-{secrets.token_hex(16)}"
    return endpoint(host, 0)


def _bind(socket: zmq.Socket[bytes], at: str) -> None:
    """Listen at a ZeroMQ address.

    Raises:
        OSError: it cannot.
    """
    try:
        socket.bind(at)
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror) from None


def _read(socket: zmq.Socket[bytes]) -> Iterator[list[zmq.Frame]]:
    """Read what is there, but not for ever.

    Frame by frame: pyzmq's own recv_multipart, and an exception for nothing, take longer than all
    else that is done with a short message.
    """
    for _ in range(_BATCH):
        try:
            frames = [socket.recv(_AT_ONCE, copy=False)]
        except zmq.Again:
            return
        while frames[-1].more:
            frames.append(socket.recv(_AT_ONCE, copy=False))
        yield frames
        del frames
        if socket.closed or not int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
            return
