"""Mesh: one TCP connection between every two ranks of a channel.

Gloo takes three messages and two threads on each side for one of ours: both ends announce that they
are ready, and its loop thread hands what arrives to the one that waits. That is most of what a
kilobyte costs, and of a megabyte still a tenth. Here the rank that waits reads the socket itself.
A kernel's buffer of one megabyte per connection keeps the link busy while the rank adds, and is
short enough that a message to the next rank soon has the link to itself.

[Note: progress] A message is handed to the kernel at once. What does not fit waits in an outbox
and goes out whenever this rank waits for anything; and while something is in an outbox, nothing
here blocks on a single socket. So no ring of ranks can wait for each other with full buffers. A
message carries its tag: one that arrives before its receive was posted is kept aside.

[Note: low water] Every segment that arrives, 30 to 60 KB, wakes the rank that waits, unless that
rank asked to be woken when more is there: for 16 MiB among eight hosts, two cores worked 420 ms and
now work 320. Only polling respects the wish without a trap: a blocking read takes what is there and
then waits for as much again, which may never come. So that a header does not take a wake-up of its
own, one waits for as much as the message expected has; after a second, for anything. The kernel
makes the window as large as the first wish, and never smaller again; were it no larger than what
one waits for, the sender would stand still until the reader has woken up.

Addresses are IPv4 (:mod:`syncopate.collectives.mesh.address`). Where some pair of ranks cannot
connect there is no mesh, and messages go through Gloo.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist

from syncopate.collectives import transport
from syncopate.collectives.health.blame import PeerError
from syncopate.collectives.mesh import handshake, sockets

MOST_RANKS = 256
"""Larger groups make no mesh: a process may not have that many connections open."""

_BUFFER_BYTES = 1 << 20
_WINDOW_BYTES = 4 << 20
_LOW_WATER_BYTES = 1 << 20
_SHORT_BYTES = 64 << 10
_WHOLE_S = 1.0
_HEADER = struct.Struct("<IQ")  # tag, length of the message in bytes
_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_INTERRUPTED = "mesh interrupted here"


class Pending(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Return when it is over; raises ``PeerError`` when one of the connections is lost."""


class _Sent:
    """A message that the kernel has taken whole."""

    def wait(self) -> None:
        pass


_SENT = _Sent()


class _Send:
    """A message that did not fit into the kernel's buffer."""

    __slots__ = ("mesh", "parts", "peer")

    def __init__(self, mesh: Mesh, peer: int, parts: list[memoryview]) -> None:
        self.mesh = mesh
        self.peer = peer
        self.parts = parts

    def wait(self) -> None:
        while self.parts:
            self.mesh.progress(None)


class _Receive:
    """A message that is waited for."""

    __slots__ = ("done", "mesh", "peer", "tag", "view")

    def __init__(self, mesh: Mesh, view: memoryview, peer: int, tag: int) -> None:
        self.mesh = mesh
        self.view = view
        self.peer = peer
        self.tag = tag
        self.done = False

    def wait(self) -> None:
        while not self.done:
            self.mesh.progress(self)


class _Link:
    """One connection: what is to be sent on it, and the message that is being read."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        self.socket = connection
        self.peer = peer
        self.outbox: deque[_Send] = deque()
        self.posted: dict[int, deque[_Receive]] = {}
        self.early: dict[int, deque[bytearray]] = {}
        self.head = bytearray(_HEADER.size)
        self.rest = memoryview(self.head)
        self.payload: _Receive | bytearray | None = None  # being read; bytes: no receive posted yet
        self.tag = 0
        self.low_water = 1
        self.poll = select.poll()
        self.poll.register(connection, select.POLLIN)

    def wait_for_much(self, payload: int) -> bool:
        """Let polling end when much of a long message, or of the next, is there; say if one is."""
        rest = len(self.rest) + (payload if self.payload is None else 0)
        nbytes = min(rest, _LOW_WATER_BYTES) if rest > _SHORT_BYTES else 1
        if nbytes != self.low_water:
            self.wait_for(nbytes)
        return nbytes > 1

    def wait_for(self, nbytes: int) -> None:
        """Let polling end only when so many bytes are there, or the connection has ended."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
        self.low_water = nbytes


