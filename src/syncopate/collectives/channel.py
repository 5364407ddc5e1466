"""Channel: one collective at a time, in the order of submission.

Each channel has a process group of its own. All ranks must submit the same collectives to a channel
in the same order: that is what makes it free of deadlock. Different channels are independent, so
that one's latency hides behind another's transfer.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]
"""Runs one collective and records its outcome in a handle; never raises for a failed collective."""


class Channel:
    """The queue of one process group.

    A job runs on the caller's thread when it may block and the channel is idle, which saves two
    thread switches; otherwise on the channel's own thread, started when first needed. The thread
    is a daemon: it never keeps a process alive that was told to end.

    Args:
        index: its number within the communicator.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._numbers = itertools.count()
        self._jobs: deque[Job] = deque()
        self._running = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def take_number(self) -> int:
        """Return the number of the next collective, counted from 0 and the same on all ranks."""
        return next(self._numbers)

    def run(self, job: Job, *, background: bool) -> bool:
        """Run ``job`` after those before it, unless the channel is closed; say whether it will.

        Args:
            job: the collective.
            background: leave it to the channel's thread; otherwise it runs here and now if the
                channel is idle.
        """
        with self._changed:
            if self._closed:
                return False  # the thread may have ended, and nobody would ever run it
            inline = not (background or self._running or self._jobs)
            if inline:
                self._running = True
            else:
                self._jobs.append(job)
                self._start()
                self._changed.notify_all()
        if inline:
            self._finish_running(job)
        return True

    def close(self, timeout_s: float) -> bool:
        """Let the queued jobs finish, then end the thread; say whether it ended in time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"syncopate-channel-{self.index}", daemon=True
            )
            self._thread.start()

    def _finish_running(self, job: Job) -> None:
        try:
            job()
        finally:
            with self._changed:
                self._running = False
                if self._jobs:
                    self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._running or not self._jobs:
                    if self._closed and not self._jobs:
                        return
                    self._changed.wait()
                job = self._jobs.popleft()
                self._running = True
            self._finish_running(job)
            del job  # it holds the tensor
