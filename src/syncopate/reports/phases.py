"""Phases of a timeline: what each iteration did, and how much of its communication was hidden.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.analysis import Phases, mean, phases
from syncopate.reports.tables import titled_table
from syncopate.timeline import Timeline
from syncopate.units import format_seconds

_COLUMNS = (
    "iteration",
    "lasts",
    "computation",
    "communi-\ncation",
    "overlapped",
    "exposed",
    "idle",
)


def phases_report(timeline: Timeline) -> RenderableType:
    """Return the phases of every iteration, the mean over ranks; the last one stands for all.

    Raises:
        InvalidValueError: the timeline has no spans.
    """
    found = phases(timeline)
    numbers = sorted({phase.iteration for phase in found}) or [-1]
    means = [mean([phase for phase in found if phase.iteration == number]) for number in numbers]
    last = means[-1]
    lines = Text.assemble(
        (timeline.name, "bold"),
        f", {timeline.source}: {timeline.world_size} ranks\n",
        f"an iteration takes {format_seconds(last.duration_s)}, "
        f"computation {format_seconds(last.computation_s)}, "
        f"communication {format_seconds(last.communication_s)}, {last.overlap_ratio:.0%} hidden",
    )
    table = titled_table("iterations, mean over ranks")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for number, phase in zip(numbers, means, strict=True):
        _add(table, number, phase)
    return Group(lines, table)


def _add(table: Table, number: int, phase: Phases) -> None:
    times_s = (
        phase.duration_s,
        phase.computation_s,
        phase.communication_s,
        phase.overlapped_s,
        phase.exposed_communication_s,
        phase.idle_s,
    )
    table.add_row(str(number), *map(format_seconds, times_s))
