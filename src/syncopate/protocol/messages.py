"""Messages: what scheduler, servers and workers say to each other, and why some are refused.

What they are as bytes: :mod:`~syncopate.protocol.codec`.

=========  =====================  =================================================================
from       to                     messages
=========  =====================  =================================================================
any        scheduler              :class:`Register`, :class:`Heartbeat`, :class:`Leave`,
                                  :class:`Failed`, :class:`Status`, :class:`Stands`
scheduler  any                    :class:`Roster`, :class:`Heartbeat`, :class:`Lost`, :class:`Left`,
                                  :class:`Moved`, :class:`Taken`, :class:`Again`,
                                  :class:`Finish`, :class:`Abort`, :class:`Standing`
worker     server                 :class:`Hello`, :class:`Declare`, :class:`Push`, :class:`Skip` and
                                  :class:`Begin` with a payload, :class:`Query`, :class:`Pull`,
                                  :class:`PullState`, :class:`Norm`; of tables
                                  :class:`DeclareTable`, :class:`PullTable`, and
                                  :class:`PushRows`, :class:`BeginRows` and :class:`PullRows` with
                                  a payload
server     worker                 :class:`Welcome`, :class:`HelloWanted`, :class:`Ack`,
                                  :class:`Weights` and :class:`State` with a payload,
                                  :class:`Share`; of tables :class:`Rows` and :class:`TableState`
                                  with a payload
any        any                    :class:`Refused`
=========  =====================  =================================================================
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from syncopate.protocol.figures import Figures, NodeStanding
from syncopate.protocol.membership.incarnation import Incarnation
from syncopate.protocol.membership.launch import ONCE, Launch
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import CLOSED, Opens, Rules
from syncopate.protocol.scalars import Address, Key, Number, Rank, Text, Token

PROTOCOL = 8
"""The version of what follows; processes of another version are refused."""

SERVER: Literal["server"] = "server"
WORKER: Literal["worker"] = "worker"

SOON = 2**31
"""The priority of requests and acknowledgements: short, and before all tensors. A push whose
acknowledgement waits behind weights would keep its tensor, and its window, for long."""

LAST = -(2**31) - 1
"""The priority of a query and its answer: behind all that waits to be sent to the same receiver."""

Part = Annotated[int, Meta(ge=0, lt=2**16)]
Steps = Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(max_length=32)]
Parts = Annotated[int, Meta(ge=1, lt=2**16)]
States = Annotated[tuple[Annotated[str, Meta(max_length=32)], ...], Meta(max_length=8)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages."""


class Register(Message, frozen=True):
    """A server or worker asks the scheduler to let it into the job.

    Attributes:
        protocol: :data:`PROTOCOL` of the sender.
        job: the job's name.
        role: what it wants to be.
        token: a random number of this process.
        address: where a server can be reached.
        rank: the rank that it wants, or had; -1: any.
        run: the run whose state a server brings; empty: none.
        durable: whether a server keeps its state on disk.
        steps: that a server with state can go on from; None: any. Of a worker the step at which it
            brings the job from other servers; None: it brings none.
        launch: what a worker's launcher says.
        opens: which places a worker's rules open to processes that come while the job runs.
    """

    protocol: int
    job: Text
    role: Literal["server", "worker"]
    token: Token
    address: Address = ""
    rank: Annotated[int, Meta(ge=-1, lt=2**16)] = -1
    run: Token = ""
    durable: bool = False
    steps: Steps | None = None
    launch: Launch = ONCE
    opens: Opens = CLOSED


class Roster(Message, frozen=True):
    """All nodes are there.

    Attributes:
        run: a random number of this run.
        rank: the receiver's.
        servers: their addresses, by rank.
        workers: their tokens, by rank.
        durable: whether the scheduler keeps its state on disk, so that it may come back.
        incarnation: of the run; its step is the receiver's own where it came later.
        lives: how many processes had a worker's place before, by rank; empty: none had one.
    """

    run: Token
    rank: Rank
    servers: tuple[Address, ...]
    workers: tuple[Token, ...]
    durable: bool = False
    incarnation: Incarnation = Incarnation()
    lives: tuple[Number, ...] = ()


