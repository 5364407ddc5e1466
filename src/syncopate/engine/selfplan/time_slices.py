"""Time slices: work that communicates, done a little after every step of training.

The work runs on a thread of its own, but never beside the training: the caller of :meth:`resume`
waits while it goes on, until it has had its portion. It pauses where it reports its progress, which
every rank does at the same points; rank 0's clock decides for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from syncopate.collectives import Communicator
from syncopate.output import Progress

T = TypeVar("T")


class _StoppedError(BaseException):
    """Raised inside the work to end it."""


class TimeSlices(Generic[T]):
    """Work that runs in slices of time.

    Args:
        communicator: the ranks; all of them do the same work.
        work: called with the progress to report; communicates between reports.
    """

    def __init__(self, communicator: Communicator, work: Callable[[Progress], T]) -> None:
        self._communicator = communicator
        self._work = work
        self._go = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._until_s = 0.0
        self._stopped = False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.over = False

    @property
    def result(self) -> T:
        """What the work returned, once it is over."""
        return self._result[0]

    def resume(self, portion_s: float) -> bool:
        """Go on for about ``portion_s``; say whether the work is over. Every rank calls it.

        Raises:
            Exception: what the work raised.
        """
        self._until_s = time.perf_counter() + portion_s
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="syncopate-portions", daemon=True
            )
            self._thread.start()
        self._go.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error
        return self.over

    def stop(self) -> None:
        """End the work at its next report."""
        if self._thread is not None and not self.over:
            self._stopped = True
            self._go.release()
            self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._stopped:
                self._result.append(self._work(self._progress))
        except _StoppedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.over = True
            self._paused.release()

    def _progress(self, _: str, __: float) -> None:
        late: bool = self._communicator.broadcast_object(time.perf_counter() > self._until_s)
        if not late:
            return
        self._paused.release()
        self._go.acquire()
        if self._stopped:
            raise _StoppedError
