"""Outlet: one file that a capture writes, and what waits to be written to it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncopate.tracing.trace_file import TraceWriter

_log = logging.getLogger("syncopate")


class Waiting(Protocol):
    """What holds records until they are taken: a recorder, or the ring of a node."""

    dropped: int
    texts: list[str]

    def take(self) -> NDArray[np.void]:
        """Return what is held, in order, and make room."""

    def drop(self, count: int) -> None:
        """Count records that could not be noted."""


class Outlet:
    """A file, and the records and notes that wait for it; one thread at a time flushes.

    Attributes:
        waiting: where records wait.
        writer: of the file; None before there is one.
        broken: whether it could not be written.
    """

    def __init__(self, waiting: Waiting, writer: TraceWriter | None = None) -> None:
        self.waiting = waiting
        self.writer = writer
        self.broken = False
        self._notes: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._said = (0, 0)

    @property
    def path(self) -> Path | None:
        """The file; None before there is one."""
        return None if self.writer is None else self.writer.path

    def note(self, note: dict[str, Any]) -> None:
        """Write something that is no record, before the records that come; any thread may."""
        with self._lock:
            self._notes.append(note)

    def flush(self) -> None:
        """Write what waits; what cannot be written counts as dropped."""
        if self.writer is None or self.broken:
            return
        waiting = self.waiting
        records, texts = waiting.take(), len(waiting.texts)
        with self._lock:
            notes, self._notes = self._notes, []
        if (texts, waiting.dropped) != self._said:
            fresh = waiting.texts[self._said[0] : texts]
            notes.append({"texts": fresh, "dropped": waiting.dropped})
            self._said = (texts, waiting.dropped)
        try:
            self.writer.write(records, notes)
        except OSError as error:
            # The training matters more. What still comes finds the ring full.
            reason = f"cannot write: {error.strerror}; nothing more is captured"
            _log.warning("%s: %s", self.path, reason)
            waiting.drop(len(records))
            self.broken = True