class Heartbeat(Message, frozen=True):
    """A sign of life; the scheduler answers with one of its own.

    Attributes:
        token: of the sender.
        figures: what it says of itself; None: nothing.
        settled: whether it has written down, where it keeps state, which member it is.
    """

    token: Token
    figures: Figures | None = None
    settled: bool = True


class Status(Message, frozen=True):
    """A question how the job of this name stands. It needs no membership."""

    job: Text


class Standing(Message, frozen=True):
    """The answer to :class:`Status`. It has no token, with which one could take a node's place.

    Attributes:
        complete: whether all nodes came.
        servers: how many there are to be.
        workers: how many there are to be.
        nodes: those that came, by role and rank.
    """

    complete: bool
    servers: Number
    workers: Number
    nodes: tuple[NodeStanding, ...]


class Lost(Message, frozen=True):
    """The scheduler gave a worker up."""

    rank: Rank
    silent_s: float


class Left(Message, frozen=True):
    """A worker is done, and all it pushed is in the weights."""

    rank: Rank


class Moved(Message, frozen=True):
    """A server came back, perhaps at another address."""

    rank: Rank
    address: Address


class Taken(Message, frozen=True):
    """A process has the place of a worker that was lost, or a new one: the token is its own.

    Attributes:
        rank: of the worker.
        worker: the token.
        life: how many processes had the place before, and one more where it is new.
    """

    rank: Rank
    worker: Token
    life: Number


class Stands(Message, frozen=True):
    """A server's answer: it takes no message any more of a process that had the place before.

    Attributes:
        token: of the server.
        worker: the process that has the place.
        step: of the process, as :class:`Incarnation` has it, that all slices have; None: any.
        oldest: the first step of which there still are the weights of all slices.
    """

    token: Token
    worker: Token
    step: Annotated[int, Meta(ge=-1)] | None
    oldest: Annotated[int, Meta(ge=-1)] = -1


class Again(Message, frozen=True):
    """Workers of the run are gone: a server registers again, with what it has on disk."""


class Leave(Message, frozen=True):
    """A worker is done; or, if ``heard``, a node has received that the job is over."""

    token: Token
    heard: bool = False


class Finish(Message, frozen=True):
    """All workers are done: the servers may end."""


class Failed(Message, frozen=True):
    """The sender cannot go on, and the job should end.

    Attributes:
        token: of the sender.
        reason: a sentence.
        own: whether a worker's script raised: another process may do better in its place.
    """

    token: Token
    reason: Text
    own: bool = False


class Abort(Message, frozen=True):
    """The job is over, and why."""

    reason: Text


class Refused(Message, frozen=True):
    """The receiver does not belong here, and why."""

    reason: Text


class Hello(Message, frozen=True):
    """A worker says who it is on a new connection to a server."""

    run: Token
    rank: Rank
    token: Token


class Welcome(Message, frozen=True):
    """The answer to a hello.

    Attributes:
        boot: a random number of this server process; another one means that it started again.
        durable: whether it keeps its state on disk.
    """

    boot: Token
    durable: bool


class HelloWanted(Message, frozen=True):
    """The server does not know the sender, or not what it keeps: say hello and declare."""


class Declare(Message, frozen=True):
    """The slices of the receiving server, and their rules; the same from every worker.

    Attributes:
        digest: of the layout.
        rules: how to update.
        slices: of this part, by key.
        part: which part it is.
        parts: how many there are; the server keeps nothing before it has all.
    """

    digest: Token
    rules: Rules
    slices: tuple[Slice, ...]
    part: Part = 0
    parts: Parts = 1


class Push(Message, frozen=True):
    """A gradient, with its bytes as payload.

    Attributes:
        key: of the slice.
        sequence: counts this worker's pushes of the slice from 1; 0 is rank 0's first value.
        lr: the learning rate from now on; None: that of the rules.
    """

    key: Key
    sequence: Number
    lr: float | None = None


class Skip(Push, frozen=True):
    """A push of no gradient and no payload: zeros beside others' gradients; alone no update."""


class Begin(Push, frozen=True):
    """Rank 0's first value, and behind it in the payload what the optimizer remembers.

    Attributes:
        state: names of ``Rules.state``, in the payload's order.
    """

    state: States = ()


class DeclareTable(Message, frozen=True):
    """What the receiving server shall keep of a table, and how; the same from every worker."""

    table: TableSlice


