"""Delays: what a plan is expected to take with weights that are pulled every 1, 2, .. steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.artifacts.plan import Plan
from syncopate.reports.tables import titled_table
from syncopate.units import format_seconds


def delays_report(plans: Sequence[Plan], chosen: Plan, limits: str) -> RenderableType:
    """Return a row for each plan.

    Args:
        plans: all alike but for their delays; the synchronous one has none.
        chosen: the plan to mark, by its delay.
        limits: what no delay can hide; empty where there is nothing of the kind.
    """
    table = titled_table("weights pulled every k-th step, in the mean over k iterations")
    table.add_column("k", no_wrap=True)
    table.add_figures("predicted", "exposed", "above\nbound")
    for plan in plans:
        marked = plan.delay == chosen.delay
        prediction = plan.prediction
        assert prediction is not None
        table.add_row(
            f"{'>' if marked else ' '} {plan.pull_period if plan.delay else 'synchronous'}",
            format_seconds(prediction.iteration_s),
            format_seconds(prediction.exposed_s),
            f"{prediction.above_bound:.1%}",
            style="bold" if marked else None,
        )
    return Group(table, Text(f"{limits}\n")) if limits else table
