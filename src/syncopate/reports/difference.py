"""Difference of two runs: every figure side by side, and what it comes to.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.difference import BYTES, RATE, Change, Difference, Figure
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import one_line
from syncopate.reports.tables import titled_table
from syncopate.units import format_bytes, format_count, format_rate, format_seconds


def difference_report(found: Difference, before: Timeline, after: Timeline) -> RenderableType:
    """Return the figures of two runs side by side, and one sentence on them."""
    lines = Text()
    for letter, timeline in (("a", before), ("b", after)):
        lines.append(f"{letter}  ", style="bold")
        ranks = format_count(timeline.world_size, "rank")
        lines.append(f"{one_line(f'{timeline.name}, {timeline.source}')}: {ranks}\n")
    table = titled_table("of an iteration, mean ± deviation over iterations; * beyond the spread")
    table.add_column("what", no_wrap=True)
    table.add_figures("a", "b", "b / a")
    for change in found.changes:
        table.add_row(*cells(change), style="bold" if change.differs else None)
    return Group(lines, table, Text(f"{one_line(found.verdict)}\n", style="bold"))


def cells(change: Change) -> tuple[str, str, str, str]:
    """Return a figure's name, what it is in both runs, and the second over the first."""
    ratio = "-" if math.isinf(change.ratio) else f"{change.ratio:.2f}"
    mark = "*" if change.differs else " "
    both = (_cell(change.what, change.before), _cell(change.what, change.after))
    return change.what, *both, f"{ratio} {mark}"


def _cell(what: str, figure: Figure) -> str:
    if what == BYTES:
        return format_bytes(figure.mean)
    written = format_rate if what == RATE else format_seconds
    return f"{written(figure.mean)} ± {written(figure.deviation)}"
