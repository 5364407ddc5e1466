"""Members: what a scheduler knows of each process of a job, in memory and on disk."""

from __future__ import annotations

from typing import Literal

import msgspec

from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Peer
from syncopate.protocol.membership.launch import ONCE, Launch


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
        confirmed: whether it was heard since the last worker came, where the job is not complete.
    """

    register: msg.Register
    peer: Peer | None
    heard_s: float
    rank: int = -1
    state: Literal["here", "lost", "left"] = "here"
    settled: bool = False
    reached_s: float = 0.0
    figures: msg.Figures = msg.Figures()
    confirmed: bool = True


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
        launch: what a worker's launcher said.
    """

    token: str
    role: Literal["server", "worker"]
    rank: int
    address: str
    durable: bool
    state: Literal["here", "lost", "left"]
    settled: bool = True
    launch: Launch = ONCE


class Members(dict[str, Member]):
    """All members of a job, by their tokens."""

    def all(self, role: str) -> list[Member]:
        """Return those of ``role``."""
        return [member for member in self.values() if member.register.role == role]

    def of(self, role: str, state: str) -> list[Member]:
        """Return those of ``role`` that are in ``state``."""
        return [member for member in self.all(role) if member.state == state]

    def seated(self) -> tuple[Seated, ...]:
        """Return all of them as a scheduler keeps them on disk."""
        return tuple(
            Seated(
                token=token,
                role=member.register.role,
                rank=member.rank,
                address=member.register.address,
                durable=member.register.durable,
                state=member.state,
                settled=member.settled,
                launch=member.register.launch,
            )
            for token, member in self.items()
        )

    def standing(self, now_s: float) -> tuple[msg.NodeStanding, ...]:
        """Return what people are told of all of them, by role and rank."""
        return tuple(
            msg.NodeStanding(
                member.register.role,
                member.rank,
                member.state,
                max(now_s - member.heard_s, 0.0),
                member.register.address,
                member.figures,
            )
            for role in (msg.SERVER, msg.WORKER)
            for member in sorted(self.all(role), key=lambda one: one.rank)
        )


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
        launch=known.launch,
    )
    return Member(register, None, 0.0, known.rank, known.state, settled=known.settled)
