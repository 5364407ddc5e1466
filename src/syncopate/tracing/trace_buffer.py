"""Trace buffer: one file that a capture writes, and what waits to be written to it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncopate.tracing.trace_file import TraceWriter

_log = logging.getLogger("syncopate")

_MOST_NOTES = 1024
"""Notes that wait at most while the disk is full."""


class Waiting(Protocol):
    """A buffer of records: a recorder, or the ring of a node."""

    dropped: int
    texts: list[str]

    def take(self) -> NDArray[np.void]:
        """Return the held records, in order, and make room."""

    def drop(self, count: int) -> None:
        """Count records that could not be noted."""


class BufferedTrace:
    """A file, and the records and notes that wait for it; one thread at a time flushes.

    Attributes:
        waiting: where records wait.
        writer: of the file; None before there is one.
        broken: whether nothing is written any more, because the file was removed.
    """

    def __init__(self, waiting: Waiting, writer: TraceWriter | None = None) -> None:
        self.waiting = waiting
        self.writer = writer
        self.broken = False
        self._notes: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._known = (0, 0)
        self._complained = False

    @property
    def path(self) -> Path | None:
        """The file; None before there is one."""
        return None if self.writer is None else self.writer.path

    def note(self, note: dict[str, Any]) -> None:
        """Write something that is no record, before the records that come; any thread may."""
        with self._lock:
            self._notes.append(note)

    def flush(self) -> None:
        """Write what waits; what cannot be written counts as dropped, and is said once."""
        if self.writer is None or self.broken:
            return
        waiting = self.waiting
        records, texts, dropped = waiting.take(), len(waiting.texts), waiting.dropped
        with self._lock:
            notes, self._notes = self._notes, []
        told = list(notes)
        if (texts, dropped) != self._known:
            begin = self._known[0]
            told.append({"texts": waiting.texts[begin:texts], "from": begin, "dropped": dropped})
        try:
            self.writer.write(records, told)
        except OSError as error:
            self._lose(error, records, notes)
            return
        self._known = (texts, dropped)

    def thin(self, *, last: bool = False) -> None:
        """Write the file anew with less in it, where it has grown.

        Args:
            last: nothing follows, for now: keep no more than was asked for.
        """
        if self.writer is None or self.broken:
            return
        try:
            self.writer.thin(last=last)
        except OSError as error:
            self._complain(f"cannot write it anew: {error.strerror or error}; it is as it was")

    def _lose(self, error: OSError, records: NDArray[np.void], notes: list[dict[str, Any]]) -> None:
        """Go on without records that cannot be written: the training matters more.

        A disk may have room again. Notes are few, and the records to come need them.
        """
        self.waiting.drop(len(records))
        if isinstance(error, FileNotFoundError):
            self.broken = True  # what still comes finds the ring full
            self._complain(f"{error.strerror}; nothing more is captured")
            return
        with self._lock:
            self._notes = (notes + self._notes)[-_MOST_NOTES:]
        reason = error.strerror or str(error)
        self._complain(f"cannot write: {reason}; what comes until it can be is dropped")

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s: %s", self.path, what)
