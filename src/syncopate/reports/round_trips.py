"""Round trips: where the time goes between pushes to servers and the weights that come back.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.analysis.round_trips import MeanRoundTrip, mean_round_trips
from syncopate.artifacts.timelines.round_trip import STAGES, RoundTrip
from syncopate.reports.tables import titled_table
from syncopate.units import format_seconds

_WORDS = {
    "sending": ("sending gradients", "fewer bytes, more servers, or a faster network"),
    "other workers": (
        "waiting for other workers",
        "workers that come at the same time: `syncopate analyze` says who is late",
    ),
    "update": ("updating weights", "more servers, so that each updates less"),
    "request": (
        "waiting until the worker asks",
        "nothing at the servers: the worker asks late, after its backward",
    ),
    "answer": ("the server's answers", "more servers, so that each has less to do at a time"),
    "receiving": ("receiving weights", "fewer bytes, more servers, or a faster network"),
}
"""Stage -> what the time goes to, and what mends it."""


def round_trips_report(trips: Sequence[RoundTrip]) -> RenderableType:
    """Return the stages of each server's trips, one at least, and which takes longest."""
    found = mean_round_trips(trips)
    return Group(_table(found), Text(f"{longest_stage(found)}\n"))


def longest_stage(found: Sequence[MeanRoundTrip]) -> str:
    """Return which stage takes longest, and what mends it; of one server at least."""
    whole = _whole(found)
    longest = max(range(len(STAGES)), key=lambda place: whole.stages_s[place])
    share = whole.stages_s[longest] / whole.total_s if whole.total_s > 0 else 0.0
    what, remedy = _WORDS[STAGES[longest]]
    return f"{share:.0%} of it goes to {what}; to mend it: {remedy}"


def round_trips_json(trips: Sequence[RoundTrip]) -> list[dict[str, Any]]:
    """Return the same as values, in seconds."""
    return [
        {
            "server": one.server,
            "trips": one.trips,
            "stages_s": dict(zip(STAGES, one.stages_s, strict=True)),
        }
        for one in mean_round_trips(trips)
    ]


def round_trips_difference(
    before: Sequence[RoundTrip], after: Sequence[RoundTrip]
) -> RenderableType:
    """Return the stages of the trips of two runs side by side, one of each at least."""
    found = mean_round_trips(before), mean_round_trips(after)
    table = titled_table("from a push to the weights, mean over slices and iterations")
    table.add_column("what")
    for heading in ("a", "b", "b / a"):
        table.add_column(heading, justify="right")
    first, second = (_whole(one) for one in found)
    rows = [*zip(STAGES, first.stages_s, second.stages_s, strict=True)]
    for what, a_s, b_s in (*rows, ("all", first.total_s, second.total_s)):
        ratio = f"{b_s / a_s:.2f}" if a_s > 0 else "-"
        table.add_row(what, format_seconds(a_s), format_seconds(b_s), ratio)
    return table


def _table(found: Sequence[MeanRoundTrip]) -> Table:
    table = titled_table("from a push to the weights, mean over slices and iterations")
    table.add_column("server")
    for stage in (*STAGES, "all"):
        table.add_column(stage, justify="right")
    for one in found:
        table.add_row(one.server, *map(format_seconds, (*one.stages_s, one.total_s)))
    return table


def _whole(found: Sequence[MeanRoundTrip]) -> MeanRoundTrip:
    """Return the mean over the trips of all servers."""
    count = sum(one.trips for one in found)
    stages = (sum(one.stages_s[i] * one.trips for one in found) for i in range(len(STAGES)))
    return MeanRoundTrip("", count, tuple(seconds / count for seconds in stages))
