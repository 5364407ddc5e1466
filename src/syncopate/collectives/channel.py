"""Channel: one collective at a time, in the order of submission.

Each channel has a process group of its own. All ranks must submit the same collectives to a channel
in the same order: that is what makes it free of deadlock. Different channels are independent, so
that one's latency hides behind another's transfer.

[Note: what the end of a job submits]
A callback may submit collectives as a job ends, such as PowerSGD's do. By then one rank may have
queued the job after it, and another not yet. So the callback's collectives run at once, before all
that is queued: on every rank directly after the job that ended. Numbers are therefore taken as
collectives begin to run. The callback must be attached before its rank submits the next collective.

[Note: at the end of the process]
A program may end while its last collective is still under way, as the weights of the last step are.
The other ranks need this one's part in it; and a thread that comes back from C++ while the
interpreter ends is ended by it in the midst of C++, which aborts the process. So the interpreter
waits for what was submitted, and a moment longer: Gloo's own thread lets go of the tensors after
it has said that it is done. The failure detector ends what a lost rank never answers.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Job = Callable[[], None]
"""Runs one collective and records its outcome in a handle; never raises for a failed collective."""


_LAST_S = 30.0
"""How long the end of the process waits for collectives that are under way."""

_LET_GO_S = 0.1
"""How much longer, for threads that are not ours."""

_started: weakref.WeakSet[Channel] = weakref.WeakSet()
"""Channels with a thread; a forked child has none."""

os.register_at_fork(after_in_child=_started.clear)


class Channel:
    """The queue of one process group.

    A job runs on the caller's thread when it may block and the channel is idle, which saves two
    thread switches; otherwise on the channel's own thread, started when first needed. The thread
    is a daemon: once nothing is left to run, it does not keep a process alive.

    Args:
        index: its number within the communicator.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._numbers = itertools.count()
        self._jobs: deque[Job] = deque()
        self._running = False
        self._ends_on = 0  # the thread on which a job says that it is over
        self._closed = False
        self._resting = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def take_number(self) -> int:
        """Return the number of the collective that begins to run, from 0; the same on all ranks."""
        return next(self._numbers)

    def run(self, job: Job, *, background: bool) -> bool:
        """Run ``job`` after those before it, unless the channel is closed; say whether it will.

        Args:
            job: the collective.
            background: leave it to the channel's thread; otherwise it runs here and now if the
                channel is idle.
        """
        if self._ends_on == threading.get_ident():
            return self._run_amid(job)
        with self._changed:
            if self._closed:
                return False  # the thread may have ended, and it would never run
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

    def _run_amid(self, job: Job) -> bool:
        """Run ``job`` here and now; see [Note: what the end of a job submits]."""
        with self._changed:
            if self._closed:
                return False
        job()
        return True

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Let what is called in this block submit jobs, and wait for them; in the midst of a job.

        They run at once, on this thread: see [Note: what the end of a job submits].
        """
        outer, self._ends_on = self._ends_on, threading.get_ident()
        try:
            yield
        finally:
            self._ends_on = outer

    def rest(self, timeout_s: float) -> bool:
        """Wait until no job is left; say whether that was in time."""
        with self._changed:
            self._resting = True  # otherwise the last job's end wakes no waiter
            return self._changed.wait_for(lambda: not (self._running or self._jobs), timeout_s)

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
            if not _started:
                # As late as this: what ends the process group has been registered before.
                atexit.unregister(_let_end)
                atexit.register(_let_end)
            _started.add(self)
            self._thread.start()

    def _finish_running(self, job: Job) -> None:
        try:
            job()
        finally:
            with self._changed:
                self._running = False
                if self._jobs or self._resting:
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


def _let_end() -> None:
    """See [Note: at the end of the process]."""
    until_s = time.monotonic() + _LAST_S
    for channel in list(_started):
        channel.rest(max(until_s - time.monotonic(), 0.0))
    if _started:
        time.sleep(_LET_GO_S)
