"""Automatic: a training of plain torch recorded where ``SYNCOPATE_TRACE`` names a directory.

:mod:`syncopate.startup` begins it in every process that imports torch. A process is a rank from the
first forward or step on that it makes within a process group; until then nothing is known of it and
nothing is written. A training by ``distribute`` is captured by the engine, and not recorded here.

What is new is appended to the file every two seconds, so a process that is killed loses no more.
torch writes down what its recorder holds, new or not, and no Python code runs in the process
meanwhile (:meth:`Recording.take`). So the recorder is small, and is emptied earlier where it would
overflow. Ranks do it at the same moments of the clock: when one stands still, all others do.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path

from syncopate.errors import ArtifactError, SyncopateError
from syncopate.output import new_directory
from syncopate.tracing import capture
from syncopate.tracing.foreign.recording.record import RING, Recording, reserve
from syncopate.tracing.foreign.recording.recorded_file import LIMIT_BYTES, RecordedWriter
from syncopate.tracing.retention import Retention, retention

EVERY_S = 2.0
"""How often what is new is written."""

_LOOK = 8
"""How many times in between it is seen whether the recorder fills up."""

_FULL = 0.8
"""The recorder is emptied before it is fuller than this."""

_SHARE = 0.05
"""What writing takes of a training at most, but for the end: a hundredth where the user did not ask
for a larger recorder and collectives do not come by the thousand in a second."""

_PATIENCE_S = 10.0
"""How long a process that ends waits for a disk."""

_current: list[AutomaticRecording] = []


def begin() -> None:
    """Record what this process trains, where it does; once in a process."""
    if not _current:
        directory = os.environ.get(capture.VARIABLE, "")
        keep = retention(limit_bytes_default=LIMIT_BYTES)
        entries = reserve(os.environ)
        _current.append(AutomaticRecording(directory, entries, keep))


def leave() -> None:
    """Record nothing in this process after all: another recorder does."""
    for recording in _current:
        recording.leave()


class AutomaticRecording:
    """The recording of this process.

    Args:
        directory: of the run; made when there is something to write.
        entries: how many collectives torch's recorder keeps.
        keep: which iterations stay in long runs; None: the defaults.
        member: rank and number of ranks, where they are known from the start; None: a process is
            a rank when it steps within a process group.
    """

    def __init__(
        self,
        directory: str,
        entries: int,
        keep: Retention | None = None,
        member: tuple[int, int] | None = None,
    ) -> None:
        self._directory = directory
        self._entries = entries
        self._keep = keep or Retention(limit_bytes=LIMIT_BYTES)
        self._recording = Recording(max(entries, RING))
        self._writer: RecordedWriter | None = None
        self._complained = self._refused = False
        self._took_s = 0.0
        self._recording.noticed = self._look
        self._member, self._told = member, member is not None
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = self._copied = False
        atexit.register(self.finish)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        if self._told:
            self._begin()

    @property
    def path(self) -> Path | None:
        """The file; None before it was begun."""
        return None if self._writer is None else self._writer.path

    def leave(self) -> None:
        """Stop recording and writing."""
        self._over = True
        self._recording.stop()
        self._ends.set()

    def finish(self) -> None:
        """Write what there is: the process ends."""
        if self._over:
            return
        self.leave()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                return  # the disk hangs
        if self._member is not None and not capture.writing() and not self._refused:
            self._write(self._member, last=True)

    def _look(self, steps: bool) -> None:
        """See whether this process is a rank by now: it is about to step, or begins a forward.

        A copy of a rank, such as one that loads data, may well call modules.
        """
        if self._member is not None or self._over or (self._copied and not steps):
            return
        if capture.writing():
            self.leave()
            return
        self._member = _member()
        if self._member is None:
            return
        if multiprocessing.parent_process() is not None:
            util.Finalize(None, self.finish, exitpriority=0)  # a forked process has no atexit
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._write_on, name="syncopate-record", daemon=True)
        self._thread.start()

    def _forked(self) -> None:
        """Begin anew: this is a copy of the process that began, and may be a rank or a helper."""
        self._recording.forget()
        if self._told:  # of the process that made this copy
            self.leave()
        self._member = self._writer = self._thread = None
        self._refused = self._complained = False
        self._ends = threading.Event()
        self._copied = True

    def _write_on(self) -> None:
        assert self._member is not None
        # By the wall clock, which ranks share; a clock that is set makes one writing more.
        look_s, turn = EVERY_S / _LOOK, _turn()
        rest_until_s, seen, written = 0.0, 0, 0
        while not self._ends.wait(look_s - time.time() % look_s):
            if capture.writing():
                self._over = True
                break
            launched = self._recording.launched()
            new, by_next = launched - written, launched - seen
            seen = launched
            fills = new + by_next > _FULL * self._entries
            if (_turn() == turn and not fills) or time.monotonic() < rest_until_s:
                continue
            turn, written = _turn(), launched
            self._write(self._member)
            rest_until_s = time.monotonic() + self._took_s / _SHARE

    def _write(self, member: tuple[int, int], *, last: bool = False) -> None:
        """Append what is new, or say once why it cannot be written."""
        try:
            if self._writer is None:
                directory = new_directory(self._directory)
                about = self._recording.about(*member)
                self._writer = RecordedWriter(directory, about, self._keep)
            began_s = time.perf_counter()
            block = self._recording.take()
            self._took_s = time.perf_counter() - began_s
            self._writer.write(block)
        except FileNotFoundError as error:
            self._refuse(error.strerror)
            return
        except (SyncopateError, OSError) as error:
            if self._writer is None:
                self._refuse(error.reason if isinstance(error, ArtifactError) else error)
            else:
                self._complain(f"cannot write: {error}; what comes until it can be is dropped")
            return
        try:
            self._writer.thin(last=last)
        except OSError as error:
            self._complain(f"cannot write it anew: {error.strerror or error}; it is as it was")

    def _refuse(self, reason: object) -> None:
        self._complain(f"{reason}; nothing more is recorded")
        self._refused = True
        self.leave()

    def _complain(self, what: str) -> None:
        """Log the first error, and go on training."""
        if not self._complained:
            self._complained = True
            where = f"{capture.VARIABLE}: {self.path or self._directory}"
            print(f"syncopate: {where}: {what}", file=sys.stderr)


def _turn() -> int:
    """Return which stretch of the clock it is."""
    return int(time.time() // EVERY_S)


def _member() -> tuple[int, int] | None:
    from torch import distributed  # noqa: PLC0415  # it is loaded by now

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
