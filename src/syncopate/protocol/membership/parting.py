"""Parting: who has not heard yet that a job is over; see [Note: last words] in ``member``."""

from __future__ import annotations

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action, Peer
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.admission import Admission
from syncopate.protocol.membership.members import Members, Reaches
from syncopate.protocol.messages import Refusal

_PART_S = 2.0


class Parting:
    """The members that have not confirmed that the job is over.

    Attributes:
        tokens: theirs.
        last_words: what members hear when the job is over.
    """

    def __init__(
        self, members: Members, admission: Admission, limits: Limits, *, finished: bool
    ) -> None:
        """Begin with no member, or where the job had ``finished`` with all."""
        self.tokens = set(members) if finished else set[str]()
        self.last_words: msg.Message = msg.Finish()
        self._members, self._admission = members, admission
        self._limits = limits
        self._over_s: float | None = None

    def is_over(self, now_s: float, reaches: Reaches) -> bool:
        """Say whether all members that may still hear that the job is over have answered."""
        if self._over_s is None:
            self._over_s = now_s
        if now_s - self._over_s <= _PART_S:
            return not self.tokens
        away = [self._members[token] for token in self.tokens]
        return not any(
            now_s - member.heard_s <= self._limits.silence_s
            or member.may_return(now_s - member.heard_s, self._limits, reaches)
            for member in away
        )

    def answer(self, peer: Peer, message: msg.Message, now_s: float) -> list[Action]:
        """Answer nodes that did not hear that the job is over.

        Raises:
            Refusal: it is no member.
        """
        # A server that was killed, and comes back to a job that is over, hears the end.
        if isinstance(message, msg.Register) and self._admission.is_of_run(message):
            taken = self._admission.take_place(peer, message, now_s)
            if taken is not None:
                self.tokens.discard(taken[0])
                self.tokens.add(message.token)
        token = getattr(message, "token", "")
        if token not in self._members:
            raise Refusal(msg.OTHER_RUN, "the job is over")
        member = self._members[token]
        member.peer, member.heard_s, member.reached_s = peer, now_s, 0.0
        if isinstance(message, msg.Leave):
            if message.heard:
                self.tokens.discard(token)
                return []
            return [act.Send(peer, msg.Left(max(member.rank, 0)))]
        return [act.Send(peer, self.last_words)]
