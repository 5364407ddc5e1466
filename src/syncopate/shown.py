"""Shown: results that print as a short table, in a notebook too, and become a pandas frame.

A result says what it is in sentences, and gives rows of plain values. The names of values carry
their units, as everywhere: ``iteration_s`` is in seconds, ``nbytes`` in bytes, ``_bytes_per_s`` a
rate, ``share`` a part of one. So one list of rows serves the table, the notebook and pandas.
"""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any

from syncopate.errors import SyncopateError
from syncopate.units import format_bytes, format_rate, format_seconds

PRINTED = 12
"""Rows that a printed table has at most."""

Row = dict[str, Any]
"""Name with unit -> value; all rows of a result have the same names."""

_WRITTEN = (
    ("_bytes_per_s", format_rate),
    ("nbytes", format_bytes),
    ("_s", format_seconds),
    ("share", "{:.1%}".format),
)
"""What a name ends with -> how its values are written."""


class Shown:
    """A result that can be looked at; subclasses say what it is and give its rows."""

    __slots__ = ()

    def summary(self) -> tuple[str, ...]:
        """Return what the result is, in a line, and what it says beside its rows."""
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """Return its rows, as plain values."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return a line; ``str()`` has the rows as well."""
        return f"<{type(self).__name__}: {self.summary()[0]}>"

    def __str__(self) -> str:
        """Return the sentences and the first rows as text."""
        heads, cells, left_out = self._written()
        wide = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True))
            for row in (heads, *cells)
        ]
        return "\n".join((*self.summary(), *(lines if cells else ()), *left_out))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the sentences, and the first rows as a table."""
        heads, cells, left_out = self._written()
        title, *others = self.summary()
        said = "".join(f"<li>{escape(text)}</li>" for text in (*others, *left_out))
        lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"]
        lines += [
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells
        ]
        table = f"<table>{''.join(lines)}</table>" if cells else ""
        return f"<p><b>{escape(title)}</b></p>{f'<ul>{said}</ul>' if said else ''}{table}"

    def to_pandas(self) -> Any:
        """Return all rows as a ``pandas.DataFrame``; its columns have the units in their names.

        Raises:
            SyncopateError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise SyncopateError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self._frame())

    def _frame(self) -> list[Row]:
        """Return the rows of :meth:`to_pandas`, where those that are printed are a summary."""
        return self.rows()

    def _written(self) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
        """Return headings, the cells of the first rows, and how many others there are."""
        rows = self.rows()
        heads = [_heading(name) for name in rows[0]] if rows else []
        cells = [[_cell(name, row[name]) for name in rows[0]] for row in rows[:PRINTED]]
        more = len(rows) - len(cells)
        return heads, cells, (f"and {more:,} more rows; to_pandas() has all",) if more else ()


def _heading(name: str) -> str:
    for ending, _ in _WRITTEN:
        if ending.startswith("_"):
            name = name.removesuffix(ending)
    return name.replace("nbytes", "size").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        for ending, written in _WRITTEN:
            if name.endswith(ending):
                return written(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)
