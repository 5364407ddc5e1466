"""Membership: what a server or worker says to the scheduler, in a thread of its own.

[Note: starved heartbeats] A node may compute for seconds, or have ten thousand slices to send. So
heartbeats have a thread and a connection of their own: they go out while the node computes, and
wait for none of its messages. What the scheduler says is news, which the node takes when it looks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from syncopate.paramserver.wire.sockets import Wire
from syncopate.protocol import actions as act
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER, Action
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.awake import AwakeClock
from syncopate.protocol.membership.member import MemberMachine

_log = logging.getLogger("syncopate")
_DRAIN_S = 0.5
_PATIENCE_S = 60.0
"""How long a process waits for its job before it says so."""

TICK_S = 0.05
"""How often machines are asked what is due."""


class Membership:
    """A thread that joins the job, says that this process lives, and hears what became of others.

    All methods may be called by any thread.
    """

    def __init__(self, wire: Wire, register: msg.Register, limits: Limits, scheduler: str) -> None:
        """Join a job by a connection beside ``wire``, which is woken when there is news.

        Args:
            wire: of the node.
            register: how this process introduces itself.
            limits: what it waits for.
            scheduler: the scheduler's address.
        """
        self._machine = MemberMachine(register, limits, scheduler)
        self._wire = wire.beside()
        self._tell = wire.wake
        self._news: deque[Action] = deque()
        self._lock = threading.Lock()
        self._to_say: deque[act.Send] = deque()
        self._clock = AwakeClock()
        self._wire.connect(SCHEDULER, scheduler)
        self._thread = threading.Thread(target=self._run, name="syncopate-heartbeat", daemon=True)
        self._thread.start()

    @property
    def out(self) -> bool:
        """Whether it is over here, and the scheduler has confirmed that or had the time to."""
        return not self._thread.is_alive()

    def news(self) -> list[Action]:
        """Return what the node has to do since the last call, in its order."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def settle(self) -> None:
        """Say from now on that this process has written down which member it is."""
        with self._lock:
            self._machine.settled = True

    def leave(self) -> None:
        """Say that this process is done."""
        with self._lock:
            self._do(self._machine.leave())
        self._wire.wake()

    def fail(self, reason: str, *, own: bool = False) -> None:
        """Tell the scheduler that the job should end, unless it knows; ``own`` as the machine."""
        with self._lock:
            self._do(self._machine.fail(reason, own=own))
        self._wire.wake()

    def say(self, action: act.Send) -> None:
        """Tell the scheduler something."""
        with self._lock:
            self._do([action])
        self._wire.wake()

    def close(self) -> None:
        """Wait for the end of the thread, and close its connection; after :attr:`out`."""
        self._thread.join()
        self._wire.close()

    def _run(self) -> None:
        try:
            said_at_s = time.monotonic() + _PATIENCE_S
            while not self._machine.out:
                self._step()
                if time.monotonic() > said_at_s:
                    said_at_s = float("inf")
                    if self._machine.roster is None and not self._machine.over:
                        told = self._machine.waits_for(f"within {_PATIENCE_S:g} s")
                        _log.warning("%s; it is waited for (join_s)", told)
            self._send()
            self._wire.drain(_DRAIN_S)
        except Exception as error:  # the node has to hear of it
            self._news.append(act.Fail(f"membership: {type(error).__name__}: {error}"))
            self._tell()

    def _step(self) -> None:
        self._send()
        for _, message in self._wire.heard(codec.FromScheduler, TICK_S):
            with self._lock:
                self._do(self._machine.receive(message, self._now_s()))
        with self._lock:
            self._machine.figures = self._wire.tap.counters.figures()
            self._do(self._machine.tick(self._now_s(), self._wire.reaches(SCHEDULER)))
        self._send()

    def _now_s(self) -> float:
        return self._clock.at(time.monotonic())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, act.Send):
                self._to_say.append(action)
            else:
                self._news.append(action)
                self._tell()

    def _send(self) -> None:
        while self._to_say:
            action = self._to_say.popleft()
            self._wire.send(action.to, action.message, action.priority)
        self._wire.flush()