class Mesh:
    """The connections of one channel; used by one thread at a time, but for :meth:`interrupt`.

    Made by :func:`connect`.

    Args:
        connections: socket of every other rank.
        timeout_s: how long to wait for a message.
    """

    def __init__(self, connections: dict[int, socket.socket], timeout_s: float) -> None:
        self._links = {peer: _Link(found, peer) for peer, found in connections.items()}
        self._by_file = {link.socket.fileno(): link for link in self._links.values()}
        self._busy: set[int] = set()  # peers with something in the outbox
        self._timeout_s = timeout_s
        self._at_first_ms = min(_WHOLE_S, timeout_s) * 1e3
        self._interrupted = False
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6) or 1)
        for found in connections.values():
            found.setblocking(True)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            for low_water in (_WINDOW_BYTES, 1):  # [Note: low water]
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def send(self, view: memoryview, peer: int, tag: int) -> Pending:
        """Send bytes to ``peer``; they must stay as they are until the message was waited for.

        Raises:
            RuntimeError: the connection is lost.
        """
        link = self._links[peer]
        header = _HEADER.pack(tag, len(view))
        sent = 0
        if not link.outbox:
            try:
                sent = link.socket.sendmsg((header, view), (), _NOW)
            except BlockingIOError:
                pass
            except OSError as error:
                raise self._lost(peer, error) from error
            if sent == len(view) + _HEADER.size:
                return _SENT
        parts = [memoryview(header)[sent:], view[max(sent - _HEADER.size, 0) :]]
        message = _Send(self, peer, [part for part in parts if part])
        link.outbox.append(message)
        self._busy.add(peer)
        return message

    def receive(self, view: memoryview, peer: int, tag: int) -> Pending:
        """Receive the next message of ``peer`` with this tag, as long as ``view``."""
        link = self._links[peer]
        message = _Receive(self, view, peer, tag)
        early = link.early.get(tag)
        if early:
            self._land(message, early.popleft())
        else:
            link.posted.setdefault(tag, deque()).append(message)
        return message

    def progress(self, awaited: _Receive | None) -> None:
        """Move on what can move: the outboxes, and what comes; block until something has.

        Args:
            awaited: the message that is waited for; None waits for an outbox.

        Raises:
            RuntimeError: a connection is lost, or nothing moved for too long.
        """
        if awaited is None:
            for file, _ in self._ready(None):
                self._write(self._by_file[file])
            return
        link = self._links[awaited.peer]
        much = link.wait_for_much(len(awaited.view))
        if not self._busy:
            if much:
                self._wait(link.poll, link)
            self._read(link, awaited, socket.MSG_DONTWAIT if much else 0)
            return
        for file, events in self._ready(link):
            found = self._by_file[file]
            if events & ~select.POLLIN and found.outbox:
                self._write(found)
            if events & ~select.POLLOUT and found is link:
                self._read(link, awaited, socket.MSG_DONTWAIT)

    def _ready(self, link: _Link | None) -> list[tuple[int, int]]:
        """Return the sockets, of the outboxes and of ``link``, on which something can move."""
        poll = select.poll()
        for busy in self._busy:
            poll.register(self._links[busy].socket, select.POLLOUT)
        if link is not None:
            both = select.POLLIN | (select.POLLOUT if link.outbox else 0)
            poll.register(link.socket, both)
        return self._wait(poll, link)

    def _wait(self, poll: select.poll, link: _Link | None) -> list[tuple[int, int]]:
        """Return what is ready in ``poll``, which waits for messages of ``link`` if any."""
        ready = poll.poll(self._at_first_ms)
        if not ready:
            if link is not None:
                link.wait_for(1)  # what is shorter than expected is an error
            ready = poll.poll(self._timeout_s * 1e3 - self._at_first_ms)
        if not ready:
            raise self._timed_out(link.peer if link is not None else min(self._busy))
        return ready

    def interrupt(self) -> None:
        """End all connections; waits, here and at the other end, fail now."""
        self._interrupted = True
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.socket.shutdown(socket.SHUT_RDWR)

    def sent(self) -> dict[int, sockets.Sending]:
        """Return what was sent to each peer, as far as the kernel counts; for any thread."""
        found = {peer: sockets.sending(link.socket) for peer, link in self._links.items()}
        return {peer: sent for peer, sent in found.items() if sent is not None}

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.socket.close()

    def _write(self, link: _Link) -> None:
        message = link.outbox[0]
        try:
            sent = link.socket.sendmsg(message.parts, (), _NOW)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(link.peer, error) from error
        while message.parts and sent >= len(message.parts[0]):
            sent -= len(message.parts.pop(0))
        if message.parts:
            message.parts[0] = message.parts[0][sent:]
            return
        link.outbox.popleft()
        if not link.outbox:
            self._busy.discard(link.peer)

    def _take(self, link: _Link, into: Sequence[bytearray | memoryview], flags: int) -> int:
        """Return how many bytes came; 0 when there were none and ``flags`` say not to wait."""
        try:
            count = link.socket.recvmsg_into(into, 0, flags)[0]
        except BlockingIOError:
            if flags == socket.MSG_DONTWAIT:
                return 0
            raise self._timed_out(link.peer) from None
        except OSError as error:
            raise self._lost(link.peer, error) from error
        if count == 0:
            raise self._lost(link.peer, None)
        return count

    def _read(self, link: _Link, awaited: _Receive, flags: int) -> None:
        """Read what is there, or wait for some.

        What follows a header is read along with it to where ``awaited`` lands, as it mostly belongs
        there, and moved where it does not.
        """
        if link.payload is not None or len(link.rest) < _HEADER.size:
            link.rest = link.rest[self._take(link, (link.rest,), flags) :]
            if not link.rest:
                self._next_part(link)
            return
        view = awaited.view
        came = self._take(link, (link.head, view), flags)
        payload = max(came - _HEADER.size, 0)
        if came >= _HEADER.size and _HEADER.unpack(link.head) == (awaited.tag, len(view)):
            first = link.posted[awaited.tag]
            if first[0] is awaited:
                first.popleft()
                if payload == len(view):
                    awaited.done = True
                else:
                    link.payload, link.rest = awaited, view[payload:]
                return
        self._sort(link, link.head[:came] + view[:payload])

    def _sort(self, link: _Link, came: bytearray) -> None:
        """Take bytes that were not those of the message awaited."""
        view = memoryview(came)
        while view:
            size = min(len(link.rest), len(view))
            link.rest[:size], view = view[:size], view[size:]
            link.rest = link.rest[size:]
            if not link.rest:
                self._next_part(link)

    def _next_part(self, link: _Link) -> None:
        payload = link.payload
        if payload is None:
            self._begin_payload(link)
            return
        if isinstance(payload, _Receive):
            payload.done = True
        elif waiting := link.posted.get(link.tag):
            self._land(waiting.popleft(), payload)
        else:
            link.early.setdefault(link.tag, deque()).append(payload)
        link.payload = None
        link.rest = memoryview(link.head)

    def _begin_payload(self, link: _Link) -> None:
        link.tag, nbytes = _HEADER.unpack(link.head)
        waiting = link.posted.get(link.tag)
        if waiting:
            link.payload = waiting.popleft()
            self._require_length(link.payload, nbytes)
            link.rest = link.payload.view
        else:
            link.payload = bytearray(nbytes)
            link.rest = memoryview(link.payload)

    def _land(self, message: _Receive, payload: bytearray) -> None:
        self._require_length(message, len(payload))
        message.view[:] = payload
        message.done = True

    def _require_length(self, message: _Receive, nbytes: int) -> None:
        if nbytes != len(message.view):
            raise RuntimeError(
                f"rank {message.peer} sent {nbytes} bytes where {len(message.view)} were expected: "
                "the ranks run different collectives"
            )

    def _lost(self, peer: int, error: OSError | None) -> RuntimeError:
        if self._interrupted:
            return RuntimeError(_INTERRUPTED)
        text = f"connection closed by rank {peer}" + (f": {error}" if error else "")
        return PeerError(peer, RuntimeError(text))

    def _timed_out(self, peer: int) -> RuntimeError:
        text = f"timed out after {self._timeout_s:g} s, waiting for rank {peer}"
        return PeerError(peer, RuntimeError(text))


def connect(group: dist.ProcessGroup, timeout_s: float) -> Mesh | None:
    """Connect every two ranks of ``group``, or none; all of its ranks must call this.

    The group serves CPU tensors, or there is no mesh.

    Returns:
        The mesh, on every rank; None on every rank where some pair could not connect, there are too
        many ranks, or the backend is not Gloo. The group's first rank logs which.

    Raises:
        RuntimeError: a rank did not come.
    """
    served = transport.backends(group)
    if "cpu" not in served:
        return None
    if transport.gloo_backend(group) is None:
        if group.rank() == 0:
            wrapped = "torch wraps Gloo in this group, as TORCH_DISTRIBUTED_DEBUG=DETAIL has it do"
            other = f"the group's backend for CPU tensors is {served['cpu']}, not gloo"
            handshake.say_why_not(wrapped if served["cpu"] == "gloo" else other)
        return None
    if group.size() > MOST_RANKS:
        if group.rank() == 0:
            handshake.say_why_not(
                f"the group has {group.size()} ranks, and each would need a connection to every "
                f"other; at most {MOST_RANKS} have them"
            )
        return None
    found = handshake.connections(group, timeout_s)
    return None if found is None else Mesh(found, timeout_s)
