"""Attribution: what kept ranks from computing, who was late, and what an iteration waited for.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.collectives import bandwidths, collectives
from syncopate.analysis.exposure import exposures
from syncopate.analysis.path import Segment, critical_path
from syncopate.analysis.phases import phases
from syncopate.analysis.ranks.arrivals import arrivals
from syncopate.analysis.ranks.stragglers import Straggler, stragglers
from syncopate.analysis.work import works
from syncopate.artifacts.timeline import Timeline
from syncopate.reports.phases import arrivals_report, phases_report
from syncopate.reports.tables import titled_table
from syncopate.units import format_bytes, format_rate, format_seconds

MEASURED = "measured"

_SHOWN = 12
"""Rows of a table that a terminal has room for."""


def timeline_report(timeline: Timeline) -> RenderableType:
    """Return all that is known of a timeline: phases, exposure, stragglers, path, bandwidth.

    Raises:
        InvalidValueError: the timeline has no spans.
    """
    parts = [phases_report(timeline)]
    messages = collectives(timeline)
    if not messages:
        why = "one rank alone" if timeline.world_size == 1 else "no push or pull was recorded"
        parts.append(Text(f"nothing was communicated: {why}"))
    else:
        parts += [_exposed(timeline), _bandwidths(timeline), _stragglers(timeline)]
    last = max((work.iteration for work in works(timeline)), default=None)
    if last is not None:
        parts.append(_path(critical_path(timeline, last), last))
    if timeline.source == MEASURED and (said := arrivals_report(timeline)) is not None:
        parts.append(said)
    return Group(*parts)


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Return the same for JSON, as msgspec writes it; the path is that of the last iteration."""
    last = max((work.iteration for work in works(timeline)), default=None)
    return {
        "phases": phases(timeline),
        "arrivals": arrivals(timeline),
        "exposures": list(exposures(timeline)),
        "bandwidths": bandwidths(timeline),
        "stragglers": stragglers(timeline),
        "critical_path": [] if last is None else critical_path(timeline, last),
    }


def _exposed(timeline: Timeline) -> RenderableType:
    """Return a row for each message, the mean over ranks and iterations, the largest first."""
    rows = sorted(exposures(timeline).by_message(), key=lambda row: -row.exposed_s)
    table = titled_table("exposed communication, mean over ranks and iterations")
    table.add_column("message", no_wrap=True)
    table.add_figures("size", "exposed", "waiting for\nthe slowest", "transferring")
    for row in rows[:_SHOWN]:
        times = map(format_seconds, (row.exposed_s, row.waiting_s, row.transferring_s))
        table.add_row(f"{row.lane} {row.name}", format_bytes(row.nbytes), *times)
    if rows[_SHOWN:]:
        rest_s = sum(row.exposed_s for row in rows[_SHOWN:])
        table.caption = f"  and {len(rows) - _SHOWN} more, {format_seconds(rest_s)} together"
    return table


def _bandwidths(timeline: Timeline) -> RenderableType:
    table = titled_table("bandwidth while something was transferring")
    table.add_column("collective", no_wrap=True)
    table.add_figures("bytes in an\niteration", "transferring", "algbw", "busbw")
    for one in bandwidths(timeline):
        table.add_row(
            one.collective,
            format_bytes(one.nbytes),
            format_seconds(one.transferring_s),
            format_rate(one.bytes_per_s),
            format_rate(one.bus_bytes_per_s),
        )
    return table


def _stragglers(timeline: Timeline) -> RenderableType:
    found = [one for one in stragglers(timeline) if one.caused_s > 0]
    if not found:
        return Text("no rank waits for another\n")
    table = titled_table("ranks that others wait for")
    table.add_figures("rank", "waited for, in\nan iteration", "share of\nall waiting")
    table.add_column("more time than other ranks on", no_wrap=True)
    for one in found[:_SHOWN]:
        cells = (str(one.rank), format_seconds(one.caused_s), f"{one.share:.0%}")
        table.add_row(*cells, spends_more_on(one))
    if found[_SHOWN:]:
        table.caption = f"  and {len(found) - _SHOWN} more"
    return table


def spends_more_on(one: Straggler) -> str:
    """Return what a rank spends more time on than others, the two that are most."""
    more = sorted(one.excess_s.items(), key=lambda item: -item[1])
    why = ", ".join(f"{cause} {format_seconds(more_s)}" for cause, more_s in more[:2])
    return why or "nothing that is recorded"


def _path(segments: Sequence[Segment], iteration: int) -> RenderableType:
    """Return what the critical path consists of, by rank and kind, the largest first."""
    total_s = sum(segment.duration_s for segment in segments)
    groups: dict[tuple[int, str], float] = defaultdict(float)
    for segment in segments:
        groups[segment.rank, segment.kind] += segment.duration_s
    table = titled_table(f"critical path of iteration {iteration}, {format_seconds(total_s)}")
    table.add_column("what", no_wrap=True)
    table.add_figures("rank", "takes", "share")
    rows = sorted(groups.items(), key=lambda item: -item[1])
    for (rank, kind), lasts_s in rows[:_SHOWN]:
        share = lasts_s / total_s if total_s > 0 else 0.0
        table.add_row(kind, str(rank), format_seconds(lasts_s), f"{share:.0%}")
    if rows[_SHOWN:]:
        table.caption = f"  and {len(rows) - _SHOWN} more"
    return table
