"""Watch: a run that goes on, as a table of its ranks or one line."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.ranks.by_rank import RankFigures
from syncopate.reports.tables import titled_table
from syncopate.units import format_bytes, format_rate, format_seconds

_SHOWN = 16
"""Rows of ranks that a terminal has room for: those that wait least come last."""


class _Node(Protocol):
    @property
    def node(self) -> str: ...
    @property
    def pushes_per_s(self) -> float: ...
    @property
    def pulls_per_s(self) -> float: ...
    @property
    def bytes_per_s(self) -> float: ...
    @property
    def updating_share(self) -> float: ...


class Run(Protocol):
    """What is shown of a run."""

    @property
    def name(self) -> str:
        """The directory."""

    @property
    def ranks(self) -> Sequence[RankFigures]:
        """Figures of each rank."""

    @property
    def nodes(self) -> Sequence[_Node]:
        """Figures of each node of a parameter server."""

    @property
    def plan(self) -> str:
        """By which it trains."""

    @property
    def cause(self) -> str:
        """The worst cause of lost time so far."""

    @property
    def quiet(self) -> str:
        """That no iteration comes, in a sentence; empty: it goes on."""

    @property
    def remarks(self) -> Sequence[str]:
        """What cannot be known."""


def watch_line(run: Run) -> str:
    """Return a run in one line."""
    if not run.ranks:
        return f"{run.name}: {run.remarks[0] if run.remarks else 'nothing was captured'}"
    newest = max(one.iteration for one in run.ranks)
    step_s = _median(run.ranks, lambda one: one.step_s)
    rate = _median(run.ranks, lambda one: one.bus_bytes_per_s)
    waits = max(run.ranks, key=lambda one: one.waiting_s)
    words = [
        f"iteration {newest}",
        f"step {_seconds(step_s)}",
        f"exposed {_seconds(_median(run.ranks, lambda one: one.exposed_s))}",
        f"waiting at most {format_seconds(waits.waiting_s)} (rank {waits.rank})",
        f"busbw {_rate(rate)}",
    ]
    said = f"{run.name}: {', '.join(words)}"
    said += f"; plan {run.plan}" if run.plan else ""
    return said + (f"; {run.quiet or run.cause}" if run.quiet or run.cause else "")


def watch_report(run: Run) -> RenderableType:
    """Return a table with a row for each rank, and what stands beside it."""
    if not run.ranks and not run.nodes:
        return Text(watch_line(run))
    table = titled_table(f"{run.name}{f': plan {run.plan}' if run.plan else ''}")
    table.add_figures("rank", "iteration", "step", "exposed")
    table.add_figures("waiting for\nothers", "bytes", "busbw")
    shown = sorted(run.ranks, key=lambda one: one.waiting_s)[:_SHOWN]  # others wait for the first
    for one in sorted(shown, key=lambda one: one.rank):
        table.add_row(
            str(one.rank),
            f"{one.iteration:,}",
            _seconds(one.step_s),
            format_seconds(one.exposed_s),
            format_seconds(one.waiting_s),
            format_bytes(one.nbytes),
            _rate(one.bus_bytes_per_s),
        )
    if len(run.ranks) > len(shown):
        table.caption = f"  and {len(run.ranks) - len(shown)} ranks that wait longer for these"
    parts: list[RenderableType] = [table] if run.ranks else []
    if run.nodes:
        parts.append(_nodes(run.nodes))
    if run.quiet:
        parts.append(Text(run.quiet, style="bold yellow"))
    if run.cause:
        parts.append(Text(run.cause, style="bold"))
    return Group(*parts)


def _nodes(nodes: Iterable[_Node]) -> RenderableType:
    table = titled_table("parameter server")
    table.add_column("node", no_wrap=True)
    table.add_figures("pushes/s", "pulls/s", "traffic", "updating")
    for one in nodes:
        rates = f"{one.pushes_per_s:.4g}", f"{one.pulls_per_s:.4g}", format_rate(one.bytes_per_s)
        busy = f"{one.updating_share:.0%}" if one.node.startswith("s") else ""
        table.add_row(one.node, *rates, busy)
    return table


def _median(
    ranks: Iterable[RankFigures], value: Callable[[RankFigures], float | None]
) -> float | None:
    known = [found for one in ranks if (found := value(one)) is not None]
    return statistics.median(known) if known else None


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else format_rate(bytes_per_s)
