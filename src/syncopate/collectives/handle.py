"""Handle: a collective that was submitted, and what became of it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from syncopate.collectives.nccl.streams import Completion

_POLL_S = 0.25


class Handle:
    """One submitted collective.

    On CPU the collective is over when :meth:`wait` returns. With NCCL, as in torch, :meth:`wait`
    orders the current stream after the collective and does not block the host; reading a stamp
    does.

    Attributes:
        launched_s: when it was submitted, by ``time.perf_counter``.
    """

    def __init__(self) -> None:
        self.launched_s = time.perf_counter()
        # A lock held until the collective is over: an Event takes ten times as long to make.
        self._open = threading.Lock()
        self._open.acquire()
        self._over = False
        self._error: BaseException | None = None
        self._completion: Completion | None = None
        self._stamps = (math.nan, math.nan)
        self._calls: list[Callable[[], None]] = []

    def wait(self) -> None:
        """Return when the collective is over.

        Raises:
            CollectiveError: it did not finish; the error names the ranks held responsible.
        """
        # A wait with a limit lets Ctrl-C through on every platform.
        while not self._over:
            if self._open.acquire(timeout=_POLL_S):
                self._open.release()
        if self._error is not None:
            raise self._error
        if self._completion is not None:
            self._completion.wait()

    def wait_for(self, limit_s: float) -> bool:
        """Wait until the host's part of the collective is over; say whether it came in time."""
        if not self._over and self._open.acquire(timeout=limit_s):
            self._open.release()
        return self._over

    @property
    def error(self) -> BaseException | None:
        """What the collective failed with; None if it did not, or not yet."""
        return self._error

    def when_over(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once the host's part is over, on the thread that ended it.

        It may submit collectives to the same channel, which then run at once.
        """
        self._calls.append(call)
        if self._over:
            self._call()

    def done(self) -> bool:
        """Say whether the collective is over, well or badly, without blocking."""
        if not self._over:
            return False
        return self._completion is None or self._completion.done()

    @property
    def started_s(self) -> float:
        """When the collective began to run, by ``time.perf_counter``; NaN before it is over."""
        return self._resolved()[0]

    @property
    def finished_s(self) -> float:
        """When the collective ended, by ``time.perf_counter``; NaN before it is over."""
        return self._resolved()[1]

    def _resolved(self) -> tuple[float, float]:
        if self._completion is not None and self._over:
            self._stamps = self._completion.stamps()
            self._completion = None
        return self._stamps

    def _finish(
        self,
        started_s: float,
        finished_s: float,
        error: BaseException | None = None,
        completion: Completion | None = None,
    ) -> None:
        """Record the outcome; called once, by the channel that ran the collective."""
        self._stamps = (started_s, finished_s)
        self._error = error
        self._completion = completion
        self._over = True
        self._open.release()
        self._call()

    def _call(self) -> None:
        # Two threads may be here at the same time; each call is taken out by one of them.
        with suppress(IndexError):
            while True:
                self._calls.pop(0)()


def finished() -> Handle:
    """Return the handle of a collective that moved nothing, and is over."""
    handle, now_s = Handle(), time.perf_counter()
    handle._finish(now_s, now_s)
    return handle
