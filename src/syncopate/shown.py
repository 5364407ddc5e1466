"""Shown: results that print as a short table, in a notebook too, and become a pandas frame.

A result says what it is in sentences, and gives rows of plain values. The names of values carry
their units, as everywhere: ``iteration_s`` is in seconds, ``nbytes`` in bytes, ``_bytes_per_s`` a
rate, ``share`` a part of one. So one list of rows serves the table, the notebook and pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import Any, Protocol

from syncopate.errors import MissingPackageError, one_line
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


class Result(Protocol):
    """The texts of a class that :class:`Shown` prints."""

    def summary(self) -> tuple[str, ...]:
        """Return its title, in a line, and its sentences beside the rows."""

    def rows(self) -> list[Row]:
        """Return the rows that are printed, as plain values."""

    def frame(self) -> list[Row]:
        """Return the rows that pandas gets."""


class Shown:
    """Prints a class with ``summary()`` and ``rows()``."""

    __slots__ = ()

    def __repr__(self: Result) -> str:
        """Return a line; ``str()`` has the rows as well."""
        return f"<{type(self).__name__}: {one_line(self.summary()[0])}>"

    def __str__(self: Result) -> str:
        """Return the sentences and the first rows as text."""
        heads, cells, left_out = _written(self.rows())
        wide = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True))
            for row in (heads, *cells)
        ]
        return "\n".join((*map(one_line, self.summary()), *(lines if cells else ()), *left_out))

    def _repr_html_(self: Result) -> str:
        """Return what a notebook shows: the sentences, and the first rows as a table."""
        heads, cells, left_out = _written(self.rows())
        title, *others = map(one_line, self.summary())
        said = "".join(f"<li>{escape(text)}</li>" for text in (*others, *left_out))
        lines = [_line(heads, "th"), *(_line(row, "td") for row in cells)]
        table = f"<table>{''.join(lines)}</table>" if cells else ""
        return f"<p><b>{escape(title)}</b></p>{f'<ul>{said}</ul>' if said else ''}{table}"

    def frame(self: Result) -> list[Row]:
        """Return the rows of :meth:`to_pandas`: more than ``rows()`` where those sum up."""
        return self.rows()

    def to_pandas(self: Result) -> Any:
        """Return all rows as a ``pandas.DataFrame``; its columns have the units in their names.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise MissingPackageError("to_pandas()", "pandas") from None
        return pandas.DataFrame(self.frame())


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with a line break at its end.

    Example:
        >>> print(markdown_table(("name", "size"), [("a", "1")]), end="")
        | name | size |
        | --- | --- |
        | a | 1 |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _written(rows: list[Row]) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
    """Return headings, the cells of the first rows, and how many others there are."""
    heads = [_heading(name) for name in rows[0]] if rows else []
    cells = [[one_line(_cell(name, row[name])) for name in rows[0]] for row in rows[:PRINTED]]
    more = len(rows) - len(cells)
    return heads, cells, (f"and {more:,} more rows; to_pandas() has all",) if more else ()


def _line(cells: list[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _heading(name: str) -> str:
    for ending, _ in _WRITTEN:
        name = name.removesuffix(f"_{ending.removeprefix('_')}")
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
