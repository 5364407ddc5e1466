"""Tap: notes every message that a node sends or receives, for the trace of the run.

It sits where ZeroMQ is given messages and where they are taken from it. Which rank this node has,
and who a connection belongs to, it learns from the messages themselves.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from syncopate.metrics.endpoint import Endpoint, wanted
from syncopate.paramserver.wire.counters import Counters
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER, Peer
from syncopate.protocol.placement.bundle import BUNDLE
from syncopate.protocol.placement.layout import Layout
from syncopate.protocol.placement.piece import Slice
from syncopate.tracing import capture as captures
from syncopate.tracing.served import rows
from syncopate.tracing.served.rows import (
    ASKED,
    KINDS,
    MESSAGES,
    NOBODY,
    SENDS,
    NodeHeader,
    Row,
    RowQueue,
)
from syncopate.tracing.trace_buffer import BufferedTrace

_EARLY = 4096
"""Rows that wait for the file at most: what is said until all nodes are there."""

_PEERS = 1 << 12
"""Connections that are told apart at most: strangers may make any number."""

_MACHINE = Path("/proc/sys/kernel/random/boot_id")
_KIND = {name: index for index, name in enumerate(KINDS)}
_NUMBERS: dict[type, Callable[[Any], tuple[int, int, int]]] = {
    msg.Push: lambda m: (m.key, m.sequence, 0),
    msg.Pull: lambda m: (m.key, m.after, m.request),
    msg.Ack: lambda m: (m.key, m.received, m.done),
    msg.Weights: lambda m: (m.key, m.version, m.request),
    msg.Begin: lambda m: (m.key, m.sequence, 0),
    msg.PullState: lambda m: (m.key, m.after, m.request),
    msg.State: lambda m: (m.key, m.version, m.request),
    msg.Query: lambda m: (m.key, m.number, 0),
}
"""Message -> key, number and other number of its row; others have none."""


def _no_numbers(_: object) -> tuple[int, int, int]:
    return -1, 0, 0


_UNREADABLE = (0, _no_numbers)
_ABOUT = {
    getattr(msg, name): (_KIND[name], _NUMBERS.get(getattr(msg, name), _no_numbers))
    for name in MESSAGES[1:]
}
"""Message -> its kind as a row has it, and what returns its numbers."""

_OTHERS = {
    msg.Skip: msg.Push,
    msg.DeclareTable: msg.Declare,
    msg.PushRows: msg.Push,
    msg.BeginRows: msg.Begin,
    msg.PullRows: msg.Pull,
    msg.PullTable: msg.PullState,
    msg.Rows: msg.Weights,
    msg.TableState: msg.State,
}
"""Messages that are noted as others: those about tables as those about tensors."""

_ABOUT |= {kind: _ABOUT[other] for kind, other in _OTHERS.items()}

_ACK = _KIND[msg.Ack.__name__]


def _number(key: int) -> int:
    """Return the number of a slice or bundle in a row, which has four bytes for it."""
    return key if key < BUNDLE else 2**30 | zlib.crc32(key.to_bytes(8, "little")) >> 2


class Tap:
    """Counts the messages that one node sends and receives, and writes them to its trace.

    Args:
        role: ``"worker"``, ``"server"`` or ``"scheduler"``.
        refused: returns how many messages were refused, by reason.

    Attributes:
        counters: of what was sent and received.

    Raises:
        ArtifactError: the environment asks for a trace in a directory that cannot be written to.
    """

    def __init__(self, role: str, refused: Callable[[], Mapping[str, int]] = dict) -> None:
        self.header: NodeHeader
        self._role = role
        self.counters = Counters(role, refused)
        self._metrics: Endpoint | None = None
        self._lock = threading.Lock()
        self._peers: dict[Peer, int] = {}
        self._names: dict[int, str] = {}
        self._roles: dict[Peer, str] = {}
        self._tokens: tuple[str, ...] = ()
        self._said: list[dict[str, Any]] = []
        self._queue: RowQueue | None = None
        self._outlet: BufferedTrace | None = None
        captures.current()
        self._early: list[Row] | None = [] if captures.wanted() else None
        self._tells: dict[type, Callable[[Peer, Any, bool], None]] = {
            msg.Register: self._registers,
            msg.Roster: self._ranks,
            msg.Hello: self._greets,
            msg.Declare: self._declares,
            msg.DeclareTable: self._declares,
        }

    # -- what the wire says ---------------------------------------------------------------------

    def sent(self, peer: Peer, message: msg.Message, row: tuple[int, int, float, float]) -> None:
        """Note that ZeroMQ was given a message.

        Args:
            peer: the node that it goes to.
            message: what it says.
            row: its priority, its bytes, when it was given to be sent, and when it was.
        """
        kind = type(message)
        self.counters.sent(peer, message, row[1])
        if kind in self._tells:
            self._tells[kind](peer, message, True)
        if self._queue is not None or self._early is not None:
            self._note(peer, message, SENDS, row)

    def received(self, peer: Peer, message: msg.Message | None, nbytes: int, at_s: float) -> None:
        """Note that a message was taken from ZeroMQ; None: one that cannot be read."""
        kind = type(message)
        self.counters.received(peer, message, nbytes)
        if kind in self._tells:
            self._tells[kind](peer, message, False)
        if self._queue is not None or self._early is not None:
            self._note(peer, message, 0, (0, nbytes, at_s, at_s))

    def worked(
        self, kind: str, key: int, numbers: tuple[int, int, Peer | None], since_s: float
    ) -> None:
        """Note what a server computed since then, until now.

        Args:
            kind: one of :data:`syncopate.tracing.served.rows.WORK`.
            key: of the slice.
            numbers: its version, the request that it answers, and whose that is.
            since_s: when it began.
        """
        if kind == "update":
            self.counters.updated(key, numbers[0])
        queue = self._queue
        if queue is not None:
            version, request, peer = numbers
            place = NOBODY if peer is None else self._place(peer)
            row = (0, place, _number(key), version, request, 0, 0, since_s, time.perf_counter())
            queue.add((_KIND[kind], *row))

    def close(self) -> None:
        """Stop recording."""
        captures.dismiss_node(self)
        if self._metrics is not None:
            self._metrics.remove(self.counters.metrics)

    def _note(
        self,
        peer: Peer,
        message: msg.Message | None,
        flags: int,
        row: tuple[int, int, float, float],
    ) -> None:
        what, numbers = _ABOUT.get(type(message), _UNREADABLE)
        key, number, other = numbers(message)
        if key >= BUNDLE:
            key = _number(key)
        if what == _ACK and message.query:  # type: ignore[union-attr]
            flags |= ASKED
        place = self._peers.get(peer)
        if place is None:
            place = self._place(peer)
        whole = (what, flags, place, key, number, other, *row)
        queue, early = self._queue, self._early  # another thread may begin or end the trace
        if queue is not None:
            queue.add(whole)
        elif early is not None and len(early) < _EARLY:
            early.append(whole)

    # -- for the capture ------------------------------------------------------------------------

    def begin_trace(self, outlet: BufferedTrace) -> None:
        """Note messages from now on, and what was said until now."""
        assert isinstance(outlet.waiting, RowQueue)
        self._outlet = outlet
        for note in self._said:
            outlet.note(note)
        if self._names:
            outlet.note({"peers": {str(place): name for place, name in self._names.items()}})
        early, self._early = self._early, None
        for row in early or ():
            outlet.waiting.add(row)
        self._queue = outlet.waiting

    def end_trace(self) -> None:
        """Note no more, until it begins again."""
        self._queue = self._outlet = None

    # -- what the messages tell -----------------------------------------------------------------

    def joined(self, run: str, rank: int, workers: int, servers: int) -> None:
        """Take note of this node's role and rank: its file begins."""
        machine = _MACHINE.read_text().strip() if _MACHINE.exists() else socket.gethostname()
        self.header = NodeHeader(
            run=run,
            role=self._role,
            rank=rank,
            workers=workers,
            servers=servers,
            host=socket.gethostname(),
            machine=machine,
            clock="time.perf_counter",
            began_s=time.time(),
            began_clock_s=time.perf_counter(),
        )
        captures.enrol_node(self)
        self.counters.rank = rank
        name = self._role if self._role == rows.SCHEDULER else f"{self._role}-{rank}"
        self._metrics = wanted(os.environ, name)
        if self._metrics is not None:
            self._metrics.add(self.counters.metrics)

    def _place(self, peer: Peer) -> int:
        """Return the number of a peer in this node's table."""
        place = self._peers.get(peer)
        if place is None:
            with self._lock:  # messages to the scheduler have a thread of their own
                if len(self._peers) >= _PEERS:
                    return NOBODY
                place = self._peers[peer] = len(self._peers)
            if peer == SCHEDULER:
                self._name(peer, rows.SCHEDULER)
            elif isinstance(peer, int):
                self._name(peer, f"s{peer}")
        return place

    def _name(self, peer: Peer, name: str) -> None:
        place = self._place(peer)
        if place != NOBODY and self._names.get(place) != name:
            self._names[place] = name
            if self._outlet is not None:
                self._outlet.note({"peers": {str(place): name}})

    def _registers(self, peer: Peer, said: msg.Register, sends: bool) -> None:
        if not sends and len(self._roles) < _PEERS:
            self._roles[peer] = said.role

    def _ranks(self, peer: Peer, said: msg.Roster, sends: bool) -> None:
        if sends:
            self._name(peer, f"{self._roles.get(peer, '?')[0]}{said.rank}")
        elif not self._tokens:
            self._tokens = said.workers
            self.joined(said.run, said.rank, len(said.workers), len(said.servers))

    def _greets(self, peer: Peer, said: msg.Hello, sends: bool) -> None:
        known = said.rank < len(self._tokens) and self._tokens[said.rank] == said.token
        if not sends and known:
            self._name(peer, f"w{said.rank}")

    def _declares(self, peer: Peer, said: msg.Declare | msg.DeclareTable, sends: bool) -> None:
        """Note which slices a server keeps; a worker says it to each, and each says it once.

        A table is noted as a slice of all its elements.
        """
        if not sends and not self._names.get(self._place(peer)):
            return  # a stranger
        server = peer if sends else self.header.rank
        assert isinstance(server, int)
        if isinstance(said, msg.Declare):
            self.keeps(server, said.rules.mode, said.slices)
        else:
            self.keeps(server, said.table.rules.mode, [said.table.slice])

    def bundles(self, layout: Layout, mode: str, parts: Iterable[Slice]) -> None:
        """Note those of ``parts`` that are bundles, and the servers that keep them."""
        for part in parts:
            if part.key >= BUNDLE:
                self.keeps(layout.server_of[part.key % BUNDLE], mode, [part])

    def keeps(self, server: int, mode: str, slices: Iterable[Slice]) -> None:
        """Note what a server keeps; once, however often it is said."""
        described = [(_number(s.key), s.name, s.dtype, s.begin, s.numel) for s in slices]
        note = {"server": server, "mode": mode, "slices": described}
        if described and note not in self._said:
            self._said.append(note)
            if self._outlet is not None:
                self._outlet.note(note)
