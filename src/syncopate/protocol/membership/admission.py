"""Admission: which processes a scheduler lets in, and in whose place."""

from __future__ import annotations

from collections.abc import Iterable

from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Peer
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.members import Member, Members
from syncopate.protocol.messages import SERVER, WORKER, Refusal


class Admission:
    """What a scheduler asks of a process that wants to be let in."""

    def __init__(self, job: str, run: str, members: Members, limits: Limits) -> None:
        """Let processes into a run of a job.

        Args:
            job: the job's name.
            run: a random number of this run.
            members: those that are in.
            limits: what to wait for.
        """
        self._job, self._run = job, run
        self._members = members
        self._limits = limits
        # When each process asked first that came in the place of another one.
        self._asked_s: dict[str, float] = {}

    def require_of_job(self, register: msg.Register) -> None:
        """Refuse a process of another version, job or run.

        Raises:
            Refusal: it is one.
        """
        if register.protocol != msg.PROTOCOL:
            reason = f"protocol version {register.protocol}; this job speaks {msg.PROTOCOL}"
            raise Refusal(msg.UNKNOWN, reason)
        if register.job != self._job:
            raise Refusal(msg.OTHER_RUN, f"job {register.job!r}; the job here has another name")
        if register.run not in ("", self._run):
            reason = f"state of run {register.run}; this is another run: give an empty folder"
            raise Refusal(msg.OTHER_RUN, reason)

    def is_of_run(self, register: msg.Register) -> bool:
        """Say whether a server brings state of this run."""
        return register.run == self._run

    def has_turn(self, register: msg.Register, now_s: float) -> bool:
        """Say whether a server may enter now, in the place of one that is gone if there is one.

        A node that comes from the address of one that is here, or wants its rank, may be the same
        that was killed while the job gathers. By the rank alone that is open until the one that is
        here is heard again, and so is another, or was silent for long, and so is gone.
        """
        alike = [
            member
            for member in self._members.of(SERVER, "here")
            if register.address == member.register.address != ""
            or register.rank == member.register.rank >= 0
        ]
        if not alike:
            return True
        elder = min(alike, key=lambda member: member.heard_s)
        asked_s = self._asked_s.setdefault(register.token, now_s)
        gone = now_s - elder.heard_s > self._limits.silence_s / 2
        if gone or register.address == elder.register.address != "":
            del self._members[elder.register.token]
            return True
        return elder.heard_s > asked_s

    def is_started_again(self, register: msg.Register) -> bool:
        """Say whether a worker's launcher has started it in the place of one that is in.

        A launcher ends a process before it starts another one in its place.
        """
        return any(
            member.register.rank == register.rank >= 0
            and member.register.launch.restart < register.launch.restart
            for member in self._members.all(WORKER)
        )

    def may_wait(self, register: msg.Register, now_s: float) -> bool:
        """Say whether a worker may wait until one that is in is given up.

        Where a launcher starts workers again, on several hosts not all of them say so.
        """
        if not (register.launch.most or register.opens):
            return False
        asked_s = self._asked_s.setdefault(register.token, now_s)
        return now_s - asked_s <= self._limits.given_up_s

    def take_place(
        self, peer: Peer, register: msg.Register, now_s: float
    ) -> tuple[str, Member] | None:
        """Let a server that was killed take its place again.

        Returns:
            The token that it had, and what it is now; None: there is no server of its rank.
        """
        for token, member in self._members.items():
            if member.register.role == register.role == SERVER and member.rank == register.rank:
                del self._members[token]
                back = Member(register, peer, now_s, member.rank)
                self._members[register.token] = back
                return token, back
        return None

    def predecessor(self, register: msg.Register, *, complete: bool) -> Member | None:
        """Return the server in whose place one without state may come, that had none yet either.

        Args:
            register: how it introduces itself.
            complete: whether all members have their ranks.
        """
        if register.role != SERVER or not register.durable or register.rank < 0:
            return None
        for member in self._members.of(SERVER, "here"):
            rank = member.rank if complete else member.register.rank
            if rank == register.rank and member.register.durable and not member.settled:
                return member
        return None


def assign(members: Iterable[Member]) -> None:
    """Give every member the rank it wants, or else the lowest that is free."""
    members = list(members)
    free = set(range(len(members)))
    for member in members:
        if member.register.rank in free:
            member.rank = member.register.rank
            free.remove(member.rank)
    for member in members:
        if member.rank < 0:
            member.rank = min(free)
            free.remove(member.rank)
