"""Stops: signals that end a command, so that none of them ends it without tidying up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """The handling of SIGINT, SIGTERM and SIGHUP while a lab stands, or processes of a job run.

    In the user's own code they unwind the stack: SIGINT as :class:`KeyboardInterrupt`, the others
    as :class:`SystemExit` with 128 + n. In deferred blocks they wait until they are asked for: an
    exception between any two instructions, such as between the start of a process and the note of
    it, or in a library that is making a namespace, can be lost or leave something behind.

    Outside the main thread, where Python delivers no signals, it changes nothing.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._deferring = 0
        self._before: dict[int, Callable[..., Any] | int | None] = {}
        self._process = os.getpid()

    def install(self) -> None:
        """Take over the signals."""
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # A signal that was ignored, as nohup does with SIGHUP, stays ignored.
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give the signals back; forget those that still wait."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        self._pending.clear()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold signals back for the length of the block; raise what came after it."""
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1
        if not self._deferring:
            self.check()

    def check(self) -> None:
        """Raise for a signal that waits.

        Raises:
            KeyboardInterrupt: for SIGINT.
            SystemExit: for the others.
        """
        for number in self.take()[:1]:
            _unwind(number)

    def take(self) -> list[int]:
        """Return the signals that wait, in the order of their arrival; none waits any more."""
        taken, self._pending = self._pending, []
        return taken

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A fork that has not come to its own code yet, such as those in which pyroute2 enters a
        # namespace, must neither unwind its parent's stack nor be torn from its work.
        if os.getpid() != self._process:
            return
        if self._deferring:
            self._pending.append(number)
        else:
            _unwind(number)


def _unwind(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
