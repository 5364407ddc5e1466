"""Grid: several files of results in one table, a row for each model and setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from syncopate.shown import markdown_table
from syncopate.units import format_seconds

from .results import Results, WorkResult
from .variants import SELF, VARIANTS, best_ddp
from .works import WORKS

OURS = (*(row.name for row in VARIANTS.values() if row.exchange), SELF)

COLUMNS = ("model", "hosts", "rate", "ratio", "bound", "best DDP", *OURS)


def summary(files: Sequence[Results]) -> str:
    """Return the table in Markdown, and how good all predictions in it are.

    A cell has the step, the best DDP's step over it, and the error of its prediction.
    """
    rows: list[tuple[str, ...]] = []
    errors: list[float] = []
    for results in files:
        setting = results.setting
        ratio = "own" if setting.ratio is None else f"{setting.ratio:g}"
        for name, found in results.works.items():
            about = (WORKS[name].title, str(setting.hosts), setting.rate, ratio)
            rows.append((*about, *_cells(found)))
            ours = found.measured(OURS).values()
            errors += [cell.error for cell in ours if cell.error is not None]
    said = ""
    if errors:
        sizes = [abs(error) for error in errors]
        said = (
            f"\nPredictions: {len(sizes)}, off by {statistics.median(sizes):.1%} in the median, "
            f"{max(sizes):.1%} at worst.\n"
        )
    return markdown_table(COLUMNS, rows) + said


def _cells(found: WorkResult) -> list[str]:
    cells = found.measured(VARIANTS)
    best = best_ddp(cells)
    ddp = "-" if best is None else f"{format_seconds(cells[best].step_s)} ({best})"
    shown = [format_seconds(found.bound_s), ddp]
    for name in OURS:
        if name not in cells:
            shown.append("-")
            continue
        text = format_seconds(cells[name].step_s)
        if best is not None:
            text += f", {cells[best].step_s / cells[name].step_s:.3f}x"
        if cells[name].error is not None:
            text += f", {cells[name].error:+.1%}"
        shown.append(text)
    return shown
