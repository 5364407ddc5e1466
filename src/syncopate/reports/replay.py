"""Replay: a recorded run on another network, beside what it took itself."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.replay.elsewhere import Elsewhere, Spent
from syncopate.errors import one_line
from syncopate.reports.tables import titled_table
from syncopate.units import format_count, format_seconds

_MOST_ROWS = 20

_SPENT = (
    ("computing", "computing_s"),
    ("transferring", "transferring_s"),
    ("waiting for ranks", "waiting_s"),
    ("idle", "idle_s"),
)
"""What an iteration is spent on -> the field of :class:`Spent`."""


def replay_report(found: Elsewhere) -> RenderableType:
    """Return iterations as recorded and there, and what they are spent on.

    The last iterations have a row each; formulas are in ``docs/metrics.md``.
    """
    before_s, after_s = found.medians_s
    said = Text.assemble(
        (one_line(found.recorded.name), "bold"),
        f": {format_count(found.recorded.world_size, 'rank')}, "
        f"played on {one_line(found.network)}\n",
        f"the median iteration took {format_seconds(before_s)}, and takes "
        f"{format_seconds(after_s)} there ({_change(before_s, after_s)})",
    )
    for remark in remarks(found):
        said.append(f"\nnote: {remark}", style="yellow")
    return Group(said, _iterations(found), _spent(*found.spent))


def remarks(found: Elsewhere) -> tuple[str, ...]:
    """Return what limits a replay, a sentence each."""
    said = []
    if found.between is not None:
        first, last = found.between
        said.append(
            f"iterations {first} to {last} were played: others were not recorded by all ranks"
        )
    if not found.known:
        said.append(
            "of its own network nothing is known, or not when messages ended: every message takes "
            "its price there, and not what it took; --cluster says what it ran on"
        )
    return tuple(said)


def replay_json(found: Elsewhere) -> dict[str, Any]:
    """Return the same as JSON holds it, all iterations, times in seconds."""
    before, after = found.spent
    medians_s = found.medians_s
    rows = zip(found.iterations, found.recorded_s, found.replayed_s, strict=True)
    return {
        "run": found.recorded.name,
        "ranks": found.recorded.world_size,
        "network": found.network,
        "remarks": list(remarks(found)),
        "median": {"recorded_s": medians_s[0], "replayed_s": medians_s[1]},
        "iterations": [
            {"iteration": number, "recorded_s": was_s, "replayed_s": is_s}
            for number, was_s, is_s in rows
        ],
        "spent": {"recorded": before._asdict(), "replayed": after._asdict()},
    }


def _change(before_s: float, after_s: float) -> str:
    return f"{after_s / before_s - 1:+.1%}" if before_s > 0 else "-"


def _iterations(found: Elsewhere) -> RenderableType:
    rows = list(zip(found.iterations, found.recorded_s, found.replayed_s, strict=True))
    title = "iterations"
    if len(rows) > _MOST_ROWS:
        title, rows = f"the last {_MOST_ROWS} of {len(rows)} iterations", rows[-_MOST_ROWS:]
    table = titled_table(title)
    table.add_figures("iteration", "recorded", "there", "change")
    for number, was_s, is_s in rows:
        times = map(format_seconds, (was_s, is_s))
        table.add_row(str(number), *times, _change(was_s, is_s))
    return table


def _spent(before: Spent, after: Spent) -> RenderableType:
    table = titled_table("an iteration, mean over ranks")
    table.add_column("spent on")
    table.add_figures("recorded", "there")
    for what, field in _SPENT:
        table.add_row(what, *(format_seconds(getattr(one, field)) for one in (before, after)))
    return table
