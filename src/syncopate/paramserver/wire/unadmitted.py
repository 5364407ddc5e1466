"""Unadmitted: what connections may send whose callers are not known to be in the job.

ZeroMQ holds a message until all of it is there. It bounds neither the frames of one nor the number
of callers. So a thread looks at what the system received on each connection whose caller is not
known to be in the job, and closes those that sent the most when it is too much.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from syncopate.units import MIB

MOST_BYTES = 16 * MIB
"""What all of them may send together: no less than ZeroMQ holds for a worker that connects anew
and does not know it, so that such a one need not begin again."""

MOST_CALLERS = 1024
"""How many may be connected; beyond, the first ones are closed."""

_LOOK_MS = 2
_INFO_BYTES = 192
_RECEIVED = struct.Struct("<Q")
_RECEIVED_AT = 128
"""Where ``tcpi_bytes_received`` is in Linux's ``struct tcp_info``."""

_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CLOSE_FAILED
_EVENTS = _GONE | zmq.EVENT_ACCEPTED


def can_watch(address: str) -> bool:
    """Say whether the system tells what was received on connections to ``address``."""
    return sys.platform == "linux" and address.startswith("tcp://")


class Unadmitted:
    """The connections to a listener whose callers are not known.

    Attributes:
        turned_away: how many connections were closed.
    """

    def __init__(self, listener: zmq.Socket[bytes]) -> None:
        """Watch the connections to ``listener``, which is not bound yet."""
        self.turned_away = 0
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}
        self._admitted: set[int] = set()
        self._monitor = listener.get_monitor_socket(_EVENTS | zmq.EVENT_MONITOR_STOPPED)
        self._thread = threading.Thread(target=self._run, name="syncopate-unadmitted", daemon=True)
        self._thread.start()

    def admit(self, frame: zmq.Frame) -> None:
        """Take note that the caller that sent ``frame`` is in the job."""
        descriptor = frame.get(zmq.SRCFD)
        if descriptor in self._admitted:
            return
        with self._lock:
            self._admitted.add(descriptor)
            self._drop(descriptor)

    def join(self) -> None:
        """Wait for the thread, which ends when the listener is closed."""
        self._thread.join()

    def _run(self) -> None:
        with suppress(zmq.ContextTerminated):
            while True:
                if self._monitor.poll(_LOOK_MS if self._connections else None):
                    said = recv_monitor_message(self._monitor)
                    if said["event"] == zmq.EVENT_MONITOR_STOPPED:
                        break
                    with self._lock:
                        self._note(said["event"], int(said["value"]))
                with self._lock:
                    self._look()
        with self._lock:
            for descriptor in list(self._connections):
                self._drop(descriptor)
        self._monitor.close()

    def _note(self, event: int, descriptor: int) -> None:
        if event & _GONE:
            self._admitted.discard(descriptor)
            self._drop(descriptor)
        elif descriptor not in self._admitted:
            with suppress(OSError):  # it is gone already
                self._connections[descriptor] = _shared(descriptor)

    def _drop(self, descriptor: int) -> None:
        held = self._connections.pop(descriptor, None)
        if held is not None:
            held.close()

    def _look(self) -> None:
        """Close those that sent the most, as long as all together sent too much."""
        received = {number: _received(held) for number, held in self._connections.items()}
        while received and sum(received.values()) > MOST_BYTES:
            most = max(received, key=lambda number: received[number])
            del received[most]
            self._close(most)
        while len(self._connections) > MOST_CALLERS:
            self._close(next(iter(self._connections)))

    def _close(self, descriptor: int) -> None:
        self.turned_away += 1
        with suppress(OSError):
            self._connections[descriptor].shutdown(socket.SHUT_RDWR)
        self._drop(descriptor)


def _shared(descriptor: int) -> socket.socket:
    """Return a socket of one's own on a connection that another one holds.

    Raises:
        OSError: it is closed, or is no socket.
    """
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _received(held: socket.socket) -> int:
    """Return how many bytes the system received on a connection."""
    try:
        info = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return 0
    if len(info) < _RECEIVED_AT + _RECEIVED.size:
        return 0  # an old system
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])
