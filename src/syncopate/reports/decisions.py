"""Decision report: which algorithm carries which sizes, and how far the next best is behind."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.artifacts.results.decision_table import (
    MEASURED,
    PRICED,
    Candidate,
    CollectiveDecisions,
    DecisionTable,
)
from syncopate.errors import one_line
from syncopate.recipe import AlgorithmOptions
from syncopate.reports.rules.counterparts import sizes_text
from syncopate.reports.tables import ReportTable
from syncopate.units import format_bytes, format_count, format_seconds

_HIDDEN = "order"
"""The option that is the same at all sizes and as long as there are ranks."""


def decision_report(table: DecisionTable) -> RenderableType:
    """Return a decision table: where it comes from, then one table per collective."""
    size = f"{format_count(table.world_size, 'rank')} on {format_count(table.hosts, 'host')}"
    head = Text.assemble(
        (one_line(table.cluster), "bold"),
        "\n" if table.cluster == size else f": {size}\n",
        ("sizes are total buffers; times are of one collective on an idle machine", "dim"),
    )
    parts: list[RenderableType] = [head]
    for each in table.collectives:
        title, style = _basis(each, table.probed)
        parts += [Text.assemble((f"\n{each.collective}", "bold"), "  ", (title, style))]
        parts += [_table(each)]
    return Group(*parts, *(Text(one_line(line), style="dim") for line in _remarks(table)))


def options_text(options: AlgorithmOptions) -> str:
    """Return the options of an algorithm for people: ``"blocks 8"``; empty for its defaults."""
    return ", ".join(
        f"{name} {value if isinstance(value, int) else 'x'.join(str(part) for part in value)}"
        for name, value in sorted(options.items())
        if name != _HIDDEN
    )


def _remarks(table: DecisionTable) -> list[str]:
    found = []
    if any(each.basis == PRICED for each in table.collectives):
        found.append(
            "priced: what the schedule takes on the links of the cluster, not measured; the "
            "backend's own algorithm has no price and is not considered"
        )
    ranges = [each for decided in table.collectives for each in decided.ranges]
    if any(other.tied for each in ranges for other in each.others[:1]):
        found.append(
            "tied: no more than noise lies between the two, whichever was the faster; the "
            "algorithm of the next smaller size stays, or the simpler one is taken"
        )
    return found


def _basis(decided: CollectiveDecisions, probed: bool) -> tuple[str, str]:
    """Return where the times come from, and the style to say it in."""
    if decided.basis == MEASURED and decided.measured_bytes is not None:
        low, high = (format_bytes(size) for size in decided.measured_bytes)
        return f"measured from {low} to {high}", "green"
    return f"priced on {'measured' if probed else 'nominal'} links", "yellow"


def _table(decided: CollectiveDecisions) -> Table:
    table = ReportTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    told = any(options_text(each.chosen.options) for each in decided.ranges)
    for name in ("sizes", "algorithm", *(["options"] if told else [])):
        table.add_column(name, no_wrap=name == "sizes", overflow="fold")
    table.add_figures("expected", "at")
    table.add_column("next best", overflow="fold")
    table.add_figures("behind")
    for each in decided.ranges:
        runner = each.others[0] if each.others else None
        table.add_row(
            sizes_text(each.min_bytes, each.max_bytes),
            Text(each.chosen.algorithm, style="bold"),
            *([options_text(each.chosen.options)] if told else []),
            format_seconds(each.chosen.expected_s),
            format_bytes(each.at_bytes),
            "-" if runner is None else runner.algorithm,
            "-" if runner is None else _behind(runner, each.chosen),
        )
    return table


def _behind(runner: Candidate, chosen: Candidate) -> str:
    """Return how much longer the next best takes: ``tied``, ``+12%``, or ``3.1x`` from twice on."""
    if runner.tied:
        return "tied"
    if chosen.expected_s <= 0:
        return "-"
    ratio = runner.expected_s / chosen.expected_s
    return f"{ratio:.1f}x" if ratio >= 2 else f"{ratio - 1:+.0%}"
