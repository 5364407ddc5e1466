"""Comparison: figures that a paper prints, beside the same figures computed here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.markup import escape

from syncopate.reports.tables import ReportTable


@dataclass(frozen=True)
class Comparison:
    """One figure of a paper beside ours.

    Attributes:
        what: what it is.
        paper: as printed.
        ours: as computed here.
        printed: how to print both, a format such as ``"{:.2f} us"``.
    """

    what: str
    paper: float
    ours: float
    printed: str

    @property
    def difference(self) -> float:
        """Ours relative to the paper's: -0.03 is 3% below."""
        return self.ours / self.paper - 1

    def as_json(self) -> dict[str, Any]:
        """Return what a report in JSON holds of it."""
        return {
            "what": self.what,
            "paper": self.paper,
            "ours": self.ours,
            "difference": self.difference,
        }


def comparison_table(
    title: str, comparisons: Iterable[Comparison], *, theirs: str = "paper", own: str = "ours"
) -> ReportTable:
    """Return the figures side by side, with the difference.

    Args:
        title: of the table.
        comparisons: one per line.
        theirs: heading of the figures compared with, as a measurement may take a paper's place.
        own: heading of those computed here.
    """
    table = ReportTable(title=escape(title), box=box.SIMPLE_HEAD)
    table.add_column("figure")
    for column in (theirs, own, "difference"):
        table.add_column(column, justify="right")
    for item in comparisons:
        table.add_row(
            item.what,
            item.printed.format(item.paper),
            item.printed.format(item.ours),
            f"{item.difference:+.1%}",
        )
    return table
