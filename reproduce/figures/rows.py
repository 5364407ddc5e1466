"""Rows: a paper's figure beside what is simulated and what is measured, and what goes in.

A figure that a simulation was told is :class:`Given` and no :class:`Figure`: it cannot agree or
disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group

from syncopate.reports.tables import ReportTable
from syncopate.shown import markdown_table

NONE = "-"
HEADINGS = ("where", "what", "paper", "simulated", "measured", "difference", "why")


@dataclass(frozen=True)
class Given:
    """A number that goes in.

    Attributes:
        what: it is.
        value: as it is used.
        source: where it is from; what is fitted says to what.
    """

    what: str
    value: str
    source: str


@dataclass(frozen=True)
class Figure:
    """One figure of a paper.

    Attributes:
        where: table, figure or section.
        what: it is.
        paper: as printed; None where the paper prints none; words where it has no number.
        simulated: computed here; None where it is not.
        measured: on a lab or in a training here; None where it is not.
        form: how all are printed, such as ``"{:.2f}x"``.
        why: they differ, or what the row says; empty where they agree.
        points: whether the difference is ours minus the paper's, not relative to it.
    """

    where: str
    what: str
    paper: float | str | None
    simulated: float | None = None
    measured: float | None = None
    form: str = "{:.2f}x"
    why: str = ""
    points: bool = False

    def difference(self, ours: float | None) -> float | None:
        """Return ours relative to the paper's: -0.03 is 3% below; or minus it, with ``points``."""
        if ours is None or not isinstance(self.paper, int | float):
            return None
        if self.points:
            return ours - self.paper
        return ours / self.paper - 1 if self.paper else None

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows, by ``HEADINGS``; two differences where there are both."""
        values = (self.simulated, self.measured)
        differences = [self.difference(value) for value in values]
        shown = [self._difference(one) for one in differences if one is not None]
        return (
            self.where,
            self.what,
            self._value(self.paper),
            *(self._value(value) for value in values),
            ", ".join(shown) or NONE,
            self.why,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what a report in JSON holds of it."""
        return {
            "where": self.where,
            "what": self.what,
            "paper": self.paper,
            "simulated": self.simulated,
            "simulated_difference": self.difference(self.simulated),
            "measured": self.measured,
            "measured_difference": self.difference(self.measured),
            "why": self.why,
        }

    def _value(self, value: float | str | None) -> str:
        if value is None:
            return NONE
        return value if isinstance(value, str) else self.form.format(value)

    def _difference(self, value: float) -> str:
        # What rounds to nothing has no sign.
        if self.points:
            return f"{round(value, 2) + 0.0:+.2f} points"
        return f"{round(value, 3) + 0.0:+.1%}"


@dataclass(frozen=True)
class Drawn:
    """A table of its own: a curve that the paper draws, or what it could have drawn.

    Attributes:
        title: what it shows.
        headings: of its columns.
        lines: cells by column.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Paper:
    """All rows of a paper.

    Attributes:
        name: by which ``papers.py`` asks for it.
        title: the paper's.
        given: what goes in.
        figures: what comes out.
        tables: of what the paper draws and has no numbers for.
    """

    name: str
    title: str
    given: tuple[Given, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Drawn, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain objects."""
        return {
            "name": self.name,
            "title": self.title,
            "given": [vars(one) for one in self.given],
            "figures": [one.as_json() for one in self.figures],
            "tables": [vars(one) for one in self.tables],
        }


def tables(paper: Paper) -> Group:
    """Return both tables for a terminal."""
    out = ReportTable(title=f"{paper.title}: its figures", box=box.SIMPLE_HEAD)
    for heading in HEADINGS:
        right = heading in ("paper", "simulated", "measured", "difference")
        out.add_column(heading, justify="right" if right else "left", no_wrap=right)
    for figure in paper.figures:
        out.add_row(*figure.cells)
    into = ReportTable(title=f"{paper.title}: what goes in", box=box.SIMPLE_HEAD)
    for heading in ("what", "value", "from"):
        into.add_column(heading)
    for given in paper.given:
        into.add_row(given.what, given.value, given.source)
    return Group(into, out, *(drawn_table(one) for one in paper.tables))


def drawn_table(drawn: Drawn) -> ReportTable:
    """Return a table of its own for a terminal."""
    found = ReportTable(title=drawn.title, box=box.SIMPLE_HEAD)
    for index, heading in enumerate(drawn.headings):
        found.add_column(heading, justify="right" if index else "left")
    for cells in drawn.lines:
        found.add_row(*cells)
    return found


def show(papers: Iterable[Paper], console: Console) -> None:
    """Print the tables of papers."""
    for paper in papers:
        console.print(tables(paper))


def markdown(paper: Paper) -> str:
    """Return both tables as a page has them."""
    into = [(one.what, one.value, one.source) for one in paper.given]
    parts = []
    if into:
        parts += ["What goes in:\n", markdown_table(("what", "value", "from"), into)]
    parts += ["What comes out:\n", markdown_table(HEADINGS, [one.cells for one in paper.figures])]
    parts += [drawn_markdown(one) for one in paper.tables]
    return "\n".join(parts)


def drawn_markdown(drawn: Drawn) -> str:
    """Return a table of its own as a page has it."""
    return f"{drawn.title}:\n\n{markdown_table(drawn.headings, drawn.lines)}"
