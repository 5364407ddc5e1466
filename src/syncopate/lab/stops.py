"""Stops: the signals that end a lab, so that none of them ends it without tidying up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()


class Stops:
    """What SIGINT, SIGTERM and SIGHUP do while a lab stands.

    Usually they unwind the stack: SIGINT as :class:`KeyboardInterrupt`, the others as
    :class:`SystemExit` with 128 + n. Inside :meth:`collected` they only queue up, to be passed on
    to the ranks; inside :meth:`held` they wait, so that removing a lab is never cut short.

    Outside the main thread, where Python delivers no signals, it changes nothing.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._new: list[int] = []
        self._collecting = False
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
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Queue signals for the block instead of unwinding it."""
        self.received, self._new, self._collecting = [], [], True
        try:
            yield
        finally:
            self._collecting = False

    def take(self) -> list[int]:
        """Return the signals that arrived since the last call."""
        new, self._new = self._new, []
        return new

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let signals wait until the block has ended."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A fork that has not reached its own code yet, such as pyroute2 makes to enter a
            # namespace and then terminates: unwinding it would remove its parent's lab.
            os._exit(128 + number)
        if self._collecting:
            self.received.append(number)
            self._new.append(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)
