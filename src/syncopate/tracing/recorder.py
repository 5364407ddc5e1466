"""Recorder: a ring of one rank's events, of fixed size, that counts what it has no room for.

An event is a row of a numpy array. Texts (algorithms) are kept once, in a table, and rows have
their index. A reader that empties the ring, such as a writer of files, makes room.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.timelines.spans import LANES, PAUSES, Spans
from syncopate.errors import UnknownNameError

RECORD = np.dtype(
    [
        ("lane", "u1"),
        ("model", "u1"),
        ("channel", "<u2"),
        ("iteration", "<i4"),
        ("bucket", "<i4"),
        ("detail", "<u4"),
        ("nbytes", "<i8"),
        ("start_s", "<f8"),
        ("end_s", "<f8"),
        ("launched_s", "<f8"),
        ("ready_s", "<f8"),
    ]
)
"""One event: 56 bytes, as they lie in memory and in files."""

Records = NDArray[np.void]

CAPACITY = 1 << 20
"""Events that a recorder holds at most: memory is only used as they come."""

_LANE = {lane: place for place, lane in enumerate(LANES)}

COMPUTING = tuple(_LANE[lane] for lane in ("forward", "backward", "update"))
"""The lanes of computation, as records have them."""

UNPLACED = -1
"""The iteration of a pause: :func:`~syncopate.tracing.pauses.placed` finds which it holds up."""


class Event(NamedTuple):
    """An event of a rank; times by its ``time.perf_counter``, NaN where they are not known.

    Attributes:
        lane: one of :data:`syncopate.artifacts.timeline.LANES`.
        start_s: when it began.
        end_s: when it was over.
        iteration: of the training.
        bucket: of the plan; -1: of none.
        channel: which channel carried it.
        nbytes: bytes communicated.
        detail: the algorithm; of a pause, which.
        launched_s: when it was handed to its channel.
        ready_s: when all gradients of the bucket were there.
        model: which model of this process, in the order of ``distribute``.
    """

    lane: str
    start_s: float
    end_s: float
    iteration: int = 0
    bucket: int = -1
    channel: int = 0
    nbytes: int = 0
    detail: str = ""
    launched_s: float = math.nan
    ready_s: float = math.nan
    model: int = 0


class Recorder:
    """Holds one rank's events until they are taken; any thread may call it.

    Args:
        capacity: events that it holds at most.

    Attributes:
        dropped: events that came while it was full.
        texts: the details of events, by index.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self.texts: list[str] = []
        self._index: dict[str, int] = {}
        self._ring: Records = np.empty(capacity, RECORD)
        self._first = self._count = 0
        self._lock = threading.Lock()

    def add(self, events: Sequence[Event]) -> bool:
        """Note events that belong together: all of them, or none where there is no room.

        Returns:
            Whether there was room.

        Raises:
            UnknownNameError: no such lane.
        """
        with self._lock:
            capacity, count = len(self._ring), len(events)
            if self._count + count > capacity:
                self.dropped += count
                return False
            rows = np.array([self._row(event) for event in events], RECORD)
            at = (self._first + self._count) % capacity
            fits = min(count, capacity - at)
            self._ring[at : at + fits] = rows[:fits]
            self._ring[: count - fits] = rows[fits:]
            self._count += count
            return True

    def drop(self, count: int) -> None:
        """Count events that could not be noted."""
        with self._lock:
            self.dropped += count

    def records(self) -> Records:
        """Return a copy of what is held, in order of recording."""
        with self._lock:
            return self._copy()

    def take(self) -> Records:
        """Return what is held, in order of recording, and make room."""
        with self._lock:
            found = self._copy()
            self._first = (self._first + self._count) % len(self._ring)
            self._count = 0
            return found

    def _copy(self) -> Records:
        places = np.arange(self._first, self._first + self._count) % len(self._ring)
        found: Records = self._ring[places]
        return found

    def _row(self, event: Event) -> tuple[Any, ...]:
        lane = _LANE.get(event.lane)
        if lane is None:
            raise UnknownNameError("lane", event.lane, LANES)
        detail = self._index.get(event.detail)
        if detail is None:
            detail = self._index[event.detail] = len(self.texts)
            self.texts.append(event.detail)
        return (
            lane, event.model, event.channel, event.iteration, event.bucket, detail,
            event.nbytes, event.start_s, event.end_s, event.launched_s, event.ready_s,
        )  # fmt: skip


def spans_of(
    records: Records,
    texts: Sequence[str],
    rank: int,
    *,
    models: Mapping[int, str] | None = None,
) -> Spans:
    """Return records as spans.

    Args:
        records: rows of :data:`RECORD`.
        texts: details by index.
        rank: whose they are.
        models: what to put before the names of spans, by model; nothing where there is none.
    """
    prefixes = models or {}
    bucket = np.maximum(records["bucket"], -1)
    kinds = (bucket + 1) << 16 | records["model"].astype(np.int64) << 8
    kinds |= np.where(bucket < 0, records["lane"], 0)
    found, name = np.unique(kinds, return_inverse=True)
    names = []
    for kind in found.tolist():
        what = f"bucket {(kind >> 16) - 1}" if kind >> 16 else LANES[kind & 255]
        names.append(prefixes.get(kind >> 8 & 255, "") + what)
    columns = {field: records[field] for field in Spans.DTYPES if field in (RECORD.names or ())}
    own = {"name": name, "rank": np.full(len(records), rank)}
    own["detail"] = records["detail"].astype(np.int64) + len(names)
    pauses = [number for number, text in enumerate(texts) if text in PAUSES]
    paused = (records["lane"] == _LANE["wait"]) & np.isin(records["detail"], pauses)
    own["name"] = np.where(paused, own["detail"], name)
    return Spans([*names, *texts], columns | own)
