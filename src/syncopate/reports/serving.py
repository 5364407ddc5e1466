"""Serving: what a training with a parameter server spends its time on, as tables.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.analysis.phases import Phases, mean
from syncopate.analysis.serving import (
    Message,
    Overhead,
    bytes_per_iteration,
    distribution,
    overheads,
    served_phases,
)
from syncopate.reports.tables import titled_table
from syncopate.units import format_bytes, format_seconds

_KINDS = ("synchronization", "update", "search")


def serving_report(
    messages: Sequence[Message],
    computed: Sequence[Overhead] = (),
    *,
    synchronous: bool = True,
) -> RenderableType:
    """Return phases of the workers, overheads of the servers, and bytes of both.

    Args:
        messages: of the nodes.
        computed: what servers noted of their own updates and searches.
        synchronous: whether servers answer a push when all workers pushed.
    """
    found = overheads(messages, synchronous=synchronous)
    parts: list[RenderableType] = []
    if any(m.node.startswith("w") for m in messages):
        parts.append(_workers(served_phases(messages), found))
    if any(m.node.startswith("s") for m in messages):
        parts.append(_servers(found, "servers"))
    if computed:
        parts.append(_servers(computed, "what servers computed of it"))
    parts.append(_volume(messages))
    return Group(*parts)


def serving_json(
    messages: Sequence[Message],
    computed: Sequence[Overhead] = (),
    *,
    synchronous: bool = True,
) -> dict[str, Any]:
    """Return the same as values: times in seconds, each with its distribution."""
    found = overheads(messages, synchronous=synchronous)
    phases = [
        {
            "worker": phase.rank,
            "iteration": phase.iteration,
            "computation_s": phase.computation_s,
            "communication_s": phase.communication_s,
            "overlapped_s": phase.overlapped_s,
            "overlap_ratio": phase.phase_overlap_ratio,
        }
        for phase in served_phases(messages)
    ]
    values = {"phases": phases, "overheads": _by_key(found)}
    values |= {"computed": _by_key(computed)} if computed else {}
    return values | {"bytes_per_iteration": bytes_per_iteration(messages)}


def _by_key(spent: Iterable[Overhead]) -> list[dict[str, Any]]:
    values: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for overhead in spent:
        values[overhead.kind, overhead.node, overhead.key].append(overhead.seconds)
    return [
        {"kind": kind, "node": node, "key": key, **distribution(mine)._asdict()}
        for (kind, node, key), mine in sorted(values.items())
    ]


def _workers(found: Sequence[Phases], spent: Iterable[Overhead]) -> RenderableType:
    if not found:
        return Text(
            "no whole iteration of a worker: a trace needs the end of one and all of the next"
        )
    waits: dict[str, list[float]] = defaultdict(list)
    for overhead in spent:
        if overhead.kind == "wait":
            waits[overhead.node].append(overhead.seconds)
    table = titled_table("workers, mean over iterations")
    table.add_column("worker")
    for name in ("iterations", "lasts", "computation", "communication", "overlapped"):
        table.add_column(name, justify="right")
    table.add_column("overlap ratio", justify="right")
    table.add_column("wait", justify="right")
    for rank in sorted({phase.rank for phase in found}):
        mine = [phase for phase in found if phase.rank == rank]
        average = mean(mine)
        times_s = (
            average.duration_s,
            average.computation_s,
            average.communication_s,
            average.overlapped_s,
        )
        table.add_row(
            f"w{rank}",
            str(len(mine)),
            *map(format_seconds, times_s),
            f"{distribution([phase.phase_overlap_ratio for phase in mine]).mean:.1%}",
            format_seconds(distribution(waits[f"w{rank}"]).mean),
        )
    return table


def _servers(spent: Iterable[Overhead], title: str) -> Table:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for overhead in spent:
        values[overhead.node, overhead.kind].append(overhead.seconds)
    table = titled_table(f"{title}, mean and standard deviation over parameters and iterations")
    table.add_column("server")
    for kind in _KINDS:
        table.add_column(kind, justify="right")
    for node in sorted({node for node, kind in values if kind in _KINDS}):
        table.add_row(node, *(_spread(values[node, kind]) for kind in _KINDS))
    return table


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = distribution(values)
    return f"{format_seconds(found.mean)} ± {format_seconds(found.deviation)}"


def _volume(messages: Sequence[Message]) -> Table:
    table = titled_table("bytes of an iteration, mean")
    table.add_column("node")
    for name in ("push sent", "push received", "pull sent", "pull received"):
        table.add_column(name, justify="right")
    for node, nbytes in bytes_per_iteration(messages).items():
        table.add_row(node, *(format_bytes(value) for value in nbytes.values()))
    return table
