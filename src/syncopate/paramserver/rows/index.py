"""Index: where in memory a row is, many at a time.

A hash table with linear probing, at most half full. All rows that are looked for are probed at
once; those that another row's number was found for go on to the next place together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncopate.paramserver.rows.hashing import Ids, hash_of

_FREE = -1
_LEAST = 1024

Slots = NDArray[np.int64]
"""Places in memory, shape (rows,)."""


class RowIndex:
    """Numbers of rows, each with a slot; slots count from 0.

    Attributes:
        count: how many rows there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._ids = np.full(_LEAST, _FREE, np.int64)
        self._slots = np.empty(_LEAST, np.int64)

    def find(self, ids: Ids) -> Slots:
        """Return the slot of each row; -1 for those that have none."""
        found = np.full(len(ids), _FREE, np.int64)
        left, places = np.arange(len(ids)), self._first(ids)
        while len(left):
            there = self._ids[places]
            hit = there == ids[left]
            found[left[hit]] = self._slots[places[hit]]
            on = ~hit & (there != _FREE)
            left, places = left[on], self._next(places[on])
        return found

    def add(self, ids: Ids) -> Slots:
        """Give rows that have none the next slots; return them.

        Args:
            ids: each once.
        """
        if 2 * (self.count + len(ids)) > len(self._ids):
            held = self._ids != _FREE
            old_ids, old_slots = self._ids[held], self._slots[held]
            size = 1 << (2 * (self.count + len(ids))).bit_length()
            self._ids = np.full(size, _FREE, np.int64)
            self._slots = np.empty(size, np.int64)
            self._put(old_ids, old_slots)
        slots = np.arange(self.count, self.count + len(ids))
        self._put(ids, slots)
        self.count += len(ids)
        return slots

    def _put(self, ids: Ids, slots: Slots) -> None:
        places = self._first(ids)
        while len(ids):
            free = self._ids[places] == _FREE
            self._ids[places[free]] = ids[free]  # of several rows for one place one stays
            won = self._ids[places] == ids
            self._slots[places[won]] = slots[won]
            on = ~won
            ids, slots, places = ids[on], slots[on], self._next(places[on])

    def _first(self, ids: Ids) -> Slots:
        return (hash_of(ids) & np.uint64(len(self._ids) - 1)).view(np.int64)

    def _next(self, places: Slots) -> Slots:
        return (places + 1) & (len(self._ids) - 1)