class PushRows(Push, frozen=True):
    """Gradients of rows: the payload has their numbers, ascending, and behind them the gradients.

    Attributes:
        part: a push of many rows travels in parts; which one it is.
        parts: how many there are; the push has come when all of them have.
        reached: whether the worker's backward reached the table; else there is no row.
    """

    part: Part = 0
    parts: Parts = 1
    reached: bool = True


class BeginRows(PushRows, frozen=True):
    """Rank 0's first rows: numbers, values, and behind them what the optimizer remembers.

    Attributes:
        state: names of ``Rules.state``, in the payload's order.
        steps: how many updates the optimizer has counted.
    """

    state: States = ()
    steps: Number = 0


class Share(Message, frozen=True):
    """What a server adds to the norm of a step; see [Note: clipping] in ``clipping``.

    Attributes:
        version: of all its slices, after the step.
        squares: the sum of squares of their mean gradients.
    """

    version: Number
    squares: float


class Norm(Message, frozen=True):
    """The norm of the mean gradient of a step, over all servers.

    Attributes:
        version: of all slices, after the step.
        norm: the 2-norm.
    """

    version: Number
    norm: float


class Ack(Message, frozen=True):
    """How far a worker's pushes of a slice got.

    Attributes:
        key: of the slice.
        received: the last sequence number that the server has, and all before it; -1: none.
        done: the last one that is in the weights and, where state is kept, on disk; -1: none.
        query: the number of the query that this answers; 0: it answers none.
        waiting: the request of the pull that waits here to be answered; 0: none does.
    """

    key: Key
    received: Annotated[int, Meta(ge=-1)]
    done: Annotated[int, Meta(ge=-1)]
    query: Number = 0
    waiting: Number = 0


class Query(Message, frozen=True):
    """A worker that waits for long asks what the server has of a slice.

    [Note: queries] A slow answer is no lost one: a server may have seconds of weights to send. So a
    message without an answer is not sent again; its sender asks for the answer. What goes one way
    over a connection arrives in its order, and a query goes behind all that waits to be sent, and
    so does its answer. So each earlier message has come or is lost; only lost ones are sent again.
    """

    key: Key
    number: Number


class Pull(Message, frozen=True):
    """A worker wants a slice's weights, with its own first ``after`` pushes in them.

    Attributes:
        key: of the slice.
        after: how many.
        request: a number for the answer.
        priority: ready answers with a higher one go first.
    """

    key: Key
    after: Number
    request: Number
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0


class PullState(Pull, frozen=True):
    """The same, with what the optimizer remembers."""


class PullRows(Pull, frozen=True):
    """A worker wants some rows of a table, whose numbers are the payload.

    Attributes:
        count: how many.
    """

    count: Number = 0


class PullTable(Pull, frozen=True):
    """A worker wants rows that a server has values of, and what the optimizer remembers of them.

    Attributes:
        begin: the first of them, in the order in which the server came to have them.
        count: how many at most.
    """

    begin: Number = 0
    count: Number = 0


class Weights(Message, frozen=True):
    """The answer to a pull, with the weights' bytes as payload."""

    key: Key
    version: Number
    request: Number


class State(Weights, frozen=True):
    """The same, and behind the weights in the payload what the optimizer remembers.

    Attributes:
        state: names of ``Rules.state``, in the payload's order; none before the first update.
    """

    state: States = ()


class Rows(Weights, frozen=True):
    """The answer to a pull of rows: their weights, in the order that was asked for."""


class TableState(Weights, frozen=True):
    """The answer to :class:`PullTable`: rows' numbers, their weights and what is remembered.

    Attributes:
        held: how many rows the server has values of.
        steps: how many updates the optimizer has counted.
        state: names of ``Rules.state``, in the payload's order.
    """

    held: Number = 0
    steps: Number = 0
    state: States = ()


# Why messages are refused; the counts of refusals have these names.
MALFORMED = "malformed"
OVERSIZED = "oversized"
WRONG_SIZE = "wrong size"
REPLAYED = "replayed"
EARLY = "early"
UNKNOWN = "unknown"
OTHER_RUN = "other run"


class Refusal(Exception):  # noqa: N818  # no error of the user: it is counted, and the sender told
    """A message that is not accepted.

    Args:
        kind: :data:`MALFORMED` or another of the reasons beside it.
        reason: a sentence for the sender.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
