"""Phases of a timeline: what each iteration did, and how much of its communication was hidden.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.phases import last_iteration_s, mean, phases
from syncopate.analysis.ranks.arrivals import arrivals, clock_error_s, lateness
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import one_line
from syncopate.reports.tables import titled_table
from syncopate.units import format_count, format_seconds

ARRIVALS_ALONE = (
    "no causes: computation was not recorded, so what a late rank does, and what mending it gains, "
    "is not known; record the training with SYNCOPATE_TRACE=DIRECTORY or `syncopate record`"
)
"""What is said where nothing but arrivals is known, as of torch's flight recorder."""

_NAMED = 8
"""Messages that a rank's line has room for."""

_COLUMNS = (
    "iteration",
    "lasts",
    "computation",
    "communi-\ncation",
    "overlapped",
    "exposed",
    "idle",
)

_MOST_ROWS = 20


def phases_report(timeline: Timeline) -> RenderableType:
    """Return the phases of the last iterations, the mean over ranks; the last stands for all.

    Raises:
        InvalidValueError: the timeline has no spans.
    """
    found = phases(timeline)
    numbers = sorted({phase.iteration for phase in found}) or [-1]
    title = "iterations, mean over ranks"
    if len(numbers) > _MOST_ROWS:
        title = f"the last {_MOST_ROWS} of {len(numbers)} {title}"
        numbers = numbers[-_MOST_ROWS:]
    means = [mean([phase for phase in found if phase.iteration == number]) for number in numbers]
    last = means[-1]
    lines = Text.assemble(
        (one_line(timeline.name), "bold"),
        f", {one_line(timeline.source)}: {format_count(timeline.world_size, 'rank')}\n",
        f"an iteration takes {format_seconds(last_iteration_s(timeline))}, "
        f"computation {format_seconds(last.computation_s)}, "
        f"communication {format_seconds(last.communication_s)}, {last.overlap_ratio:.0%} hidden",
    )
    table = titled_table(title)
    table.add_figures(*_COLUMNS)
    for number, phase in zip(numbers, means, strict=True):
        times_s = (
            phase.duration_s,
            phase.computation_s,
            phase.communication_s,
            phase.overlapped_s,
            phase.exposed_communication_s,
            phase.idle_s,
        )
        table.add_row(str(number), *map(format_seconds, times_s))
    return Group(lines, table)


def arrivals_report(timeline: Timeline) -> RenderableType | None:
    """Return how long collectives took once all ranks were there, by clocks and without them.

    None where no collective was recorded by all of several ranks.
    """
    found = arrivals(timeline)
    if timeline.world_size < 2 or not found.collectives:
        return None
    iterations = len(set(timeline.columns.iteration.tolist()))
    lines = [
        "collectives of an iteration, from the last arrival to the last completion:",
        f"  {format_seconds(found.together_s / iterations)} by the clocks of the ranks, "
        f"{format_seconds(found.bound_s / iterations)} at least by each rank's own clock",
    ]
    if math.isinf(error_s := clock_error_s(timeline)):
        lines.append("nothing says how far the clocks of hosts are apart")
    elif error_s:
        lines.append(f"the clocks of hosts were compared within {format_seconds(error_s)}")
    if found.clocks_off_s > 0:
        lines.append(f"clocks are wrong by {format_seconds(found.clocks_off_s)} at least")
    return Text("\n".join(lines))


def lateness_report(timeline: Timeline) -> RenderableType:
    """Return each rank's usual lateness at each message, the latest first."""
    found = sorted(lateness(timeline).items(), key=lambda row: -max(row[1].values(), default=0.0))
    lines = []
    for rank, late_s in found:
        late = [f"{name} by {format_seconds(by)}" for name, by in late_s.items() if by > 0]
        if late:
            more = ", .." if len(late) > _NAMED else ""
            lines.append(
                f"rank {rank} comes later than the others to {', '.join(late[:_NAMED])}{more}"
            )
    return Text("\n".join((*map(one_line, lines[:_NAMED]), ARRIVALS_ALONE)))
