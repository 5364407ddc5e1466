"""Rows: messages of one node, and what it computed, in memory, in files and as they are read.

Noting a row takes about a microsecond. What holds the rows until they are written is bounded, and
counts what it has no room for.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.errors import InvalidValueError, UnknownNameError

CAPACITY = 1 << 16
"""Rows that wait to be written at most: some 20 MB."""

ROW = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("peer", "<u2"),
        ("key", "<i4"),
        ("number", "<i8"),
        ("other", "<i8"),
        ("priority", "<i8"),
        ("nbytes", "<i8"),
        ("since_s", "<f8"),
        ("time_s", "<f8"),
    ]
)
"""One row: 56 bytes.

``kind`` is an index in the header's ``kinds``, ``peer`` one in the table of peers. ``since_s`` is
when a message was given to be sent, or a computation began; ``time_s`` when ZeroMQ was given it,
when it was taken from ZeroMQ, or when the computation was over.
"""

Rows = NDArray[np.void]
Row = tuple[int, int, int, int, int, int, int, int, float, float]

SENDS, ASKED = 1, 2
"""Flags: the node sent it; it answers a query."""

NOBODY = (1 << 16) - 1
"""The peer of what has none, or one too many to be told apart."""

MESSAGES = (
    "unreadable", "Register", "Heartbeat", "Leave", "Failed", "Roster", "Lost", "Left", "Moved",
    "Finish", "Abort", "Hello", "Declare", "Push", "Query", "Pull", "Welcome", "HelloWanted", "Ack",
    "Weights", "Refused", "Begin", "PullState", "State", "Status", "Standing",
    "Share", "Norm",
)  # fmt: skip
"""Kinds of messages, by the names that the protocol gives them."""

WORK = ("initialise", "update", "search")
"""What a server computes: first values, an update, the weights that answer a pull."""

KINDS = (*MESSAGES, *WORK)

WORKER, SERVER, SCHEDULER = "worker", "server", "scheduler"
ROLES = (WORKER, SERVER, SCHEDULER)

_PACKED = struct.Struct("<BBHiqqqqdd")
assert _PACKED.size == ROW.itemsize


class NodeHeader(Artifact, frozen=True, kw_only=True):
    """Whose file it is.

    Attributes:
        run: a random name that all nodes of a job share.
        role: one of :data:`ROLES`.
        rank: among the workers, or among the servers.
        workers: how many there are.
        servers: how many there are.
        host: the node's.
        machine: a name of the running system; nodes with the same one read one clock.
        clock: what its times are of.
        began_s: seconds since 1970 when the node joined the job.
        began_clock_s: the clock at that moment.
        kinds: names of the kinds of rows, by index.
    """

    KIND: ClassVar[str] = "node_trace"
    SCHEMA_VERSION: ClassVar[int] = 2
    OLDEST_VERSION: ClassVar[int | None] = 1

    run: str
    role: str
    rank: int
    workers: int
    servers: int
    host: str
    machine: str
    clock: str
    began_s: float
    began_clock_s: float
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UnknownNameError("role", self.role, ROLES)
        for field in ("workers", "servers"):
            if not 1 <= getattr(self, field) <= MAX_RANKS:
                raise InvalidValueError(field, getattr(self, field), f"in 1..{MAX_RANKS}")
        count = {WORKER: self.workers, SERVER: self.servers, SCHEDULER: 1}[self.role]
        if not 0 <= self.rank < count:
            raise InvalidValueError("rank", self.rank, f"in 0..{count - 1}")

    @property
    def stem(self) -> str:
        """The name of its file."""
        return self.role if self.role == SCHEDULER else f"{self.role}-{self.rank}"

    @property
    def node(self) -> str:
        """Its name in analysis: ``"w0"``, ``"s1"`` or ``"scheduler"``."""
        return self.role if self.role == SCHEDULER else f"{self.role[0]}{self.rank}"


class Wired(NamedTuple):
    """A message as one node saw it.

    Attributes:
        node: ``"w0"``, ``"s1"`` or ``"scheduler"``.
        kind: what the protocol calls it, such as ``"Push"``; ``"unreadable"``: it was refused.
        sends: whether the node sent it; else it received it.
        peer: the node at the other end; empty: a stranger.
        key: of the slice; -1: of none.
        number: of a push its sequence number, of a pull how many pushes are to be in its answer, of
            an acknowledgement how many the server has, of weights their version.
        other: of a pull or its answer the request, of an acknowledgement how many pushes are over.
        asked: whether it answers a query.
        priority: with which it was sent.
        nbytes: of all its frames.
        queued_s: when it was given to be sent; as ``time_s`` where it was received.
        time_s: when ZeroMQ was given it, or it was taken from there.
    """

    node: str
    kind: str
    sends: bool
    peer: str
    key: int
    number: int
    other: int
    asked: bool
    priority: int
    nbytes: int
    queued_s: float
    time_s: float


class Work(NamedTuple):
    """A computation of a server.

    Attributes:
        node: the server.
        kind: one of :data:`WORK`.
        peer: whose pull is answered; empty: no worker's.
        key: of the slice.
        number: version of the weights.
        start_s: when it began.
        end_s: when it was over.
    """

    node: str
    kind: str
    peer: str
    key: int
    number: int
    start_s: float
    end_s: float


class RowQueue:
    """Holds one node's rows until they are taken; any thread may call it.

    Adding is all that a message waits for. Rows are packed where they are taken, many at once.

    Args:
        capacity: rows that it holds at most.

    Attributes:
        dropped: rows that came while it was full.
        texts: none; what a row names, notes say.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self.texts: list[str] = []
        self._rows: deque[Row] = deque()
        self._capacity = capacity
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        """Note a row, or count it where there is no room."""
        if len(self._rows) < self._capacity:
            self._rows.append(row)
        else:
            self.drop(1)

    def drop(self, count: int) -> None:
        """Count rows that could not be noted."""
        with self._lock:
            self.dropped += count

    def take(self) -> Rows:
        """Return what is held, in order, and make room."""
        held = self._rows
        found = bytearray().join(_PACKED.pack(*held.popleft()) for _ in range(len(held)))
        rows: Rows = np.frombuffer(found, ROW)
        return rows
