"""Table: a validation in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from syncopate.validation.errors import covered, errors_by, errors_of
from syncopate.validation.point import GPU, KINDS, Point, Validation

_TITLES = {GPU: "GPUs, published"}


def validation_table(validation: Validation) -> Table:
    """Return how far the predictions of each kind, and of each exchange in it, were off."""
    table = Table(title=" Predicted / measured - 1", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in ("points", "median", "p90", "worst"):
        table.add_column(name, justify="right")
    table.add_column("interval of 90% holds")
    for kind in KINDS:
        points = validation.of(kind)
        if not points:
            continue
        _add(table, _TITLES.get(kind, "emulated hosts"), points)
        by_way = errors_by(points, lambda point: point.way if point.kind == GPU else point.exchange)
        for name, found in by_way.items():
            worst = f"{found.worst.error:+.1%}"
            figures = (str(found.points), f"{found.median:.1%}", f"{found.p90:.1%}", worst)
            table.add_row(f"  {name}", *figures, "")
        table.add_section()
    return table


def _add(table: Table, title: str, points: Sequence[Point]) -> None:
    found, held = errors_of(points), covered(points)
    told = "too few points" if held is None else f"{held[1]} of {len(points)}, made without each"
    table.add_row(
        title,
        str(found.points),
        f"{found.median:.1%}",
        f"{found.p90:.1%}",
        f"{found.worst.error:+.1%}",
        told,
    )
