"""Members: what a scheduler knows of each process of a job, in memory and on disk."""

from __future__ import annotations

from typing import Literal

import msgspec

from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Peer


class Member(msgspec.Struct):
    """A process that registered.

    Attributes:
        register: what it said.
        peer: its connection; None: it said nothing since the scheduler came back.
        heard_s: when it last said anything.
        rank: that it has; -1: none yet.
        state: whether it is here.
        settled: whether it has written down, where it keeps state, which member it is.
        reached_s: after how much silence there was a connection to it; infinite: there is none.
        figures: what it said of itself last.
    """

    register: msg.Register
    peer: Peer | None
    heard_s: float
    rank: int = -1
    state: Literal["here", "lost", "left"] = "here"
    settled: bool = False
    reached_s: float = 0.0
    figures: msg.Figures = msg.Figures()


class Members(dict[str, Member]):
    """All members of a job, by their tokens."""

    def all(self, role: str) -> list[Member]:
        """Return those of ``role``."""
        return [member for member in self.values() if member.register.role == role]

    def of(self, role: str, state: str) -> list[Member]:
        """Return those of ``role`` that are in ``state``."""
        return [member for member in self.all(role) if member.state == state]


class Seated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member of a job that is complete, as a scheduler keeps it on disk.

    Attributes:
        token: a random number of its process.
        role: server or worker.
        rank: that it has.
        address: where a server can be reached.
        durable: whether a server keeps its state on disk.
        state: whether it is here.
        settled: whether it has written down which member it is.
    """

    token: str
    role: Literal["server", "worker"]
    rank: int
    address: str
    durable: bool
    state: Literal["here", "lost", "left"]
    settled: bool = True


def member_of(job: str, known: Seated) -> Member:
    """Return a member that was kept on disk."""
    register = msg.Register(
        msg.PROTOCOL,
        job,
        known.role,
        known.token,
        known.address,
        known.rank,
        durable=known.durable,
    )
    return Member(register, None, 0.0, known.rank, known.state, settled=known.settled)
