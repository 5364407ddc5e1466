"""What-if report: the answers of a sweep, its points, and every single change, for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.artifacts.results.whatif import BEST, PLANS, Outcome, Point, WhatIf
from syncopate.errors import one_line
from syncopate.reports.tables import titled_table
from syncopate.units import format_seconds

_MOST = 60
"""Points that are shown; a file has all."""

ASKS = {
    "nothing": "a plan alone",
    "program": "other checkpoints",
    "hardware": "hardware",
    "training": "another training",
}
"""What a change asks for, in words."""


def whatif_report(found: WhatIf) -> RenderableType:
    """Return a sweep: its points, the changes, the answers, and what was assumed."""
    parts: list[RenderableType] = [_points(found)]
    if found.changes:
        parts.append(_changes(found))
    parts += [Text(one_line(f"assumed: {text}"), style="dim") for text in found.assumptions]
    parts.append(Text(f"intervals: {one_line(found.interval)}\n", style="dim"))
    if not found.complete:
        parts.append(Text("The sweep was interrupted: this is what was done.", "bold"))
    parts.append(Text("\n".join(map(one_line, found.sentences))))
    return Group(*parts)


def _points(found: WhatIf) -> Table:
    table = titled_table(f"{found.model}: the best plan, and DDP's buckets")
    varied = found.varied or ("nodes", "bandwidth")
    names = [*map(heading, varied), "iteration", "interval", f"best plan\n{found.unit}"]
    names += ["efficiency", "DDP\niteration", f"DDP\n{found.unit}", "DDP\nefficiency", "bound"]
    if found.currency:
        names.append(f"epoch\n{found.currency}")
    table.add_figures(*names)
    for point in found.points[:_MOST]:
        now = point.setting == found.base.setting
        table.add_row(*_row(found, point, varied), style="bold" if now else None)
    more = len(found.points) - _MOST
    if more > 0:
        table.caption = f"and {more} more points, in the file"
    return table


def _row(found: WhatIf, point: Point, varied: tuple[str, ...]) -> list[str]:
    best, plain = point.best, point.ddp
    cells = [value(point, axis) for axis in varied]
    cells += [
        format_seconds(best.prediction.iteration_s),
        interval(best),
        rate(best.throughput),
        f"{best.efficiency:.0%}",
        format_seconds(plain.prediction.iteration_s),
        rate(plain.throughput),
        f"{plain.efficiency:.0%}",
        format_seconds(best.prediction.bound_s),
    ]
    if found.currency:
        cells.append("-" if point.epoch_cost is None else rate(point.epoch_cost))
    return cells


def heading(axis: str) -> str:
    """Return what a column of an axis is called."""
    return axis.replace("_", " ").replace(".", " ")


def value(point: Point, axis: str) -> str:
    """Return the value of an axis for a column: without the noun that heads it."""
    if axis in ("nodes", "gpus_per_node", "batch"):
        return str(getattr(point.setting, axis))
    return point.setting.said(axis)


def interval(found: Outcome) -> str:
    """Return the interval of an iteration: ``"201.2 to 231.0 ms"``."""
    low_s, high_s = found.prediction.low_s, found.prediction.high_s
    if low_s is None or high_s is None:
        return "-"
    low, high = format_seconds(low_s), format_seconds(high_s)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low} to {high}"


def rate(figure: float) -> str:
    """Return a figure for people: three digits, or all before the point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def _changes(found: WhatIf) -> Table:
    base = found.base
    where = f"{base.setting.said('nodes')}, {base.setting.said('bandwidth')}"
    today = PLANS[found.today if found.today in PLANS else BEST]
    table = titled_table(f"single changes from {today} on {where}")
    table.add_column("change", overflow="fold")
    table.add_figures("throughput", "iteration", "efficiency")
    table.add_column("asks for", no_wrap=True)
    for change in found.changes:
        table.add_row(
            change.words,
            f"{1 + change.gain:.2f}x",
            format_seconds(change.iteration_s),
            f"{change.efficiency:.0%}",
            ASKS[change.asks],
        )
    return table
