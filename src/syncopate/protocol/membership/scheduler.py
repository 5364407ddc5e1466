"""Scheduler: which nodes take part, their ranks, which are lost, and when the job is over.

[Note: strangers] A refused process is told what is wrong, and neither the job's name nor the run's:
without a key, a process that knows the one may join, and with the other take a server's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action, Peer
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.admission import Admission, assign
from syncopate.protocol.membership.incarnation import FIRST_LIFE, Incarnation
from syncopate.protocol.membership.member import ASKS_S
from syncopate.protocol.membership.members import Member, Members, Reaches, Seated, member_of, sends
from syncopate.protocol.membership.parting import Parting
from syncopate.protocol.membership.places import COMPLETE, Places, taken_by
from syncopate.protocol.membership.successor import Successor, begun
from syncopate.protocol.messages import SERVER, WORKER, Refusal
from syncopate.protocol.rules import CLOSED


class SchedulerMachine:
    """The scheduler of one run of a job.

    Attributes:
        refused: how many messages were refused, by reason.
        over: whether the job is over.
        finished: whether it is, and all is well.
        incarnation: of the run.
        complete: whether all nodes came.
        settled: whether all nodes have heard of the end, or had the time.
        changes: counts what changed of :attr:`seated`, ``over`` and ``settled``.
    """

    def __init__(
        self,
        job: str,
        run: str,
        servers: int,
        workers: int,
        limits: Limits,
        *,
        seated: Iterable[Seated] | None = None,
        incarnation: Incarnation = FIRST_LIFE,
        finished: bool = False,
    ) -> None:
        """Wait for ``servers`` servers and ``workers`` workers.

        Args:
            job: the job's name.
            run: a random number of this run.
            servers: how many.
            workers: how many.
            limits: what to wait for.
            seated: what a scheduler that keeps its state on disk found there; nothing: it begins.
                None: it keeps none.
            incarnation: that was found there, too.
            finished: whether the job was over, and not all members had heard it.
        """
        self.changes = 0
        self._durable = seated is not None
        self.refused: Counter[str] = Counter()
        self.over = self.finished = finished
        self.settled = False
        self.incarnation = incarnation
        self._job, self._run = job, run
        self._wanted = {SERVER: servers, WORKER: workers}
        self._limits = limits
        self._members = Members({each.token: member_of(job, each) for each in seated or ()})
        self._admission = Admission(job, run, self._members, limits)
        self._parting = Parting(self._members, self._admission, limits, finished=finished)
        self._places = Places(self._members, limits)
        self._all, self._of = self._members.all, self._members.of
        self.complete = bool(seated)
        self._began_s: float | None = None
        # Whether no worker was heard since this scheduler came back: [Note: incarnations].
        self._alone = self.complete and self._is_durable()
        self._successor: Successor | None = None
        # Tokens of workers that the job goes on without, and why: [Note: workers that return].
        self._former: dict[str, str] = {}

    @property
    def here(self) -> dict[str, int]:
        """How many servers and workers are here."""
        return {role: len(self._of(role, "here")) for role in self._wanted}

    @property
    def seated(self) -> tuple[Seated, ...]:
        """All members, once the job is complete."""
        if not self.complete:
            return self._successor.before if self._successor is not None else ()
        return self._members.seated()

    def receive(self, peer: Peer, message: msg.Message, now_s: float) -> list[Action]:
        """Take in what ``peer`` said."""
        try:
            if isinstance(message, msg.Status):
                return self._standing(peer, message, now_s)
            if self.over:
                return self._parting.answer(peer, message, now_s)
            if isinstance(message, msg.Register):
                return self._enter(peer, message, now_s)
            if isinstance(message, msg.Heartbeat | msg.Leave | msg.Failed | msg.Stands):
                return self._hear(peer, message, now_s)
        except Refusal as refusal:
            return self.refuse(peer, refusal)
        return self.refuse(peer, Refusal(msg.UNKNOWN, "a scheduler takes no such message"))

    def _standing(self, peer: Peer, asked: msg.Status, now_s: float) -> list[Action]:
        """Answer who asks how the job stands; [Note: strangers]."""
        if asked.job != self._job:
            raise Refusal(msg.OTHER_RUN, f"job {asked.job!r}; the job here has another name")
        wanted, nodes = self._wanted, self._members.standing(now_s)
        workers = max(wanted[WORKER], len(self._all(WORKER)))
        return [act.Send(peer, msg.Standing(self.complete, wanted[SERVER], workers, nodes))]

    def is_stranger(self, message: msg.Message) -> bool:
        """Say whether who said ``message`` is no member."""
        return getattr(message, "token", "") not in self._members

    def refuse(self, peer: Peer, refusal: Refusal) -> list[Action]:
        """Count a refusal, and tell ``peer`` unless its message made no sense at all."""
        self.refused[refusal.kind] += 1
        if refusal.kind == msg.MALFORMED:
            return []
        return [act.Send(peer, msg.Refused(refusal.reason))]

    def tick(self, now_s: float, reaches: Reaches = lambda _: False) -> list[Action]:
        """Notice silent nodes, and nodes that did not come; call it often.

        Args:
            now_s: the time.
            reaches: says whether there still is a connection to a peer.
        """
        if self._began_s is None:
            self._began_s = now_s
            for member in self._members.values():
                member.heard_s = max(member.heard_s, now_s)
        if self.over:
            self.settled = self._parting.is_over(now_s, reaches)
            self.changes += self.settled
            return []
        if not self.complete:
            return self._gather(now_s)
        if self._alone:
            late = now_s - self._began_s > self._limits.silence_s
            why = f"no worker was heard for {self._limits.silence_s:g} s"
            return self._begin_again(now_s, why) if late else []
        found: list[Action] = []
        for member in list(self._members.values()):
            if self.over or not self.complete:
                break
            silent_s = self._silent_s(member, now_s)
            if silent_s and not member.may_return(silent_s, self._limits, reaches):
                found += self._lose(member, silent_s, now_s)
        if self.complete and not self.over:
            if why := self._places.overdue(now_s):
                return [*found, *self.abort(why)]
            found += self._seat(now_s, reaches)
        return found

    def _seat(self, now_s: float, reaches: Reaches) -> list[Action]:
        """Let processes take the places of workers that are lost; [Note: places] in ``places``."""
        found: list[Action] = []
        for peer, elder, member in self._places.seated(now_s, reaches):
            if isinstance(member, Refusal):
                found += self.refuse(peer, member)
                continue
            if elder is not None:
                self._former[elder.register.token] = f"{member.name} is another process by now"
            self.changes += 1
            told = [m for m in self._members.values() if m.state == "here" and m is not member]
            remark = act.Remark(f"a process has come as {member.name}")
            found += [remark, *sends(told, taken_by(member))]
        return found

    def _stood(self, stands: msg.Stands) -> list[Action]:
        """Let a worker that came later begin, once all servers know it."""
        found = self._places.heard(stands, self.incarnation.origin)
        if isinstance(found, str):
            return self.abort(found)
        return [] if found is None else self._welcome([found])

    def _begin_again(self, now_s: float, why: str) -> list[Action]:
        """Gather new workers, and servers with what they have on disk; [Note: incarnations].

        Args:
            now_s: the time.
            why: what workers of before hear that are still there.
        """
        servers, workers = self._all(SERVER), self._all(WORKER)
        why = f"{why}; the job goes on when its workers have been started again"
        self._former |= dict.fromkeys((each.register.token for each in workers), why)
        self._successor = Successor(self.seated, self.incarnation)
        self._members.clear()
        self._parting.tokens.clear()
        self._alone = self.complete = False
        self._began_s = now_s
        here = [each for each in workers if each.state == "here"]
        return [*sends(servers, msg.Again()), *sends(here, msg.Abort(why[:4096]))]

    def _is_durable(self) -> bool:
        """Say whether all servers keep their state on disk."""
        return all(member.register.durable for member in self._all(SERVER))

    def _returns(self, member: Member) -> bool:
        """Say whether the job waits until a worker is started again."""
        returns = member.register.launch.returns
        if not self.complete:
            return returns or member.register.opens != CLOSED
        return returns and self._is_durable()

    def _without(self, member: Member, why: str, now_s: float) -> list[Action]:
        """Go on without a worker until it is started again."""
        if self.complete:
            return self._begin_again(now_s, why)
        del self._members[member.register.token]
        self._former[member.register.token] = why
        return sends([member], msg.Abort(why[:4096]))

    def _gather(self, now_s: float) -> list[Action]:
        """While nodes are missing: end the job when one of those that came is gone, or none comes.

        A server may come again by itself, and so may a worker whose launcher starts it again. Any
        other worker is named at once.
        """
        assert self._began_s is not None
        came = " and ".join(
            f"{self.here[role]} of {count} {role}s" for role, count in self._wanted.items()
        )
        for number, member in enumerate(self._of(WORKER, "here")):
            if silent_s := self._silent_s(member, now_s):
                name = f"worker {member.register.rank if member.register.rank >= 0 else number}"
                why = f"{name} was silent for {silent_s:.1f} s before the job was complete"
                if self._returns(member):
                    return self._without(member, why, now_s)
                return self.abort(f"{why}; {came} had come")
        if now_s - self._began_s > self._limits.join_s:
            return self.abort(f"{came} came within {self._limits.join_s:g} s (join_s)")
        for token in [t for t, m in self._members.items() if self._silent_s(m, now_s)]:
            del self._members[token]  # it may come again
        return []

    def abort(self, reason: str) -> list[Action]:
        """End the job; tell all nodes why."""
        told = [m for m in self._members.values() if m.state == "here"]
        return [*self._end(msg.Abort(reason[:4096]), told), act.Fail(reason)]

    def _end(self, last_words: msg.Message, told: Iterable[Member]) -> list[Action]:
        """Say that the job is over, and why; :mod:`.member` notes why it is said again."""
        self.over, self.finished = True, isinstance(last_words, msg.Finish)
        self.changes += 1
        self._parting.last_words = last_words
        self._parting.tokens |= {member.register.token for member in told}
        return sends(told, last_words)

    def _enter(self, peer: Peer, register: msg.Register, now_s: float) -> list[Action]:
        self._admission.require_of_job(register)
        member = self._members.get(register.token)
        if member is not None:
            is_new = register.role == SERVER and member.peer != peer  # a worker's roster has it all
            member.peer, member.heard_s, member.confirmed = peer, now_s, True
            self._alone = self._alone and register.role == SERVER
            if not self.complete:
                return self._gathered(peer, now_s)
            if self._places.are_asked(member):
                return [_heard(peer), *self._places.introduce(member)]
            return [*self._welcome([member]), *(self._missed(member) if is_new else [])]
        if register.token in self._former:
            return self._answer_former(peer, register.token)
        if self._alone:
            return [_heard(peer)]  # it registers again
        enter = self._return if self.complete else self._join
        return enter(peer, register, now_s)

    def _join(self, peer: Peer, register: msg.Register, now_s: float) -> list[Action]:
        """Take in a process while the job gathers."""
        if register.role == SERVER:
            if self._successor is not None:
                self._successor.require(register)
            if not self._admission.has_turn(register, now_s):
                return []  # it registers again
        elif self._admission.is_started_again(register):
            self._began_s = now_s
            for member in self._all(WORKER):  # those that live register once more
                del self._members[member.register.token]
        if len(self._of(register.role, "here")) == self._wanted[register.role]:
            if self._admission.predecessor(register, complete=self.complete) is not None:
                return []  # it registers again: until the first is given up, or all are there
            if self._admission.may_wait(register, now_s):
                return [_heard(peer)]  # likewise
            reason = f"there are {self._wanted[register.role]} {register.role}s already"
            raise Refusal(msg.UNKNOWN, reason)
        if register.role == WORKER:
            for member in self._all(WORKER):
                member.confirmed = False
        self._members[register.token] = Member(register, peer, now_s)
        return self._gathered(peer, now_s)

    def _gathered(self, peer: Peer, now_s: float) -> list[Action]:
        """Begin if all are there; else answer ``peer``.

        One that its launcher starts again may be dead already. So all are heard once more then.
        """
        workers = self._all(WORKER)
        sure = all(m.confirmed for m in workers) or not any(map(self._returns, workers))
        return self._begin(now_s) if sure and self.here == self._wanted else [_heard(peer)]

    def _begin(self, now_s: float) -> list[Action]:
        """Begin with those who came, or go on; end the job where that cannot be."""
        registers, successor = [m.register for m in self._members.values()], self._successor
        found = begun(registers) if successor is None else successor.found(registers)
        if isinstance(found, str):
            return self.abort(found)
        self.incarnation, self._successor = found, None
        self.complete = True
        self.changes += 1
        for role in self._wanted:
            assign(self._of(role, "here"))
        for member in self._members.values():
            member.heard_s = now_s
        return self._welcome(list(self._members.values()))

    def _return(self, peer: Peer, register: msg.Register, now_s: float) -> list[Action]:
        """Let a server that was killed take its place again, with its state if it had any yet.

        Or a worker; it waits until the one of before is given up, or takes that one's place.
        """
        if self._is_durable() and self._admission.is_started_again(register):
            why = f"worker {register.rank} was started again"
            return [*self._begin_again(now_s, why), *self._enter(peer, register, now_s)]
        waits = not register.opens and self._admission.may_wait(register, now_s)
        if waits and self._is_durable():
            return [_heard(peer)]  # it registers again
        if register.role == WORKER:
            self._places.ask(peer, register, now_s)
            return [_heard(peer)]
        before = self._admission.predecessor(register, complete=self.complete)
        if register.run != self._run and before is None:
            raise Refusal(msg.UNKNOWN, COMPLETE)
        taken = self._admission.take_place(peer, register, now_s)
        if taken is None:
            raise Refusal(msg.UNKNOWN, f"there is no server {register.rank}")
        back = taken[1]
        self.changes += 1
        moved = msg.Moved(back.rank, register.address)
        workers = self._of(WORKER, "here")
        return [*self._welcome([back]), *self._missed(back), *sends(workers, moved)]

    def _missed(self, member: Member) -> list[Action]:
        """Repeat the news that a member may not have received."""
        news: list[msg.Message]
        if member.register.role == SERVER:
            lost = self._of(WORKER, "lost")  # servers go on to count on those that are waited for
            news = [msg.Lost(w.rank, 0.0) for w in lost if w.register.opens == CLOSED]
            news += [msg.Left(w.rank) for w in self._of(WORKER, "left")]
        else:
            news = [msg.Moved(s.rank, s.register.address) for s in self._all(SERVER)]
        return [action for each in news for action in sends([member], each)]

    def _welcome(self, members: list[Member]) -> list[Action]:
        roster = self._members.roster(self._run, self._durable, self.incarnation)
        found: list[Action] = []
        for member in members:
            now, step = self.incarnation, self._places.step(member)
            if step is not None:
                now = replace(now, step=step)
            found += sends([member], replace(roster, rank=member.rank, incarnation=now))
        return found

    def _hear(
        self,
        peer: Peer,
        message: msg.Heartbeat | msg.Leave | msg.Failed | msg.Stands,
        now_s: float,
    ) -> list[Action]:
        member = self._members.get(message.token)
        successor = self._successor
        if member is None or (successor is not None and successor.had_server(message.token)):
            return self._answer_former(peer, message.token)
        if member.state == "lost" and not self._comes_back(member, message):
            heard = isinstance(message, msg.Leave) and message.heard
            said = msg.Abort(f"{member.name} was silent and given up; it came back")
            return [] if heard else [act.Send(peer, said)]
        self._alone = self._alone and member.register.role == SERVER
        is_new = member.peer != peer  # what was said to it by another connection may be lost
        member.peer, member.heard_s, member.reached_s = peer, now_s, 0.0
        missed = self._missed(member) if is_new else []
        if isinstance(message, msg.Failed):
            return self._failed(peer, member, message, now_s)
        if isinstance(message, msg.Leave):
            return self._leave(peer, member, message)
        if isinstance(message, msg.Stands):
            return [*missed, *self._stood(message)]
        member.figures = message.figures or member.figures
        if message.settled and not member.settled:
            member.settled = True
            self.changes += member.register.durable
        return [_heard(peer), *missed]

    def _comes_back(self, member: Member, message: msg.Message) -> bool:
        """Take back a worker that was lost; say whether it may be: none has its place yet."""
        leaves = isinstance(message, msg.Leave) and not message.heard
        if member.register.opens and (leaves or isinstance(message, msg.Heartbeat)):
            member.state = "here"
            self.changes += 1
        return member.state == "here"

    def _failed(self, peer: Peer, member: Member, said: msg.Failed, now_s: float) -> list[Action]:
        why = f"{member.name}: {said.reason}"
        if self._returns(member):
            return self._without(member, why, now_s)
        if said.own and member.register.opens:
            return [act.Send(peer, msg.Abort(why[:4096])), *self._miss(member, why)]
        return self.abort(why)

    def _leave(self, peer: Peer, member: Member, message: msg.Leave) -> list[Action]:
        """Let a worker go; it confirms the answer, as :mod:`.member` notes."""
        if message.heard:
            self._parting.tokens.discard(message.token)
            return []
        self._parting.tokens.add(message.token)
        left = msg.Left(max(member.rank, 0))
        if member.state == "left":
            return [act.Send(peer, left)]
        member.state = "left"
        self.changes += 1
        told = [member, *self._of(SERVER, "here")]
        return [*sends(told, left), *self._end_if_alone()]

    def _answer_former(self, peer: Peer, token: str) -> list[Action]:
        """Tell a member of before to come again, or that the job goes on without it."""
        if self._successor is not None and self._successor.had_server(token):
            return [act.Send(peer, msg.Again())]
        if token not in self._former:
            raise Refusal(msg.OTHER_RUN, "not a member of this run of the job")
        return [act.Send(peer, msg.Abort(self._former[token][:4096]))]

    def _lose(self, member: Member, silent_s: float, now_s: float) -> list[Action]:
        limits, name = self._limits, member.name
        if member.register.role == SERVER:
            if member.register.durable and silent_s <= limits.given_up_s:
                return []
            kept = f", restart_s {limits.restart_s:g}" if member.register.durable else ""
            at = member.register.address
            return self.abort(f"{name} at {at} was silent for {silent_s:.1f} s{kept}")
        if self._returns(member):
            return self._without(member, f"{name} was silent for {silent_s:.1f} s", now_s)
        if member.register.opens:
            return self._miss(member, f"{name} was silent for {silent_s:.1f} s")
        member.state = "lost"
        self.changes += 1
        if not self._of(WORKER, "here") and not self._of(WORKER, "left"):
            return self.abort(f"{name} was silent for {silent_s:.1f} s, and no worker is left")
        told = [m for m in self._members.values() if m.state == "here"]
        lost = msg.Lost(member.rank, silent_s)
        return [*sends(told, lost), *self._end_if_alone()]

    def _miss(self, member: Member, why: str) -> list[Action]:
        """Wait until another process takes a lost worker's place."""
        member.state = "lost"
        self.changes += 1
        return [act.Remark(f"{why}; another process may take its place (--join)")]

    def _end_if_alone(self) -> list[Action]:
        if self._of(WORKER, "here") or self._places.lost():
            return []
        return [*self._end(msg.Finish(), self._of(SERVER, "here")), act.Stop()]

    def _silent_s(self, member: Member, now_s: float) -> float:
        """Return for how long a member that is here was silent, 0 for a time that is usual."""
        silent_s = now_s - member.heard_s
        usual_s = self._limits.silence_s
        if not self.complete or self._places.are_asked(member):
            usual_s = max(usual_s, ASKS_S)
        return silent_s if member.state == "here" and silent_s > usual_s else 0.0


def _heard(peer: Peer) -> Action:
    """Return the answer to a sign of life, where there is no news."""
    return act.Send(peer, msg.Heartbeat(""))
