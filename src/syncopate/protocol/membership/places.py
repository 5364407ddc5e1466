"""Places: processes that come to a job that runs, and whose places they take.

[Note: places] Where the rules say ``on_worker_loss="wait"``, a worker that is lost keeps its place,
and servers go on to count on its pushes. Another process may take the place. It has a token of its
own, which the scheduler tells all servers. From then on a server takes nothing that the process
before says, however late it comes. So what the server has of that worker stays as it is, and it
answers which step that is. The new process hears its roster when all servers have answered, and
goes on from the least of their steps.

Where updates are synchronous, no worker pushes a step before it has all weights of the one before.
So servers have the step s of some slices, and of others perhaps s + 1. The new process begins with
the weights of step s: a server keeps one version before the newest, and a pull that wants it has
it. Then it pushes step s + 1, of which those pushes count that servers did not have. Where servers
keep state on disk they answer once all that they have is there, so that no push of before can be
lost later.

Where updates are asynchronous, the process begins with the weights of now. Its pushes are counted
on from those of the process before, slice by slice; servers write down from where
(:class:`~syncopate.protocol.slice.Position`). There also one worker more may come. It counts from
the slowest one's pushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action, Peer
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.incarnation import NOTHING
from syncopate.protocol.membership.member import ASKS_S
from syncopate.protocol.membership.members import Member, Members, Reaches, sends
from syncopate.protocol.messages import SERVER, WORKER, Refusal
from syncopate.protocol.rules import CLOSED, MORE

COMPLETE = "the job is complete; no process may join it any more"

_BEATS = 3
"""A process without a connection is gone after so many heartbeats."""


def taken_by(member: Member) -> msg.Taken:
    """Return what others hear of a worker that came later."""
    return msg.Taken(member.rank, member.register.token, member.life)


class _Comer(NamedTuple):
    """A process that wants a place.

    Attributes:
        register: what it said.
        peer: its connection.
        asked_s: when it came.
        heard_s: when it last asked.
    """

    register: msg.Register
    peer: Peer
    asked_s: float
    heard_s: float


class Places:
    """The places of a job's workers, for processes that come while it runs."""

    def __init__(self, members: Members, limits: Limits) -> None:
        """Let no process wait yet.

        Args:
            members: of the job.
            limits: what to wait for.
        """
        self._members = members
        self._limits = limits
        self._comers: dict[str, _Comer] = {}
        # What servers answered about a worker, by its token and theirs.
        self._answers: dict[str, dict[str, msg.Stands]] = {}
        self._steps: dict[str, int] = {}

    def ask(self, peer: Peer, register: msg.Register, now_s: float) -> None:
        """Note that a process wants a place; it asks again until it has one.

        Raises:
            Refusal: the rules of its job, or its own, give it none.
        """
        if register.opens == CLOSED or not any(m.register.opens for m in self._workers):
            raise Refusal(msg.UNKNOWN, COMPLETE)
        known = self._comers.get(register.token)
        asked_s = known.asked_s if known is not None else now_s
        self._comers[register.token] = _Comer(register, peer, asked_s, now_s)

    def seated(
        self, now_s: float, reaches: Reaches
    ) -> Iterator[tuple[Peer, Member | None, Member | Refusal]]:
        """Give places to those that wait, where that can be said by now.

        Yields:
            The connection of each, the member whose place it has, and what it is from now on; or
            why it is refused.
        """
        for token, comer in list(self._comers.items()):
            if now_s - comer.heard_s > ASKS_S:
                del self._comers[token]
                continue
            try:
                rank = self._place(comer, now_s, reaches)
            except Refusal as refusal:
                del self._comers[token]
                yield comer.peer, None, refusal
                continue
            if rank is None:
                continue
            del self._comers[token]
            elder = next((each for each in self._workers if each.rank == rank), None)
            life = 1
            if elder is not None:
                life = elder.life + 1
                del self._members[elder.register.token]
            member = Member(comer.register, comer.peer, now_s, rank, life=life)
            self._members[token] = member
            yield comer.peer, elder, member

    def are_asked(self, member: Member) -> bool:
        """Say whether a worker came later, and servers have not all answered yet."""
        later = member.register.role == WORKER and member.life > 0
        return later and self.step(member) is None

    def introduce(self, member: Member) -> list[Action]:
        """Tell servers of a worker that came later, until all have answered."""
        return sends(self._unasked(member), taken_by(member))

    def _unasked(self, member: Member) -> list[Member]:
        """Return the servers that have not said yet that they know a member."""
        answers = self._answers.get(member.register.token, {})
        return [s for s in self._members.all(SERVER) if s.register.token not in answers]

    def heard(self, stands: msg.Stands, origin: int) -> Member | str | None:
        """Take in a server's answer.

        Args:
            stands: the answer.
            origin: of the job's incarnation.

        Returns:
            The member that may begin now; why it cannot, in words; None: others have to answer.
        """
        member = self._members.get(stands.worker)
        if member is None or member.register.role != WORKER or stands.worker in self._steps:
            return None
        answers = self._answers.setdefault(stands.worker, {})
        answers[stands.token] = stands
        if self._unasked(member):
            return None
        del self._answers[stands.worker]
        there = [answers[server.register.token] for server in self._members.all(SERVER)]
        step = min((each.step for each in there if each.step is not None), default=NOTHING)
        oldest = max(each.oldest for each in there)
        if oldest > max(step, 0):
            return (
                f"worker {member.rank} cannot go on from step {max(step, 0)}, the last one of "
                f"which all servers have its pushes: one server only has the weights of step "
                f"{oldest} by now. Workers that wait for all their pushes in every step do not "
                "come so far apart. Start everything again, with the same state or from a "
                "checkpoint"
            )
        # Without a step all begin: worker 0 gives the first values, and those there are count.
        self._steps[stands.worker] = NOTHING if step <= 0 and origin == NOTHING else step
        return member

    def step(self, member: Member) -> int | None:
        """Return the step that a member goes on from that came later; None: not known yet."""
        return self._steps.get(member.register.token)

    def lost(self) -> list[Member]:
        """Return lost workers whose places are open."""
        return [each for each in self._members.of(WORKER, "lost") if each.register.opens]

    def overdue(self, now_s: float) -> str:
        """Say which worker was lost for so long that the job ends; empty: none was."""
        limits = self._limits
        for member in self.lost():
            if now_s - member.heard_s > limits.silence_s + limits.join_s:
                return (
                    f"worker {member.rank} was lost, and no process took its place within "
                    f"{limits.join_s:g} s (join_s)"
                )
        return ""

    @property
    def _workers(self) -> Iterable[Member]:
        return self._members.all(WORKER)

    def _place(self, comer: _Comer, now_s: float, reaches: Reaches) -> int | None:
        """Return the rank whose place a process may take now; None: it is to wait.

        Raises:
            Refusal: it never may.
        """
        workers = {member.rank: member for member in self._workers}
        rank, waited_s = comer.register.rank, now_s - comer.asked_s
        heartbeat_s = self._limits.heartbeat_s
        if rank < 0:
            gone = [r for r in sorted(workers) if self._is_gone(workers[r], now_s, reaches)]
            if gone:
                return gone[0]
            if waited_s <= self._limits.silence_s + heartbeat_s:
                return None  # one may be lost that was not missed yet
            rank = len(workers)
        elder = workers.get(rank)
        if elder is None:
            if rank == len(workers) and comer.register.opens == MORE:
                return rank
            rule = "no worker is lost" if rank == len(workers) else f"there is no worker {rank}"
            raise Refusal(msg.UNKNOWN, f"the job is complete, and {rule}")
        if elder.state == "left":
            raise Refusal(msg.UNKNOWN, f"worker {rank} is done, and has left the job")
        if self._is_gone(elder, now_s, reaches):
            return rank
        if elder.heard_s - comer.asked_s > 2 * heartbeat_s:
            reason = (
                f"worker {rank} is here, and was heard {now_s - elder.heard_s:.1f} s ago; a "
                "process may take its place when it is lost"
            )
            raise Refusal(msg.UNKNOWN, reason)
        return None

    def _is_gone(self, member: Member, now_s: float, reaches: Reaches) -> bool:
        """Say whether a worker is lost, or its process has ended and no more than that is known."""
        if not member.register.opens or member.state != "here":
            return member.state == "lost" and member.register.opens != CLOSED
        silent = now_s - member.heard_s > _BEATS * self._limits.heartbeat_s
        return silent and member.peer is not None and not reaches(member.peer)
