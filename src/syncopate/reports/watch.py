"""Watch: what a run that goes on is like now, also as a table of its ranks or one line."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.ranks.by_rank import RankFigures
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import one_line
from syncopate.reports.tables import titled_table
from syncopate.shown import Row, Shown
from syncopate.units import format_bytes, format_rate, format_seconds

_SHOWN = 16
"""Rows of ranks that a terminal has room for: those that wait least come last."""


@dataclass(frozen=True)
class NodeFigures:
    """What one node of a parameter server does.

    Attributes:
        node: such as ``"w0"`` or ``"s1"``.
        pushes_per_s: pushes that it sent or received.
        pulls_per_s: pulls that it sent or received.
        bytes_per_s: bytes that it sent and received.
        updating_share: of the time in which a server computes updates.
    """

    node: str
    pushes_per_s: float
    pulls_per_s: float
    bytes_per_s: float
    updating_share: float


@dataclass(frozen=True, repr=False)
class Watched(Shown):
    """What a run that goes on is like now.

    Attributes:
        name: the directory.
        timeline: the last iterations; None: there are none yet.
        ranks: figures of each rank.
        nodes: figures of each node of a parameter server; none without.
        plan: by which it trains, in a few words; empty: not known.
        cause: the worst cause of lost time so far, or why none is known, in a sentence.
        quiet_s: since when no iteration came, where that is long; None: it goes on.
        quiet: the same in a sentence; empty: it goes on.
        remarks: what cannot be known, a sentence each.
    """

    name: str
    timeline: Timeline | None = None
    ranks: tuple[RankFigures, ...] = ()
    nodes: tuple[NodeFigures, ...] = ()
    plan: str = ""
    cause: str = ""
    quiet_s: float | None = None
    quiet: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def iteration(self) -> int | None:
        """The last iteration that any rank did; None: none."""
        return max((one.iteration for one in self.ranks), default=None)

    def summary(self) -> tuple[str, ...]:
        """Return a line, and what stands beside it."""
        return (self._line(), *filter(None, (self.quiet,)), *self.remarks)

    def rows(self) -> list[Row]:
        """Return the figures of each rank."""
        return [
            {name: value for name, value in vars(one).items() if name != "ended_s"}
            for one in self.ranks
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as ``syncopate watch --json`` prints it in a line."""
        return {
            "name": self.name,
            "iteration": self.iteration,
            "ranks": self.rows(),
            "nodes": [vars(one) for one in self.nodes],
            "plan": self.plan,
            "cause": self.cause,
            "quiet_s": self.quiet_s,
            "quiet": self.quiet,
            "remarks": self.remarks,
        }

    def report(self) -> RenderableType:
        """Return everything for a terminal, to be printed by rich."""
        if not self.ranks and not self.nodes:
            return Text(one_line(self._line()))
        table = titled_table(f"{self.name}{f': plan {self.plan}' if self.plan else ''}")
        table.add_figures("rank", "iteration", "step", "exposed")
        table.add_figures("waiting for\nothers", "bytes", "busbw")
        shown = sorted(self.ranks, key=lambda one: one.waiting_s)[:_SHOWN]  # others wait for these
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
        if len(self.ranks) > len(shown):
            table.caption = f"  and {len(self.ranks) - len(shown)} ranks that wait longer for these"
        parts: list[RenderableType] = [table] if self.ranks else []
        if self.nodes:
            parts.append(_nodes(self.nodes))
        if self.quiet:
            parts.append(Text(one_line(self.quiet), style="bold yellow"))
        if self.cause:
            parts.append(Text(one_line(self.cause), style="bold"))
        return Group(*parts)

    def _line(self) -> str:
        if not self.ranks:
            return f"{self.name}: {self.remarks[0] if self.remarks else 'nothing was captured'}"
        waits = max(self.ranks, key=lambda one: one.waiting_s)
        words = [
            f"iteration {self.iteration}",
            f"step {_seconds(self._median(lambda one: one.step_s))}",
            f"exposed {_seconds(self._median(lambda one: one.exposed_s))}",
            f"waiting at most {format_seconds(waits.waiting_s)} (rank {waits.rank})",
            f"busbw {_rate(self._median(lambda one: one.bus_bytes_per_s))}",
        ]
        said = f"{self.name}: {', '.join(words)}"
        said += f"; plan {self.plan}" if self.plan else ""
        return said + (f"; {self.quiet or self.cause}" if self.quiet or self.cause else "")

    def _median(self, value: Callable[[RankFigures], float | None]) -> float | None:
        known = [found for one in self.ranks if (found := value(one)) is not None]
        return statistics.median(known) if known else None


def _nodes(nodes: Iterable[NodeFigures]) -> RenderableType:
    table = titled_table("parameter server")
    table.add_column("node", no_wrap=True)
    table.add_figures("pushes/s", "pulls/s", "traffic", "updating")
    for one in nodes:
        rates = f"{one.pushes_per_s:.4g}", f"{one.pulls_per_s:.4g}", format_rate(one.bytes_per_s)
        busy = f"{one.updating_share:.0%}" if one.node.startswith("s") else ""
        table.add_row(one.node, *rates, busy)
    return table


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else format_rate(bytes_per_s)
