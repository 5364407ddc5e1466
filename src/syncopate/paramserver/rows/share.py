"""Share: what one server keeps of a table: rows that were touched, and gradients that wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from syncopate.paramserver.rows.before import Before
from syncopate.paramserver.rows.frames import SomeRows, payload_of, rows_of
from syncopate.paramserver.rows.hashing import Ids, initial_rows
from syncopate.paramserver.rows.index import RowIndex, Slots
from syncopate.paramserver.rows.updates import Chosen, beginning, update_rows
from syncopate.paramserver.tensors import dtype_of
from syncopate.protocol.actions import Initialise, Stage, Update
from syncopate.protocol.placement.piece import TableSlice
from syncopate.protocol.rules import STEPS, Updater

IDS, WEIGHTS = "ids", "weights"
_LEAST = 256


class TableShare:
    """What one server keeps of a table.

    A row is kept from its first push on. A pull of others computes what they are.

    Attributes:
        begun: whether worker 0's first value, or a part of it, has come.
    """

    def __init__(self, spec: TableSlice) -> None:
        """Keep nothing yet."""
        assert spec.slice.table is not None
        self.begun = False
        assert not isinstance(spec.rules.optimizer, Updater)  # ``require_rows`` refuses it
        self._table, self._optimizer = spec.slice.table, spec.rules.optimizer
        self._index = RowIndex()
        self._ids = np.empty(0, np.int64)
        self._steps = 0
        self._first = {WEIGHTS: 0.0} | beginning(spec.rules)
        dtype = dtype_of(self._table.dtype)
        self._columns = {
            name: torch.empty(0, self._table.width, dtype=dtype) for name in self._first
        }
        self._changed = np.empty(0, np.bool_)
        self._keeps_before = spec.rules.keeps_before
        # Rows as they were before the last update; None: not kept, or there was none.
        self._before: Before | None = None
        # By worker and sequence number: parts by number, and whether a backward reached the table.
        self._staged: dict[tuple[int, int], dict[int, Tensor]] = {}
        self._reached: dict[tuple[int, int], bool] = {}

    @property
    def waiting(self) -> int:
        """How many pushes are held until an update takes them."""
        return len(self._staged)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept, as it is written to disk."""
        return self._index.count * self._table.row_bytes(len(self._columns))

    def stage(self, action: Stage, data: Tensor) -> None:
        """Hold the bytes of a push, or of a part of it, until an update takes them."""
        number = action.worker, action.sequence
        self._staged.setdefault(number, {})[action.number] = data
        self._reached[number] = action.reached

    def initialise(self, action: Initialise) -> None:
        """Take what is staged as rows, and what follows them as the optimizer's state."""
        for rows in self._take((action.worker, 0), action.state):
            self._put(rows)
        self._steps, self.begun = action.steps, True

    def update(self, action: Update) -> None:
        """Add gradients row by row, in the order given, and apply their mean.

        A row that some of them have not counts as zeros there.
        """
        if self._keeps_before:
            self.keep_before()
        reached = [self._reached[number] for number in action.gradients]
        gradients = [rows for number in action.gradients for rows in self._take(number)]
        ids, total = _sum(gradients, self._table.width)
        if len(action.gradients) > 1:
            total.div_(len(action.gradients))
        self._steps += any(reached)
        if not len(ids):
            return
        slots = self._slots(ids)
        state = {name: column for name, column in self._columns.items() if name != WEIGHTS}
        rows = Chosen(torch.from_numpy(slots), self._columns[WEIGHTS], state)
        update_rows(self._optimizer, action.lr, rows, total, self._steps)

    def keep_before(self) -> None:
        """Keep what is here, because another version follows."""
        self._before = Before(self._index.count, self._steps)

    def unstage(self, worker: int, sequence: int) -> None:
        """Drop the parts that came of a push."""
        self._staged.pop((worker, sequence), None)
        self._reached.pop((worker, sequence), None)

    def rows(self, ids: Ids, *, before: bool = False) -> Tensor:
        """Return rows as they are now, or were before the last update; shape (rows, width)."""
        slots = self._index.find(ids)
        if not before:
            return self._rows(ids, slots)
        assert self._before is not None
        slots = np.where(slots < self._before.count, slots, -1)
        found = self._rows(ids, slots)
        self._before.put(WEIGHTS, slots, found)
        return found

    def _rows(self, ids: Ids, slots: Slots) -> Tensor:
        new = slots < 0
        if not new.any():
            return self._columns[WEIGHTS].index_select(0, torch.from_numpy(slots))
        found = torch.empty(len(ids), self._table.width, dtype=self._columns[WEIGHTS].dtype)
        here = torch.from_numpy(~new)
        found[here] = self._columns[WEIGHTS][torch.from_numpy(slots[~new])]
        found[~here] = initial_rows(self._table, ids[new])
        return found

    def kept(
        self, begin: int, count: int, *, before: bool = False
    ) -> tuple[int, int, tuple[str, ...], Tensor]:
        """Return some of the rows that are kept, in the order in which they came to be.

        Args:
            begin: the first of them.
            count: how many at most.
            before: whether as they were before the last update.

        Returns:
            How many are kept, how many updates the optimizer counted, names of what it remembers
            in the order of the payload, and the payload.
        """
        held, steps, old = self._index.count, self._steps, self._before if before else None
        if old is not None:
            held, steps = old.count, old.steps
        end = max(begin, min(begin + count, held))
        columns = {name: column[begin:end] for name, column in self._columns.items()}
        if old is not None:
            columns = {name: column.clone() for name, column in columns.items()}
            for name, column in columns.items():
                old.put(name, np.arange(begin, end), column)
        names = tuple(name for name in self._columns if name != WEIGHTS)
        payload = payload_of(self._ids[begin:end].copy(), [*columns.values()])
        return held, steps, names, payload

    def snapshot(self, *, whole: bool) -> dict[str, Tensor]:
        """Return what changed since the last call, or all that is kept; copies, by name."""
        count = self._index.count
        slots = np.arange(count) if whole else np.flatnonzero(self._changed[:count])
        self._changed[:] = False
        places = torch.from_numpy(slots)
        found = {IDS: torch.from_numpy(self._ids[slots])}
        for name, column in self._columns.items():
            found[name] = column.index_select(0, places).view(-1)
        return found | {STEPS: torch.tensor([self._steps])}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what :meth:`snapshot` returned; of several the oldest first."""
        columns = {name: tensors[name].view(-1, self._table.width) for name in self._columns}
        self._put(SomeRows(tensors[IDS].numpy(), columns.pop(WEIGHTS), columns))
        self._steps, self.begun = int(tensors[STEPS].item()), True
        self._changed[:] = False

    def _take(self, number: tuple[int, int], state: tuple[str, ...] = ()) -> list[SomeRows]:
        parts = self._staged.pop(number)
        del self._reached[number]
        return [rows_of(parts[part], self._table, state) for part in sorted(parts)]

    def _put(self, rows: SomeRows) -> None:
        """Give rows values."""
        slots = torch.from_numpy(self._slots(rows.ids, new_values=False))
        self._columns[WEIGHTS][slots] = rows.values
        for name, first in self._first.items():
            if name != WEIGHTS:
                self._columns[name][slots] = rows.state.get(name, first)

    def _slots(self, ids: Ids, *, new_values: bool = True) -> Slots:
        """Return where rows are that are about to change; make those that are new."""
        slots = self._index.find(ids)
        new = slots < 0
        if new.any():
            made = ids[new]
            slots[new] = self._index.add(made)
            self._grow()
            begin, end = self._index.count - len(made), self._index.count
            self._ids[begin:end] = made
            if new_values:
                for name, first in self._first.items():
                    self._columns[name][begin:end] = first
                self._columns[WEIGHTS][begin:end] = initial_rows(self._table, made)
        if self._before is not None:
            self._before.note(slots, self._columns)
        self._changed[slots] = True
        return slots

    def _grow(self) -> None:
        """Have room for all rows: twice as much as before where there is none."""
        room = len(self._ids)
        if self._index.count <= room:
            return
        more = max(_LEAST, 2 * room, self._index.count)
        self._ids = np.concatenate([self._ids, np.empty(more - room, np.int64)])
        self._changed = np.concatenate([self._changed, np.zeros(more - room, np.bool_)])
        for name, column in self._columns.items():
            grown = column.new_empty(more, self._table.width)
            grown[:room] = column
            self._columns[name] = grown


def _sum(gradients: Sequence[SomeRows], width: int) -> tuple[Ids, Tensor]:
    """Return the sum of gradients row by row, added in their order."""
    gradients = [rows for rows in gradients if len(rows.ids)]
    if not gradients:
        return np.empty(0, np.int64), torch.empty(0, width)
    if len(gradients) == 1:
        return gradients[0].ids, gradients[0].values
    ids, places = np.unique(np.concatenate([rows.ids for rows in gradients]), return_inverse=True)
    total, begin = gradients[0].values.new_zeros(len(ids), width), 0
    for rows in gradients:
        here = torch.from_numpy(places[begin : begin + len(rows.ids)])
        total.index_copy_(0, here, total.index_select(0, here).add_(rows.values))
        begin += len(rows.ids)
    return ids, total
