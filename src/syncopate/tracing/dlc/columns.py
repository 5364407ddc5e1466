"""Columns: the records of a trace, a row of numbers each.

A row takes 85 bytes. What a record waited for is a row's numbers too: which numbers stand before
the names of the peers, and these names from a table, as nearly all records of a trace name the same
peers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.columns import Columns
from syncopate.artifacts.timelines.spans import Numbers
from syncopate.errors import InvalidValueError
from syncopate.tracing.dlc.records import Dependency, Operation, Record, SetUp

OPERATIONS: tuple[Operation, ...] = tuple(Operation)
"""By their numbers in a column; from ``len(OPERATIONS)`` on, a number names a set-up record."""

_DEPENDENCIES = tuple(Dependency)


class Waited(NamedTuple):
    """How a record names what it waited for.

    Attributes:
        many: whether the names are written as a list.
        heads: which numbers stand before each of ``ends``: 2: a key and the number of an
            operation; 1: the latter alone; 0: none.
        ends: peers; with ``heads`` 0, whole names, as they are spelled.
    """

    many: bool
    heads: int
    ends: tuple[str, ...]

    def names(self, key: int, number: int) -> tuple[str, ...]:
        """Return the names with these numbers."""
        if self.heads == 0:
            return self.ends
        head = f"{key}-{number}-" if self.heads == 2 else f"{number}-"
        return tuple([head + end for end in self.ends])

    @classmethod
    def of(cls, names: tuple[str, ...], many: bool) -> tuple[Waited, int, int]:
        """Return how names are made, and of which key and number."""
        head = names[0].rpartition("-")[0] if names else ""
        key, dash, number = head.partition("-")
        heads = 2 if key and dash else 1
        try:
            values = (int(key), int(number)) if heads == 2 else (0, int(head))
        except ValueError:
            return cls(many, 0, names), 0, 0
        made = cls(many, heads, tuple([name[len(head) + 1 :] for name in names]))
        small = fits("waited_key", values[0]) and fits("waited_number", values[1])
        # What is spelled in another way is kept as it is spelled.
        if small and made.names(*values) == names:
            return made, *values
        return cls(many, 0, names), 0, 0


class Records(Columns[Record | SetUp]):
    """Records as columns.

    Args:
        texts: peers, and operations of set-up records.
        waits: how records name what they waited for.
        columns: every field of ``DTYPES`` -> its column.

    Attributes:
        operation: places in ``OPERATIONS``; behind them, a set-up record's place in ``texts``.
        peer: places in ``texts``.
        waited: places in ``waits``.
        waited_key: of what a record waited for; 0 where none is named.
        waited_number: of the operation that it waited for; 0 where none is named.
        id: as in a record, and so all others. A set-up record has 0 in those it lacks.
    """

    DTYPES: ClassVar[dict[str, str]] = {
        "id": "i8",
        "src": "i4",
        "dst": "i4",
        "length": "i8",
        "num_pp": "i8",
        "operation": "i4",
        "key": "i4",
        "number": "i8",
        "peer": "i4",
        "dependency": "u1",
        "d_time_us": "i8",
        "time_us": "i8",
        "waited": "i4",
        "waited_key": "i4",
        "waited_number": "i8",
    }
    """Field -> the type of its column."""

    id: Numbers
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    length: Numbers
    num_pp: Numbers
    operation: NDArray[np.int32]
    key: NDArray[np.int32]
    number: Numbers
    peer: NDArray[np.int32]
    dependency: NDArray[np.uint8]
    d_time_us: Numbers
    time_us: Numbers
    waited: NDArray[np.int32]
    waited_key: NDArray[np.int32]
    waited_number: Numbers

    def __init__(
        self, texts: Sequence[str], waits: Sequence[Waited], columns: Mapping[str, Any]
    ) -> None:
        self.texts, self.waits = tuple(texts), tuple(waits)
        for field, dtype in self.DTYPES.items():
            column = np.asarray(columns[field], dtype).view()
            column.flags.writeable = False
            setattr(self, field, column)

    @classmethod
    def of(cls, records: Iterable[Record | SetUp]) -> Records:
        """Return records as columns.

        Raises:
            InvalidValueError: a number is too large.
        """
        if isinstance(records, Records):
            return records
        packer = Packer()
        for record in records:
            packer.add(record)
        return packer.records()

    def take(self, rows: NDArray[Any]) -> Records:
        """Return the records of some rows: their numbers, or True where one is wanted."""
        return Records(self.texts, self.waits, {f: getattr(self, f)[rows] for f in self.DTYPES})

    def changed(self, **columns: NDArray[Any]) -> Records:
        """Return the same records with other columns."""
        kept = {f: columns.get(f, getattr(self, f)) for f in self.DTYPES}
        return Records(self.texts, self.waits, kept)

    def timed(self) -> NDArray[np.bool_]:
        """Return which are messages of a push or a pull; others set up connections."""
        return self.operation < len(OPERATIONS)

    def of_operations(self, what: str) -> NDArray[np.bool_]:
        """Return a property of the operations, such as ``"sends"``; False of set-up records."""
        known = [bool(getattr(operation, what)) for operation in OPERATIONS]
        return np.array([*known, *[False] * len(self.texts)])[self.operation]

    def nodes(self) -> Numbers:
        """Return the nodes whose records these are, as ``Record.node``."""
        return np.where(self.of_operations("sends"), self.src, self.dst).astype(np.int64)

    def iterations(self) -> Numbers:
        """Return the iterations of the training, as ``Record.iteration``."""
        first = self.of_operations("by_worker") & (self.nodes() == 0)
        return np.where(first, self.number, self.number + 2) // 4 - 1

    # -- as a sequence ---------------------------------------------------------------------------

    def made(self, rows: slice) -> Iterator[Record | SetUp]:
        """Yield records one by one."""
        values = [*self.values(rows).values()]
        operations, (waited, keys, numbers) = values[5], values[-3:]
        names = (*OPERATIONS, *self.texts)
        waits = [self.waits[place] for place in waited]
        values[5] = [names[place] for place in operations]
        values[8] = [self.texts[place] for place in values[8]]
        values[9] = [_DEPENDENCIES[place] for place in values[9]]
        values[-3:] = [
            [how.names(*of) for how, *of in zip(waits, keys, numbers, strict=True)],
            [how.many for how in waits],
        ]
        for operation, row in zip(operations, zip(*values, strict=True), strict=True):
            if operation < len(OPERATIONS):
                yield Record._make(row)
            else:
                yield SetUp._make(row[:6])

    def __repr__(self) -> str:
        return f"Records({len(self)})"


class _Places(dict[Any, int]):
    """Places in a table, in the order in which its entries were asked for."""

    def __missing__(self, entry: Any) -> int:
        self[entry] = place = len(self)
        return place


class Packer:
    """Records that come one after the other, or many at once, and become columns."""

    def __init__(self) -> None:
        self._texts, self._waits = _Places({"": 0}), _Places({Waited(False, 0, ()): 0})
        self._columns = {field: _column(field) for field in Records.DTYPES}

    def texts(self, texts: Iterable[str]) -> list[int]:
        """Return the places of peers, or of operations of set-up records."""
        return list(map(self._texts.__getitem__, texts))

    def how(self, waited: Waited) -> int:
        """Return the place of a way to name what a record waited for."""
        return self._waits[waited]

    def waited(self, names: tuple[str, ...], many: bool) -> tuple[int, int, int]:
        """Return the numbers of what a record waited for: place, key and number."""
        waited, key, number = Waited.of(names, many)
        return self.how(waited), key, number

    def add(self, record: Record | SetUp) -> None:
        """Add one record.

        Raises:
            InvalidValueError: a number is too large.
        """
        if isinstance(record, SetUp):
            operation = len(OPERATIONS) + self._texts[record.operation]
            row: tuple[int, ...] = (*record[:5], operation, *[0] * (len(self._columns) - 6))
        else:
            operation = OPERATIONS.index(record.operation)
            waited = self.waited(record.depends_on, record.many)
            named = (operation, record.key, record.number, self._texts[record.peer])
            timed = (record.dependency, record.d_time_us, record.time_us)
            row = (*record[:5], *named, *timed, *waited)
        for field, value in zip(Records.DTYPES, row, strict=True):
            if not fits(field, value):
                rule = f"a whole number of {bits(field)} bits"
                raise InvalidValueError(f"{field} of a record", value, rule)
        self.extend(zip(row, strict=True))

    def extend(self, columns: Iterable[Iterable[int]]) -> None:
        """Add many, whose columns stand in the order of ``Records.DTYPES``, or none.

        Raises:
            OverflowError: a number is too large.
        """
        added = list(map(_column, Records.DTYPES, columns))
        for mine, more in zip(self._columns.values(), added, strict=True):
            mine.extend(more)

    def records(self) -> Records:
        """Return all that was added."""
        return Records(tuple(self._texts), tuple(self._waits), self._columns)


def bits(field: str) -> int:
    """Return how many bits a field's numbers have."""
    return 8 * np.dtype(Records.DTYPES[field]).itemsize


def fits(field: str, value: int) -> bool:
    """Return whether a number is not too large for its field."""
    return -1 << bits(field) - 1 <= value < 1 << bits(field) - 1


_CODE = {field: np.dtype(dtype).char for field, dtype in Records.DTYPES.items()}


def _column(field: str, values: Iterable[int] = ()) -> array[int]:
    # Of a list an array is made in less than half the time.
    return array(_CODE[field], list(values))
