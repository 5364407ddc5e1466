"""Columns: rows of one kind as columns, a row of which is made when it is asked for.

A long recording has millions of rows. As an object each takes several hundred bytes, as numbers in
columns some tens; and figures are taken of all at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Row = TypeVar("Row")

_MADE_AT_ONCE = 4096
"""Rows that are made of columns in one go where all are asked for in turn."""


class Columns(Sequence[Row]):
    """A sequence of rows whose values stand in columns, which are attributes."""

    DTYPES: ClassVar[dict[str, str]]
    """Field of a row -> the type of its column."""

    @abstractmethod
    def take(self, rows: NDArray[Any]) -> Columns[Row]:
        """Return some rows: their numbers, or True where one is wanted."""

    @abstractmethod
    def made(self, rows: slice) -> Iterator[Row]:
        """Yield rows one by one."""

    def slices(self) -> Iterator[slice]:
        """Yield all rows, as many at a time as are made in one go."""
        for first in range(0, len(self), _MADE_AT_ONCE):
            yield slice(first, first + _MADE_AT_ONCE)

    def values(self, rows: slice) -> dict[str, list[Any]]:
        """Return field -> its values in some rows."""
        return {field: getattr(self, field)[rows].tolist() for field in self.DTYPES}

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.DTYPES))))

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> Columns[Row]: ...

    def __getitem__(self, at: int | slice) -> Row | Columns[Row]:
        if isinstance(at, slice):
            return self.take(np.arange(len(self))[at])
        place = range(len(self))[at]
        return next(self.made(slice(place, place + 1)))

    def __iter__(self) -> Iterator[Row]:
        for rows in self.slices():
            yield from self.made(rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns | tuple):
            return NotImplemented
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]
