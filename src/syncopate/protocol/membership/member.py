"""Member: a server's or worker's side of membership: join, heartbeats, a silent scheduler.

[Note: last words] A connection that is closed may take what was said last with it, though it had
left: TCP drops what the other side has not read when something comes that this side will not read.
So last words are answered, and said again until they are. A node that leaves or fails waits for the
answer, for a moment, and confirms it. The scheduler waits until all nodes have confirmed before it
ends, or until those that have not would be given up.
"""

from __future__ import annotations

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER, Action
from syncopate.protocol.figures import Figures
from syncopate.protocol.limits import Limits, was_cut_off

REGISTER_S = 1.0
"""Between two times that a process asks to be let in."""

ASKS_S = 3 * REGISTER_S
"""A process that waits for the job is gone after so much silence, at the earliest."""

_AGAIN_S = 0.3
_PART_S = 2.0


class MemberMachine:
    """The scheduler's counterpart in a server or worker.

    Attributes:
        roster: all nodes; None until the job is complete.
        over: whether the job is over for this process.
        out: whether it also has nothing more to say.
        figures: what it says of itself in heartbeats; None: nothing.
        settled: whether it has written down, where it keeps state, which member it is.
    """

    def __init__(self, register: msg.Register, limits: Limits, scheduler: str) -> None:
        """Begin without a rank.

        Args:
            register: how this process introduces itself.
            limits: what it waits for.
            scheduler: the scheduler's address, for errors.
        """
        self.roster: msg.Roster | None = None
        self.over = False
        self.out = False
        self.figures: Figures | None = None
        self.settled = not register.durable or register.run != ""
        self._last_words: msg.Message | None = None
        self._parted_s: float | None = None
        self._register = register
        self._limits = limits
        self._scheduler = scheduler
        self._began_s: float | None = None
        self._heard_s: float | None = None
        self._said_s = 0.0
        # After how much silence there was a connection for the last time.
        self._reached_s = 0.0

    def tick(self, now_s: float, is_connected: bool = False) -> list[Action]:
        """Send due messages, and notice a silent scheduler; call it often.

        Args:
            now_s: the time.
            is_connected: whether there is a connection to the scheduler; it may then have been
                stopped or cut off, and be no more than silent.
        """
        if self.over:
            return self._part(now_s)
        if self._began_s is None:
            self._began_s = now_s
            return self._say(self._register, now_s)
        joined = self.roster is not None
        silent_s = 0.0 if self._heard_s is None else now_s - self._heard_s
        if not joined and now_s - self._began_s > self._limits.join_s:
            return self._give_up(self.waits_for(f"within {self._limits.join_s:g} s (join_s)"))
        if is_connected:
            self._reached_s = silent_s
        if joined and silent_s > self._patience_s(is_connected or was_cut_off(self._reached_s)):
            reason = f"the scheduler at {self._scheduler} was silent for {silent_s:.1f} s"
            return self._give_up(reason)
        if now_s - self._said_s < (self._limits.heartbeat_s if joined else REGISTER_S):
            return []
        alive = msg.Heartbeat(self._register.token, self.figures, self.settled)
        return self._say(alive if joined else self._register, now_s)

    def receive(self, message: msg.Message, now_s: float) -> list[Action]:
        """Take in what the scheduler said."""
        self._heard_s, self._reached_s = now_s, 0.0
        found: list[Action] = []
        if self.over:
            return self._answered(message)
        if isinstance(message, msg.Roster) and self.roster is None:
            self.roster = message
            found = [act.Told(message)]
        elif isinstance(message, msg.Lost | msg.Left | msg.Moved | msg.Taken):
            found = [act.Told(message)]
        elif isinstance(message, msg.Again) and self._register.durable:
            self.over = self.out = True
            found = [act.BeginAgain()]
        elif isinstance(message, msg.Finish):
            self.over = self.out = True
            found = [self._goodbye(), act.Stop()]
        elif isinstance(message, msg.Abort):
            found = [self._goodbye(), *self._give_up(message.reason)]
        elif isinstance(message, msg.Refused):
            found = self._give_up(f"the scheduler at {self._scheduler} refused: {message.reason}")
        return found

    def leave(self) -> list[Action]:
        """Say that this process is done."""
        return self._say_last(msg.Leave(self._register.token))

    def fail(self, reason: str, *, own: bool = False) -> list[Action]:
        """Tell the scheduler that the job should end, unless it knows.

        Args:
            reason: a sentence.
            own: whether a worker's script raised: another process may do better in its place.
        """
        if self.over:
            return []
        return self._say_last(msg.Failed(self._register.token, reason[:4096], own))

    def _patience_s(self, may_return: bool) -> float:
        """Return how long the scheduler may be silent.

        The others wait for a server that keeps state, and all wait for a scheduler that does. A
        server that was cut off does not know that it was; so it waits for them as they do for it.

        Args:
            may_return: whether it may only have been stopped or cut off.
        """
        limits, roster = self._limits, self.roster
        kept = self._register.durable or (roster is not None and roster.durable)
        return limits.given_up_s if kept or may_return else limits.silence_s

    def _say_last(self, message: msg.Message) -> list[Action]:
        self.over = True
        self.out = self._heard_s is None  # no scheduler is there to hear it
        self._last_words = message
        return [act.Send(SCHEDULER, message)]

    def _part(self, now_s: float) -> list[Action]:
        """Repeat this process's last message until it is answered; see [Note: last words]."""
        if self.out or self._last_words is None:
            self.out = True
            return []
        if self._parted_s is None:
            self._parted_s = self._said_s = now_s
        # A scheduler that keeps its state and hears nothing would take this process for lost.
        kept = self.roster is not None and self.roster.durable
        if now_s - self._parted_s > (self._patience_s(False) if kept else _PART_S):
            self.out = True
            return []
        return self._say(self._last_words, now_s) if now_s - self._said_s >= _AGAIN_S else []

    def _answered(self, message: msg.Message) -> list[Action]:
        mine = self.roster is None or getattr(message, "rank", -1) == self.roster.rank
        ends = isinstance(message, msg.Abort | msg.Finish | msg.Refused)
        if self.out or not (ends or (isinstance(message, msg.Left) and mine)):
            return []
        self.out = True
        return [self._goodbye()]

    def _goodbye(self) -> Action:
        return act.Send(SCHEDULER, msg.Leave(self._register.token, heard=True))

    def _say(self, message: msg.Message, now_s: float) -> list[Action]:
        self._said_s = now_s
        return [act.Send(SCHEDULER, message)]

    def _give_up(self, reason: str) -> list[Action]:
        self.over = self.out = True
        return [act.Fail(reason)]

    def waits_for(self, how_long: str) -> str:
        """Return the error of a process without a roster; ``how_long`` it waited, in words."""
        if self._heard_s is None:
            where = f"at {self._scheduler} {how_long}"
            return f"no scheduler answered {where}: is it there, is the key one?"
        return f"the job was not complete {how_long}: some server or worker did not come"
