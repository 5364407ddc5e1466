"""Flow: the pushes and pulls of one slice, as a worker has them under way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import msgspec

from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.table import ID_BYTES, columns_of
from syncopate.units import KIB

_LONG_SHARE, _SHORT_SHARE = 1 / 20, 1 / 800
"""Of ``retry_s``: the shortest wait for an answer, on a link that lost nothing or that did."""

_LOSSY = 30
"""How many times ``retry_s`` a link counts as one that loses messages, after it lost one."""

_SLOWEST_BYTES_PER_S = 16 * KIB
"""What a connection carries at least: a server that answers nothing for longer is out of reach."""


class RoundTrip(msgspec.Struct):
    """How long a server's answers take: the estimate of RFC 6298, by Jacobson.

    Attributes:
        mean_s: smoothed; negative before the first answer.
        deviation_s: from the mean, smoothed.
    """

    mean_s: float = -1.0
    deviation_s: float = 0.0

    def took(self, seconds: float) -> None:
        """Take in how long an answer took to something that was sent once (Karn's rule)."""
        if self.mean_s < 0:
            self.mean_s, self.deviation_s = seconds, seconds / 2
            return
        self.deviation_s += (abs(seconds - self.mean_s) - self.deviation_s) / 4
        self.mean_s += (seconds - self.mean_s) / 8

    @property
    def late_s(self) -> float:
        """After how long an answer is late; 0 before the first.

        The RFC has four deviations. A question costs less here than what it sends again.
        """
        return max(0.0, self.mean_s + 2 * self.deviation_s)


class Link(msgspec.Struct):
    """What a worker knows about one server.

    Attributes:
        boot: its process.
        durable: whether it keeps its state on disk.
        open: whether it answered the last hello.
        asked_s: when that was said.
        wait_s: how long to wait from then on before saying it again; 0: as at first.
        heard_s: when it last answered, or nothing was waited for.
        lost_s: when it was last known to have lost a message.
        receipts: how long it takes to say that it has a push.
        answers: how long everything else takes, which may wait for other workers.
    """

    boot: str = ""
    durable: bool = False
    open: bool = False
    asked_s: float = 0.0
    wait_s: float = 0.0
    heard_s: float = 0.0
    lost_s: float = -math.inf
    receipts: RoundTrip = msgspec.field(default_factory=RoundTrip)
    answers: RoundTrip = msgspec.field(default_factory=RoundTrip)

    def hello_again(self, now_s: float, retry_s: float) -> bool:
        """Say whether an answer to a hello is late; the next one may take twice as long."""
        wait_s = self.wait_s or _LONG_SHARE * retry_s
        if self.open or now_s - self.asked_s < wait_s:
            return False
        self.wait_s = min(2 * wait_s, retry_s)
        return True

    def lossy(self, now_s: float, retry_s: float) -> bool:
        """Say whether it lost a message recently."""
        return now_s - self.lost_s < _LOSSY * retry_s

    def late_s(self, awaited: RoundTrip, now_s: float, retry_s: float) -> float:
        """Return after how long an answer is late; at most ``retry_s``."""
        known = awaited.mean_s >= 0 and self.lossy(now_s, retry_s)
        return min(max(awaited.late_s, (_SHORT_SHARE if known else _LONG_SHARE) * retry_s), retry_s)

    def patience_s(self, limits: Limits) -> float:
        """Return how long a server may answer nothing: the scheduler sees to those that are lost.

        On a connection that works, a slice may be on its way for long.
        """
        under_way_s = limits.slice_bytes / _SLOWEST_BYTES_PER_S if self.open else 0.0
        return limits.given_up_s + under_way_s


class Pushed(msgspec.Struct, frozen=True):
    """A push that may have to be sent again."""

    message: msg.Push
    priority: int

    def parts(self) -> Iterator[msg.Push]:
        """Give the messages that it travels as: one, but for a push of many rows."""
        if not isinstance(self.message, msg.PushRows):
            yield self.message
            return
        for part in range(self.message.parts):
            yield msgspec.structs.replace(self.message, part=part)


class Question(msgspec.Struct, frozen=True):
    """What had been sent before a query: if the server has not got it, it is lost.

    Attributes:
        number: of the query.
        sent: the last push.
        pull: the request of the pull that was asked for; 0: none was.
        done: the last push that the server had said was over.
    """

    number: int
    sent: int
    pull: int
    done: int


class Flow(msgspec.Struct):
    """The pushes and pulls of one slice.

    Attributes:
        pushed: the last sequence number given out.
        sent: the last one sent.
        received: the last one that the server has.
        done: the last one that is over for the server.
        released: the last one that is over for the caller.
        kept: pushes that are not done.
        pulls: the first is under way, the others wait.
        touched_s: when something last happened.
        wait_s: how long to wait from then on before asking what the server has.
        awaited: what the next answer tells the time of; None: it was asked for since then.
        queued: payloads of pushes that have not left this process yet.
        query: the last question, as long as its answer counts.
    """

    pushed: int
    sent: int
    received: int
    done: int
    released: int
    kept: dict[int, Pushed] = msgspec.field(default_factory=dict)
    pulls: deque[msg.Pull] = msgspec.field(default_factory=deque)
    touched_s: float = 0.0
    wait_s: float = 0.0
    awaited: RoundTrip | None = None
    queued: int = 0
    query: Question | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is waited for."""
        return not self.pulls and self.done >= self.sent

    def of_part(self, key: int) -> Flow:
        """Return the flow of a part of the bundle that this is the flow of."""
        replace = msgspec.structs.replace
        kept = {n: replace(p, message=replace(p.message, key=key)) for n, p in self.kept.items()}
        pulls = deque(replace(pull, key=key) for pull in self.pulls)
        return replace(self, kept=kept, pulls=pulls)


def believed(ack: msg.Ack, flow: Flow, most: int) -> msg.Ack | None:
    """Return what an acknowledgement says of what was sent; None: it cannot be true.

    Args:
        ack: of a slice.
        flow: of it.
        most: the last push that another process may have sent in this worker's place.
    """
    if ack.received > max(flow.sent, most) or ack.done > ack.received:
        return None
    if ack.received <= flow.sent:
        return ack
    done = min(ack.done, flow.sent)
    return msgspec.structs.replace(ack, received=flow.sent, done=done)


def new_flow(first: int) -> Flow:
    """Return a flow of which the push ``first`` counts as sent and over."""
    return Flow(first, first, first, first, first)


ANSWERS: dict[type[msg.Pull], type[msg.Weights]] = {
    msg.Pull: msg.Weights,
    msg.PullState: msg.State,
    msg.PullRows: msg.Rows,
    msg.PullTable: msg.TableState,
}
"""What answers a pull."""


def fits(spec: Slice, pull: msg.Pull, weights: msg.Weights, nbytes: int) -> bool:
    """Say whether an answer to a pull carries as many bytes as it should."""
    table = spec.table
    if table is None:
        return nbytes == spec.carried_bytes(weights.state if isinstance(weights, msg.State) else ())
    if isinstance(weights, msg.TableState) and isinstance(pull, msg.PullTable):
        count = max(0, min(pull.count, weights.held - pull.begin))
        return nbytes == count * table.row_bytes(columns_of(weights.state))
    assert isinstance(pull, msg.PullRows)
    return nbytes == pull.count * (table.row_bytes() - ID_BYTES)
