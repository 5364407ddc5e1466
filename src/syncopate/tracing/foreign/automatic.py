"""Automatic: a training of plain torch recorded where ``SYNCOPATE_TRACE`` names a directory.

:mod:`syncopate.startup` begins it in every process that imports torch. A process is a rank from the
first forward or step on that it makes within a process group; until then nothing is known of it and
nothing is written. A training by ``distribute`` is captured by the engine, and not recorded here.

The file is written when the process ends and from time to time before, for processes that are
killed. No Python code runs in a process while torch writes its part (:meth:`Recording.written`), so
the times are far enough apart to cost a hundredth, and the same on all ranks: when one stands
still, all others do.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path

from syncopate.errors import ArtifactError, SyncopateError
from syncopate.output import new_directory, new_file, write_output
from syncopate.tracing import capture
from syncopate.tracing.foreign.record import Recording, reserve

SHORTEST_S = 2.0
"""How often a file is written at most."""

_SHARE = 0.01
"""What writing takes of a training at most, but for the end."""

_current: list[AutomaticRecording] = []


def begin() -> None:
    """Record what this process trains, where it does; once in a process."""
    if not _current:
        directory = os.environ.get(capture.VARIABLE, "")
        _current.append(AutomaticRecording(directory, reserve(os.environ)))


def leave() -> None:
    """Record nothing in this process after all: somebody else does."""
    for recording in _current:
        recording.leave()


class AutomaticRecording:
    """The recording of this process.

    Args:
        directory: of the run; made when there is something to write.
        entries: how many steps are kept.

    Attributes:
        path: the file; None before it was begun.
    """

    def __init__(self, directory: str, entries: int) -> None:
        self._directory = directory
        self._recording = Recording(entries)
        self._recording.noticed = self._look
        self._member: tuple[int, int] | None = None
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = self._copied = False
        self.path: Path | None = None
        atexit.register(self.finish)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def leave(self) -> None:
        """Note and write no more."""
        self._over = True
        self._recording.stop()
        self._ends.set()

    def finish(self) -> None:
        """Write what there is: the process ends."""
        if self._over:
            return
        self.leave()
        if self._thread is not None:
            self._thread.join()
        if self._member is not None and not capture.writing():
            self._write(self._member)

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
        self._thread = threading.Thread(target=self._write_on, name="syncopate-record", daemon=True)
        self._thread.start()

    def _forked(self) -> None:
        """Begin anew: this is a copy of the process that began, and may be a rank or a helper."""
        self._recording.forget()
        self._member = self.path = self._thread = None
        self._ends = threading.Event()
        self._copied = True

    def _write_on(self) -> None:
        assert self._member is not None
        every_s = SHORTEST_S
        while not self._ends.wait(every_s - time.time() % every_s):
            began_s = time.perf_counter()
            if capture.writing():
                self._over = True
                break
            self._write(self._member)
            took_s = time.perf_counter() - began_s
            # Powers of two, so that ranks that take longer pause when the others do.
            every_s = SHORTEST_S * 2 ** math.ceil(math.log2(max(took_s / _SHARE / SHORTEST_S, 1)))

    def _write(self, member: tuple[int, int]) -> None:
        """Write the file, or say once why it cannot be written."""
        rank, world_size = member
        try:
            content = self._recording.written(rank, world_size)
            if self.path is None:
                directory = new_directory(self._directory)
                self.path, file = new_file(directory, f"rank-{rank}", ".json")
                file.close()
            write_output(self.path, content)
        except (SyncopateError, OSError) as error:
            reason = error.reason if isinstance(error, ArtifactError) else error
            where = f"{capture.VARIABLE}: {self.path or self._directory}"
            print(f"syncopate: {where}: {reason}; nothing more is recorded", file=sys.stderr)
            self.leave()


def _member() -> tuple[int, int] | None:
    """Return rank and number of ranks; None where this process is none."""
    from torch import distributed  # noqa: PLC0415  # it is loaded by now

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
