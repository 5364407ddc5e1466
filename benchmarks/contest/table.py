"""Table: results as Markdown, one table for each model."""

from __future__ import annotations

from collections.abc import Sequence

from syncopate.shown import markdown_table
from syncopate.units import format_bytes, format_seconds

from .results import Cell, Results, WorkResult
from .variants import ALONE, ALONE_DELAYED, COMPARED, REFERENCE, SELF, VARIANTS, best_ddp
from .works import WORKS

TOLERANCE = 1e-3
"""How far weights may be from DDP's, as a share of how far training moved them."""

_NONE = "-"

COLUMNS = (
    "variant", "step", "spread", "exposed", "of the bound", "processors busy",
    "against best DDP", "predicted", "error", "peak memory", "optimizer state",
    "weights as DDP's", "ranks alike",
)  # fmt: skip

HEAD = f"""\
Hosts are emulated on one machine (`syncopate lab`), one rank each; all share its processors and
its memory. Variants took turns of {{iterations}} counted steps after {{warmup}}, ten times as many
of real models, each turn in processes of its own. *Step* is the median over turns of the slowest
rank's mean, *spread* the slowest turn less the fastest, over it. *Exposed* is the step less that of
`{ALONE}`, where every rank computes for itself, all at the same time. *Of the bound* is step /
bound, with bound = max(forward + backward, bytes on the wire / line rate). *Processors busy* is the
share of this machine's processors' time that was not idle in the counted steps: where all hosts
share them, no step can be shorter than that share of it. *Against best DDP* is the step of the
fastest DDP of the sweep / step. *Error* is predicted / step - 1. *Peak memory* is the most that any
rank's process ever held (`VmHWM`), Python and torch with it: what `{ALONE}` holds is there without
any exchange. What a rank frees it keeps for reuse (glibc's `MALLOC_MMAP_MAX_` is 0). *Optimizer
state* is that of the rank that has most. Weights of real models are compared after
the first {COMPARED} steps of every turn, before what rounding leaves has grown: the figure is how
far they are from those of `{REFERENCE}`, over how far training moved those; *equal* is within
{TOLERANCE:g}. *Ranks alike* says whether all ranks'
weights have the same bits. `delayed-k` is SSD-SGD, *another algorithm* than the others', whose
weights are not compared with DDP's; its ranks are alike in their global weights. It counts whole
periods of k steps, two at least, in each of which weights are pulled once, and its bound is that of
what it sends: gradients in every step, weights in one of k. `alone-delayed-k` does all that it does
but send: every rank by itself gathers, keeps and updates, its whole global weights too, all at the
same time on the same processors. FSDP2 is not among the
variants: it does not overlap on CPU, so beating it here would prove nothing. Where *alone* says
that forward and backward take longer than the profile, this machine makes gradients no faster.
"""


def report(results: Results, works: Sequence[str], raw: str = "") -> str:
    """Return all tables with what is needed to read them.

    Args:
        results: with every sample.
        works: models to show, in this order.
        raw: the file with the samples, as the report should say it.
    """
    setting = results.setting
    lines = ["# Training, exchange by exchange", ""]
    if setting.quick:
        lines += ["**A quick run, to see that everything works: no figure here counts.**", ""]
    lines += [HEAD.format(iterations=setting.iterations, warmup=setting.warmup)]
    ratio = "the models' own" if setting.ratio is None else f"{setting.ratio:g} of the wire's time"
    habits = " Gradients are clipped by their norm, and a scheduler steps." if setting.clip else ""
    lines += [
        f"{setting.hosts} hosts at {setting.rate}; computation of replayed models: {ratio}.{habits}"
    ]
    facts = ", ".join(f"{what} {value}" for what, value in results.metadata.items() if value)
    lines += [f"{facts}.", ""] if facts else [""]
    if "command 2" in results.metadata:
        lines += ["Measured in several runs, so not all variants took turns with one another.", ""]
    lines += [f"Every sample is in [{raw}]({raw}).", ""] if raw else []
    for work in works:
        if work in results.works:
            lines += [*section(work, results.works[work]), ""]
    return "\n".join(lines).rstrip() + "\n"


def section(name: str, found: WorkResult) -> list[str]:
    """Return the lines of one model."""
    workload = found.workload
    lines = [
        f"## {WORKS[name].title}",
        "",
        f"{len(workload.tensors)} tensors, {format_bytes(workload.nbytes)}; alone "
        f"{format_seconds(workload.forward_s)} forward, {format_seconds(workload.backward_s)} "
        f"backward, {format_seconds(workload.update_s)} update. Bound "
        f"{format_seconds(found.bound_s)}.",
        "",
    ]
    cells = found.measured(VARIANTS)
    best = best_ddp(cells)
    rows = [_row(variant, cells, found, best) for variant in cells]
    lines += markdown_table(COLUMNS, rows).splitlines()
    notes = [*_notes(found.cells)]
    return [*lines, *([""] if notes else []), *notes]


def _row(name: str, cells: dict[str, Cell], found: WorkResult, best: str | None) -> tuple[str, ...]:
    cell = cells[name]
    alone = cells.get(ALONE)
    predicted_s = cell.predicted_s
    return (
        f"**{name}** (best DDP)" if name == best else name,
        format_seconds(cell.step_s),
        f"{cell.spread:.1%}" if len(cell.turns) > 1 else _NONE,
        _NONE if alone is None or name == ALONE else _seconds(cell.step_s - alone.step_s),
        _NONE if name == ALONE else f"{cell.step_s / _bound_s(name, cell, found):.3f}",
        _NONE if cell.busy is None else f"{cell.busy:.0%}",
        _NONE if best is None or name == ALONE else f"{cells[best].step_s / cell.step_s:.3f}x",
        _NONE if predicted_s is None else format_seconds(predicted_s),
        _NONE if cell.error is None else f"{cell.error:+.1%}",
        format_bytes(cell.peak_bytes),
        format_bytes(cell.state_bytes),
        "another algorithm" if VARIANTS[name].delayed else _as_reference(name, cell.off),
        _NONE if name in (ALONE, ALONE_DELAYED) else "yes" if cell.ranks_equal else "**NO**",
    )


def _bound_s(name: str, cell: Cell, found: WorkResult) -> float:
    """Return what no step can be below; with a delay fewer bytes are on the wire."""
    plan = cell.plan if VARIANTS[name].delayed else None
    return found.bound_s if plan is None or plan.prediction is None else plan.prediction.bound_s


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 0 else f"-{format_seconds(-seconds)}"


def _as_reference(name: str, off: float | None) -> str:
    if off is None or name == REFERENCE:
        return _NONE
    return f"equal ({off:.0e})" if off <= TOLERANCE else f"**OFF by {off:.1e}**"


def _notes(cells: dict[str, Cell]) -> list[str]:
    """Return what was not available, and what the plans are."""
    lines = []
    for name in VARIANTS:
        cell = cells.get(name)
        if cell is None:
            continue
        if cell.plan is not None:
            plan = cell.plan
            text = f"- `{name}`: {plan.exchange}, {len(plan.buckets)} buckets, "
            text += f"{plan.channels} channel{'s' if plan.channels > 1 else ''}"
            if name == SELF and cell.planning_s:
                kept = cell.settled.name if cell.settled is not None else "nothing kept"
                text += f" ({kept}), settled in {len(cell.planning_s)} steps"
                text += f" of {sum(cell.planning_s):.0f} s"
            lines.append(f"{text}.")
        if cell.missing:
            lines.append(f"- `{name}` is not available: {cell.missing}")
    return lines
