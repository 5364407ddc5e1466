"""Before: what the rows of a table were before the last update, of those that it changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from syncopate.paramserver.rows.index import Slots


class Before:
    """Rows as they were at one moment.

    Attributes:
        count: how many there were.
        steps: how many updates the optimizer had counted.
    """

    def __init__(self, count: int, steps: int) -> None:
        """Begin at that moment."""
        self.count, self.steps = count, steps
        self._slots = np.empty(0, np.int64)  # ascending
        self._values: dict[str, Tensor] = {}

    def note(self, slots: Slots, columns: Mapping[str, Tensor]) -> None:
        """Keep values that are about to change; those of rows that changed before are kept."""
        there = np.unique(slots[slots < self.count])
        new = there[~np.isin(there, self._slots)] if len(self._slots) else there
        if not len(new):
            return
        slots = np.concatenate([self._slots, new])
        order = np.argsort(slots)
        self._slots, places = slots[order], torch.from_numpy(order)
        for name, column in columns.items():
            values = column.index_select(0, torch.from_numpy(new))
            if name in self._values:
                values = torch.cat([self._values[name], values])
            self._values[name] = values[places]

    def put(self, name: str, slots: Slots, values: Tensor) -> None:
        """Write the kept values of a column over those of now.

        Args:
            name: of the column.
            slots: which rows; -1: none.
            values: of now, shape (slots, width).
        """
        if not len(self._slots):
            return
        places = np.searchsorted(self._slots, slots).clip(max=len(self._slots) - 1)
        kept = np.flatnonzero(self._slots[places] == slots)
        if len(kept):
            values[torch.from_numpy(kept)] = self._values[name][torch.from_numpy(places[kept])]
