"""Node: what server and worker share: a wire, membership, and a loop that drives both."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable

from syncopate.paramserver.wire.sockets import Arrival, Wire
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER, Action
from syncopate.protocol.limits import Limits
from syncopate.protocol.member import MemberMachine
from syncopate.protocol.messages import Refusal

_log = logging.getLogger("syncopate")
_DRAIN_S = 0.5
_PATIENCE_S = 60.0
"""How long a process waits for its job before it says so."""

TICK_S = 0.05
"""How often machines are asked what is due."""


def new_token() -> str:
    """Return a random number that no other node has."""
    return secrets.token_hex(16)


class Node:
    """A member of the job.

    Attributes:
        member: its side of membership.
        wire: its sockets.
    """

    def __init__(self, wire: Wire, register: msg.Register, limits: Limits, scheduler: str) -> None:
        """Connect to the scheduler.

        Args:
            wire: on which a server listens already.
            register: how this process introduces itself.
            limits: what it waits for.
            scheduler: the scheduler's address.
        """
        self.wire = wire
        self.member = MemberMachine(register, limits, scheduler)
        wire.connect(SCHEDULER, scheduler)
        self._ticked_s = 0.0
        self._said_at_s = time.monotonic() + _PATIENCE_S

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
        for arrival in self.wire.read():
            if arrival.peer == SCHEDULER:
                try:
                    message, _ = self.wire.opened(msg.FromScheduler, arrival)
                except Refusal:
                    continue
                do(self.member.receive(message, time.monotonic()))
            else:
                take(arrival)
        now_s = time.monotonic()
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            do(self.member.tick(now_s))
            tick(now_s)
            if now_s > self._said_at_s:
                self._said_at_s = math.inf
                if self.member.roster is None and not self.member.over:
                    told = self.member.waits_for(f"within {_PATIENCE_S:g} s")
                    _log.warning("%s; it is waited for (join_s)", told)

    def part(self) -> None:
        """Wait until the scheduler has heard the last words; send what is left."""
        while not self.member.out:
            self.step(self._only_send, lambda _: None, lambda _: None)
        self.wire.drain(_DRAIN_S)

    def _only_send(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, act.Send):
                self.send(action)

    def send(self, action: act.Send) -> None:
        """Send a message without a payload."""
        self.wire.send(action.to, action.message, action.priority)
