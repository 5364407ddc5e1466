"""Successor: gathers the next incarnation of a run, and finds the step that it goes on from.

[Note: incarnations] A scheduler that keeps its state, and comes back to workers of which none says
a word for ``silence_s``, takes it that all processes were killed, such as by a loss of power. It
then gathers the same number of new workers, and its servers with what they have on disk. Servers
say from which steps they can go on; the newest that all can is the incarnation's. Servers go back
to it before any worker hears of them, and write that down: what a server had beyond is gone.
Workers begin with these weights, and count their pushes on from the step.

[Note: workers that return] A launcher such as torchrun starts all workers again when one of them
dies. Workers say so when they register. Where all servers keep state, the job then goes on in the
same way: when the scheduler gives a worker up, a worker says that it failed, or one comes with a
higher count of restarts in the place of one that is in. Workers of before that are still there hear
that the job has no place for them any more. New ones that come too early wait until then.

[Note: a job that moves] Workers may bring a job from other servers: they register with the step at
which it is. Until servers here have all that worker 0 brings, the job is still whole where it was:
what some of them have of it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from syncopate.protocol import messages as msg
from syncopate.protocol.membership.incarnation import NOTHING, Incarnation
from syncopate.protocol.membership.members import Seated
from syncopate.protocol.messages import Refusal


def begun(registers: Collection[msg.Register]) -> Incarnation | str:
    """Return the first incarnation of a run; why there is none, in words."""
    steps = {each.steps for each in registers if each.role == msg.WORKER}
    if len(steps) == 1:
        return Incarnation(origin=max(steps.pop() or (), default=NOTHING))
    told = ", ".join(
        f"worker {each.rank}: {f'step {max(each.steps)}' if each.steps else 'none'}"
        for each in registers
        if each.role == msg.WORKER
    )
    return f"workers do not bring the same step of one job here ({told})"


def common_step(offers: Iterable[tuple[int, ...] | None]) -> int | None:
    """Return the newest step that all servers can go on from; None: there is none.

    Args:
        offers: of each server the steps that it can go on from; None: any.
    """
    sets = [set(offer) for offer in offers if offer is not None]
    common = set.intersection(*sets) if sets else {NOTHING}
    return NOTHING if NOTHING in common else max(common, default=None)


class Successor:
    """The next incarnation of a run, while its processes gather.

    Attributes:
        before: members of the incarnation before.
    """

    def __init__(self, before: tuple[Seated, ...], incarnation: Incarnation) -> None:
        """Follow ``incarnation``, of which the members ``before`` were."""
        self.before = before
        self._incarnation = incarnation
        self._servers = {each.rank: each for each in before if each.role == msg.SERVER}

    def had_server(self, token: str) -> bool:
        """Say whether a server of the incarnation before had this token."""
        return any(each.token == token for each in self._servers.values())

    def require(self, register: msg.Register) -> None:
        """Refuse a server that is none of the incarnation before, or comes without its state.

        Raises:
            Refusal: it is, or does.
        """
        former = self._servers.get(register.rank)
        if former is not None and (register.run or not former.settled):
            return
        reason = (
            f"the job goes on from what its servers have on disk: server {register.rank} is none "
            "of them, or comes without its folder; give all their folders, or all empty ones"
        )
        raise Refusal(msg.OTHER_RUN, reason)

    def found(self, registers: Collection[msg.Register]) -> Incarnation | str:
        """Return the incarnation that all are there for; why there is none, in words."""
        if any(each.steps is not None for each in registers if each.role == msg.WORKER):
            return "the job here goes on by itself: another one cannot be moved to its servers"
        registers = [each for each in registers if each.role == msg.SERVER]
        offers = [each.steps if each.run else (NOTHING,) for each in registers]
        before = self._incarnation
        if before.origin != NOTHING:
            offers = [o and tuple(step for step in o if step != NOTHING) for o in offers]
            if any(offer == () for offer in offers):
                return "the job had not moved here when all was killed: go on where it was"
        step = common_step(offers)
        if step is not None:
            return Incarnation(before.number + 1, step, before.origin)
        had = "; ".join(
            f"server {each.rank}: {', '.join(map(str, each.steps or ())) or 'none'}"
            for each in sorted(registers, key=lambda each: each.rank)
        )
        return (
            f"there is no step that all servers can go back to ({had}): workers that wait for all "
            "their pushes in every step leave one. Go on from a checkpoint, with empty folders"
        )
