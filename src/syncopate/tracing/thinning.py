"""Thinning: which blocks of a trace file stay, when it is written anew with less in it.

The file is gone through twice, a block at a time: first to learn how long iterations took and what
each takes in the file, then to keep what :mod:`syncopate.tracing.retention` chooses. Of a node of a
parameter server, whose rows belong to no iteration, the newest are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.tracing.recorder import COMPUTING, RECORD, UNPLACED
from syncopate.tracing.retention import Pace, Retention, kept

_BLOCK_BYTES = 1 << 16
"""What is kept is gathered into blocks of about this size."""


class Thinning:
    """Goes through the blocks of one file twice.

    Args:
        retention: what to keep.
        of_rank: whether it is a rank's file; else a node's.
        patient: whether to leave most of the time to others.
    """

    def __init__(self, retention: Retention, *, of_rank: bool, patient: bool) -> None:
        self._retention = retention
        self._of_rank = of_rank
        self._pace = Pace(patient)
        self._sizes: list[int] = []
        # Iteration -> [begin, end of computation, bytes].
        self._seen: dict[int, list[float]] = {}
        self._order: NDArray[np.int64] = np.empty(0, np.int64)
        self._ends_s: NDArray[np.float64] = np.empty(0)
        self._kept: NDArray[np.int64] = np.empty(0, np.int64)
        self._from = self._skipped = 0
        self._waiting: list[bytes] = []
        self._before: bytes | None = None
        self._said: dict[str, Any] = {}

    def see(self, is_note: bool, payload: bytes) -> None:
        """Learn what a block holds."""
        if is_note:
            return
        self._sizes.append(len(payload))
        if self._of_rank:
            self._learn(np.frombuffer(payload, RECORD))
        self._pace.rest()

    def _learn(self, records: NDArray[np.void]) -> None:
        records = records[records["iteration"] != UNPLACED]
        order = np.argsort(records["iteration"], kind="stable")
        records = records[order]
        numbers, begins = np.unique(records["iteration"], return_index=True)
        if not len(numbers):
            return
        computes = np.isin(records["lane"], COMPUTING)
        ends = np.where(computes, records["end_s"], -np.inf)
        starts = np.where(computes, records["start_s"], np.inf)
        ends_s = np.maximum.reduceat(ends, begins).tolist()
        starts_s = np.minimum.reduceat(starts, begins).tolist()
        counts = np.diff([*begins.tolist(), len(records)]).tolist()
        for number, start_s, end_s, count in zip(
            numbers.tolist(), starts_s, ends_s, counts, strict=True
        ):
            mine = self._seen.setdefault(number, [np.inf, -np.inf, 0.0])
            mine[0], mine[1] = min(mine[0], start_s), max(mine[1], end_s)
            mine[2] += count * RECORD.itemsize

    def choose(self) -> None:
        """Choose the blocks to keep, after all blocks were seen."""
        if not self._of_rank:
            newest = np.cumsum(self._sizes[::-1])
            fits = int(np.searchsorted(newest, self._retention.target_bytes, side="right"))
            self._from = len(self._sizes) - fits
            return
        iterations = np.array(sorted(self._seen), np.int64)
        table = np.array([self._seen[int(number)] for number in iterations]).reshape(-1, 3)
        if not len(iterations):
            return
        begins_s, ends_s = table[:, 0], table[:, 1]
        durations_s = ends_s - begins_s
        follows = np.flatnonzero(np.diff(iterations) == 1)
        durations_s[follows] = begins_s[follows + 1] - begins_s[follows]
        durations_s = np.where(np.isfinite(durations_s), durations_s, 0.0)
        found, every = kept(iterations, durations_s, table[:, 2].astype(np.int64), self._retention)
        self._kept = iterations[found]
        self._order, self._ends_s = iterations, np.maximum.accumulate(ends_s)
        gaps = np.flatnonzero(~found)
        if len(gaps):
            self._said = {"thinned": {"before": int(iterations[gaps[-1]]) + 1, "every": every}}

    def keep(self, is_note: bool, payload: bytes) -> Iterator[tuple[bool, bytes]]:
        """Yield the kept blocks that are known with this one."""
        self._pace.rest()
        if is_note:
            yield from self._notes(payload)
            return
        if not self._of_rank:
            self._skipped += 1
            if self._skipped > self._from:
                yield False, payload
            return
        records = np.frombuffer(payload, RECORD).copy()
        nowhere = records["iteration"] == UNPLACED
        if nowhere.any():
            # A pause belongs to the computation that ends next, which may go.
            place = np.searchsorted(self._ends_s, records["start_s"][nowhere], side="right")
            last = len(self._order) - 1
            there = self._order[np.minimum(place, last)] if last >= 0 else place
            records["iteration"][nowhere] = np.where(place <= last, there, UNPLACED)
        stays = np.isin(records["iteration"], self._kept) | (records["iteration"] == UNPLACED)
        self._waiting.append(records[stays].tobytes())
        if sum(map(len, self._waiting)) >= _BLOCK_BYTES:
            yield from self._gathered()

    def rest(self) -> Iterator[tuple[bool, bytes]]:
        """Yield what stays and was not yielded yet."""
        yield from self._gathered()
        if self._before is not None:
            yield True, self._before
        if self._said:
            yield True, msgspec.json.encode(self._said)

    def _notes(self, payload: bytes) -> Iterator[tuple[bool, bytes]]:
        """Keep what is said once; of what connections carried, the last before what is kept."""
        note = msgspec.json.decode(payload)
        if "thinned" in note:
            self._said = self._said or note
        elif "links" not in note or not self._of_rank:
            yield True, payload
        elif self._said and note.get("iteration", 0) < self._said["thinned"]["before"]:
            self._before = payload
        else:
            if self._before is not None:
                yield True, self._before
                self._before = None
            yield True, payload

    def _gathered(self) -> Iterator[tuple[bool, bytes]]:
        payload = b"".join(self._waiting)
        self._waiting = []
        if payload:
            yield False, payload
