"""Node: what server and worker share: a wire, membership, and a loop that looks at both."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from syncopate.paramserver.membership import TICK_S, Membership
from syncopate.paramserver.wire.sockets import Arrival, Wire
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.awake import AwakeClock

_DRAIN_S = 0.5


def new_token() -> str:
    """Return a random number that no other node has."""
    return secrets.token_hex(16)


class Node:
    """A member of the job.

    Attributes:
        member: its side of membership.
        wire: its sockets to other nodes than the scheduler.
    """

    def __init__(self, wire: Wire, register: msg.Register, limits: Limits, scheduler: str) -> None:
        """Join the job.

        Args:
            wire: on which a server listens already.
            register: how this process introduces itself.
            limits: what it waits for.
            scheduler: the scheduler's address.
        """
        self.wire = wire
        wire.tap.counters.queued = wire.queued
        self.member = Membership(wire, register, limits, scheduler)
        self._ticked_s = 0.0
        self._clock = AwakeClock()

    def now_s(self) -> float:
        """Return the time by which this node waits; its own pauses do not count."""
        return self._clock.at(time.monotonic())

    def step(
        self,
        do: Callable[[list[Action]], None],
        take: Callable[[Arrival], None],
        tick: Callable[[float], None],
    ) -> None:
        """Wait for something to happen, for a moment.

        Args:
            do: carries out what membership asks for.
            take: takes in what came from other nodes than the scheduler.
            tick: called now and then with the time.
        """
        self.wire.flush()
        self.wire.wait(TICK_S)
        self.take_in(do, take, tick)

    def take_in(
        self,
        do: Callable[[list[Action]], None],
        take: Callable[[Arrival], None],
        tick: Callable[[float], None],
    ) -> None:
        """Do the second half of :meth:`step`: take in what came, and tick."""
        do(self.member.news())
        for arrival in self.wire.read():
            take(arrival)
        now_s = self.now_s()
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            tick(now_s)

    def part(self) -> None:
        """Wait until the scheduler has confirmed the end, and send what is left."""
        while not self.member.out:
            self.step(lambda _: None, lambda _: None, lambda _: None)
        self.wire.drain(_DRAIN_S)

    def close(self) -> None:
        """Close all sockets; after :meth:`part`."""
        self.wire.close()
        self.member.close()

    def send(self, action: act.Send) -> None:
        """Send a message without a payload."""
        if action.to == act.SCHEDULER:
            self.member.say(action)
        else:
            self.wire.send(action.to, action.message, action.priority)
