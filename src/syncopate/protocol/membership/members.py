"""Members: what a scheduler knows of each process of a job, in memory and on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action, Peer
from syncopate.protocol.figures import Figures, NodeStanding
from syncopate.protocol.limits import Limits, was_cut_off
from syncopate.protocol.membership.incarnation import Incarnation
from syncopate.protocol.membership.launch import ONCE, Launch
from syncopate.protocol.rules import CLOSED, Opens

Reaches = Callable[[Peer], bool]
"""Says whether there still is a connection to a peer."""


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
        life: how many processes had its place before, and one more where the place is new.
    """

    register: msg.Register
    peer: Peer | None
    heard_s: float
    rank: int = -1
    state: Literal["here", "lost", "left"] = "here"
    settled: bool = False
    reached_s: float = 0.0
    figures: Figures = Figures()
    confirmed: bool = True
    life: int = 0

    @property
    def name(self) -> str:
        """What people call it."""
        rank, role = max(self.rank, self.register.rank), self.register.role
        return f"{role} {rank}" if rank >= 0 else f"a {role}"

    def may_return(self, silent_s: float, limits: Limits, reaches: Reaches) -> bool:
        """Say whether a silent member may only have been stopped or cut off.

        See :func:`~syncopate.protocol.limits.was_cut_off`.
        """
        if silent_s > limits.given_up_s or self.peer is None:
            return False
        if silent_s >= self.reached_s + limits.heartbeat_s:
            if reaches(self.peer):
                self.reached_s = silent_s
            elif not was_cut_off(self.reached_s):
                self.reached_s = math.inf
        return self.reached_s < math.inf


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
        life: as :class:`Member` has it.
        opens: which places a worker's rules open to others.
    """

    token: str
    role: Literal["server", "worker"]
    rank: int
    address: str
    durable: bool
    state: Literal["here", "lost", "left"]
    settled: bool = True
    launch: Launch = ONCE
    life: int = 0
    opens: Opens = CLOSED


class Members(dict[str, Member]):
    """All members of a job, by their tokens."""

    def all(self, role: str) -> list[Member]:
        """Return those of ``role``."""
        return [member for member in self.values() if member.register.role == role]

    def of(self, role: str, state: str) -> list[Member]:
        """Return those of ``role`` that are in ``state``."""
        return [member for member in self.all(role) if member.state == state]

    def roster(self, run: str, durable: bool, incarnation: Incarnation) -> msg.Roster:
        """Return the roster for all members once all are there; each gets its own rank in it."""
        servers = sorted(self.all(msg.SERVER), key=lambda one: one.rank)
        workers = sorted(self.all(msg.WORKER), key=lambda one: one.rank)
        lives = tuple(worker.life for worker in workers)
        return msg.Roster(
            run,
            0,
            tuple(server.register.address for server in servers),
            tuple(worker.register.token for worker in workers),
            durable,
            incarnation,
            lives if any(lives) else (),
        )

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
                life=member.life,
                opens=member.register.opens,
            )
            for token, member in self.items()
        )

    def standing(self, now_s: float) -> tuple[NodeStanding, ...]:
        """Return the status of every member for people, by role and rank."""
        return tuple(
            NodeStanding(
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
        opens=known.opens,
    )
    at, settled = (known.rank, known.state), known.settled
    return Member(register, None, 0.0, *at, settled=settled, life=known.life)


def sends(members: Iterable[Member], message: msg.Message) -> list[Action]:
    """Return a message to each of ``members`` that has a connection; the others get it later."""
    return [act.Send(m.peer, message) for m in members if m.peer is not None]
