"""Records: the lines of a DLC trace.

A trace belongs to one node, a worker or a server. Each record is one message that the node sent or
received. Nodes count from 0: first the workers, then the servers, then the scheduler.

Source: SketchDLC, Section 4.1, Table 1 and Fig. 8.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

INITIAL = -15
"""``num_pp`` of the records in which worker 0 gives servers the first values."""

MARK = "OP:= "
"""What stands before the name of an operation."""

FIELDS = (
    "id", "src", "dst", "length", "num_pp", "operation", "op_id", "dep_type", "d_time",
    "time_sec", "time_usec", "id_dep",
)  # fmt: skip
"""The columns, in their order."""

SET_UP_FIELDS = 6
"""A set-up record has the columns up to its operation."""


class Operation(StrEnum):
    """An operation of a node: a push or a pull, sent or received, by a worker or a server."""

    PUSH_SEND_WORKER = "Push_Send_Worker"
    PUSH_RECV_WORKER = "Push_Recv_Worker"
    PULL_SEND_WORKER = "Pull_Send_Worker"
    PULL_RECV_WORKER = "Pull_Recv_Worker"
    PUSH_RECV_SERVER = "Push_Recv_Server"
    PUSH_SEND_SERVER = "Push_Send_Server"
    PULL_RECV_SERVER = "Pull_Recv_Server"
    PULL_SEND_SERVER = "Pull_Send_Server"

    @property
    def sends(self) -> bool:
        """Whether the node sent the message."""
        return "_Send_" in self.value

    @property
    def push(self) -> bool:
        """Whether the message belongs to a push; else to a pull."""
        return self.value.startswith("Push")

    @property
    def by_worker(self) -> bool:
        """Whether the node is a worker; else a server."""
        return self.value.endswith("Worker")


OF_WORKERS = tuple(operation for operation in Operation if operation.by_worker)
OF_SERVERS = tuple(operation for operation in Operation if not operation.by_worker)
"""What each does with a key and a peer in an iteration, in order."""


class Dependency(IntEnum):
    """The kind of a record's dependency: ``dep_type``."""

    NONE = 0
    PUSH_ON_PUSH = 1
    PULL_ON_PUSH = 2
    PULL_ON_PULL = 3
    PUSH_ON_PULL = 4


class Header(NamedTuple):
    """The header above the records.

    Attributes:
        workers: number of workers.
        servers: number of servers.
        hostname: of the node.
        role: ``"worker"``, ``"server"`` or ``"scheduler"``.
    """

    workers: int
    servers: int
    hostname: str
    role: str = "worker"


class SetUp(NamedTuple):
    """A message that sets up a connection.

    Attributes:
        id: number of the record in its file.
        src: node that sent it.
        dst: node that received it.
        length: its size, bytes.
        num_pp: 0.
        operation: its name, such as ``"SendCom_To_Servers"``, as it is spelled.
    """

    id: int
    src: int
    dst: int
    length: int
    num_pp: int
    operation: str


class Record(NamedTuple):
    """A message of a push or a pull.

    Attributes:
        id: number of the record in its file.
        src: node that sent it.
        dst: node that received it.
        length: its size, bytes, data and meta data.
        num_pp: number of the push or pull, in the order they were asked for; ``INITIAL`` before.
        operation: what the node did.
        key: index of the parameter.
        number: of the operation among those of this key and peer; four make an iteration.
        peer: the node at the other end, such as ``"s0"`` or ``"w1"``.
        dependency: what it waited for.
        d_time_us: microseconds since what it waited for; see :class:`Node`.
        time_us: when, microseconds since the epoch.
        depends_on: the records it waited for, by their ``op_id``; of all keys, as in ``"3-s0"``,
            without the key.
        many: whether these are written as a list.
    """

    id: int
    src: int
    dst: int
    length: int
    num_pp: int
    operation: Operation
    key: int
    number: int
    peer: str
    dependency: Dependency
    d_time_us: int
    time_us: int
    depends_on: tuple[str, ...] = ()
    many: bool = False

    @property
    def node(self) -> int:
        """Return the node whose record it is."""
        return self.src if self.operation.sends else self.dst

    @property
    def iteration(self) -> int:
        """Return the iteration of the training, from 0; what comes before has -1.

        Worker 0 counts two operations more than the others, for the first values. Servers begin at
        -2 to make up for that.
        """
        first = self.operation.by_worker and self.node == 0
        return (self.number if first else self.number + 2) // 4 - 1

    @property
    def op_id(self) -> str:
        """Return the name by which other records refer to this one."""
        return f"{self.key}-{self.number}-{self.peer}"
