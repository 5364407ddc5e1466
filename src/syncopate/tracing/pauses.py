"""Pauses: why a rank stood still, as far as its script says so, or Python does.

Garbage collections are noted by themselves; evaluations and checkpoints where the script has
``syncopate.pause`` around them. A collection may begin anywhere, in the recorder too, so nothing
here takes a lock.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import Any

import numpy as np

from syncopate.artifacts.timeline import PAUSES
from syncopate.tracing.recorder import COMPUTING, UNPLACED, Event, Records

SHORTEST_S = 5e-4
"""Garbage collections that take less are not noted: there are thousands of them."""

_COLLECTION = PAUSES[1]
_CAPACITY = 4096


class Pauses:
    """Those of one process that are not written yet."""

    def __init__(self) -> None:
        self._noted: deque[tuple[str, float, float]] = deque(maxlen=_CAPACITY)
        self._began_s = 0.0

    def begin(self) -> None:
        """Note garbage collections from now on."""
        gc.callbacks.append(self._collects)

    def end(self) -> None:
        """Stop recording them."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def note(self, name: str, start_s: float, end_s: float) -> None:
        """Note a pause, by ``time.perf_counter``."""
        self._noted.append((name, start_s, end_s))

    def take(self) -> list[Event]:
        """Return those noted so far, and forget them; :func:`placed` knows their iterations."""
        found = []
        while self._noted:
            name, start_s, end_s = self._noted.popleft()
            found.append(Event("wait", start_s, end_s, UNPLACED, detail=name))
        return found

    def _collects(self, phase: str, _: dict[str, Any]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._began_s = now_s
        elif now_s - self._began_s >= SHORTEST_S:
            self.note(_COLLECTION, self._began_s, now_s)


def placed(records: Records) -> Records:
    """Return records with each pause in the iteration that it holds up.

    That is the iteration of the computation that ends next. Pauses before the first computation and
    behind the last hold up none, and are left out.
    """
    nowhere = records["iteration"] == UNPLACED
    if not nowhere.any():
        return records
    computing = np.sort(records[np.isin(records["lane"], COMPUTING)], order="end_s")
    found = records.copy()
    if len(computing):
        place = np.searchsorted(computing["end_s"], found["start_s"], side="right")
        inside = (found["start_s"] >= computing["start_s"].min()) & (place < len(computing))
        iterations = computing["iteration"][np.minimum(place, len(computing) - 1)]
        found["iteration"] = np.where(nowhere & inside, iterations, found["iteration"])
    kept: Records = found[found["iteration"] != UNPLACED]
    return kept
