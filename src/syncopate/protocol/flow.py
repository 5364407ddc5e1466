"""Flow: the pushes and pulls of one slice, as a worker has them under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from syncopate.protocol import messages as msg


class Link(msgspec.Struct):
    """What a worker knows about one server.

    Attributes:
        boot: its process.
        durable: whether it keeps its state on disk.
        open: whether it answered the last hello.
        asked_s: when that was said.
        heard_s: when it last answered, or nothing was waited for.
    """

    boot: str = ""
    durable: bool = False
    open: bool = False
    asked_s: float = 0.0
    heard_s: float = 0.0


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


def new_flow(first: int) -> Flow:
    """Return a flow of which the push ``first`` counts as sent and over."""
    return Flow(first, first, first, first, first)
