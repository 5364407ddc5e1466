"""Figures: turns with parameter servers, and tables laid out as SSD-SGD's Figs. 6 and 7."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import structs

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.plan import Plan
from syncopate.shown import markdown_table
from syncopate.units import format_seconds, parse_rate

from . import paper
from .conduct import reopened, with_command
from .served import ALONE, ASGD, MOST_SERVERS, SSD, SSGD, WORKERS, Case, Planner, case_of

LONGEST = "ssd-5"
"""The method of Fig. 7."""

_NONE = "-"


class Cell(Record, frozen=True, kw_only=True):
    """One case.

    Attributes:
        turns: of each, every worker's counted steps in seconds.
        predicted_s: what the plan promises of a step; None where there is no plan.
        missing: why there is no (further) turn; empty where nothing is wrong.
    """

    turns: tuple[tuple[tuple[float, ...], ...], ...] = ()
    predicted_s: float | None = None
    missing: str = ""

    @property
    def step_s(self) -> float:
        """Median over turns; only where there are turns."""
        return statistics.median(_step_s(turn) for turn in self.turns)

    @property
    def last_step_s(self) -> float:
        """Of the last turn."""
        return _step_s(self.turns[-1])


def _step_s(turn: Sequence[Sequence[float]]) -> float:
    """Return the harmonic mean of the workers' mean steps: what gives the speed of all together."""
    return statistics.harmonic_mean([statistics.fmean(steps) for steps in turn])


class Results(Artifact, frozen=True, kw_only=True):
    """One run of the benchmark, or several that added to one another.

    Attributes:
        rate: of each host's link.
        quick: whether it was to see that it runs; then no figure counts.
        cells: by the name of a case.
        metadata: hardware, versions and date of the first turn, and the commands.
        counts: by model, batch and servers, how many gradients each bucket of the plan held, in
            ready order.
    """

    KIND: ClassVar[str] = "delayed-benchmark"

    rate: str
    quick: bool
    cells: dict[str, Cell] = {}
    metadata: dict[str, str] = {}
    counts: dict[str, tuple[int, ...]] = {}

    def cell(self, case: Case) -> Cell:
        """Return what is known of a case, be it nothing."""
        return self.cells.get(case.name, Cell())

    def with_cell(self, case: Case, cell: Cell, plan: Plan | None = None) -> Results:
        """Return the results with one cell put in place of another, and what ``plan`` it ran."""
        counts = self.counts
        if plan is not None:
            counts = counts | {case.place: tuple(len(one.tensors) for one in plan.buckets)}
        return structs.replace(self, cells=self.cells | {case.name: cell}, counts=counts)

    def without(self, cases: Sequence[Case]) -> Results:
        """Return the results without some cases."""
        names = {case.name for case in cases}
        return structs.replace(
            self, cells={name: cell for name, cell in self.cells.items() if name not in names}
        )


def resumed(path: Path | None, rate: str, quick: bool, metadata: dict[str, str]) -> Results:
    """Return what ``path`` holds, or empty results where there is no such file yet.

    Raises:
        ArtifactError: it is no such file, or was measured at another rate, or quickly.
    """
    found = reopened(path, Results(rate=rate, quick=quick, metadata=metadata), "rate", "quick")
    return with_command(found, metadata)


HEAD = """\
Hosts are emulated on one machine (`syncopate lab`): {workers} workers, the servers and the
scheduler have one each, behind links of {rate}; all share the machine's processors. Computation is
slept, as long as the paper's machines computed in proportion to what they communicated:
{stretch:.2f} times as long as theirs (`benchmarks/contest/paper.py`). Speeds are in the paper's
images/s: those of the lab times that. In parentheses is the speed-up over SSGD, as in the paper.
*Predicted* is what the plan of each promised when it ran; `--predict` predicts those plans anew.
Turns count whole periods of k steps; each cell is the median over turns of all workers' speed
together. Accuracy is another matter: `reproduce/ssd_sgd.py`.
"""


def report(results: Results, raw: str = "") -> str:
    """Return both figures as tables, with what is needed to read them.

    Args:
        results: with every sample.
        raw: the file with the samples, as the report should say it.
    """
    stretch = paper.stretch(parse_rate(results.rate))
    lines = ["# SSD-SGD's training speed with parameter servers", ""]
    if results.quick:
        lines += ["**A quick run, to see that everything works: no figure here counts.**", ""]
    lines += [HEAD.format(workers=WORKERS, rate=results.rate, stretch=stretch)]
    facts = ", ".join(f"{what} {value}" for what, value in results.metadata.items() if value)
    lines += [f"{facts}.", ""] if facts else []
    lines += [f"Every sample is in [{raw}]({raw}).", ""] if raw else []
    for batch in paper.LINEAR_IMAGES_S:
        lines += [*_figure_6(results, batch, stretch), ""]
    lines += [*_figure_7(results), ""]
    missing = [f"- {name}: {cell.missing}" for name, cell in results.cells.items() if cell.missing]
    lines += ["Not available:", "", *missing] if missing else []
    return "\n".join(lines).rstrip() + "\n"


_Seconds = Callable[[Cell], float | None]


def _measured(cell: Cell) -> float | None:
    return cell.step_s if cell.turns else None


def _predicted(cell: Cell) -> float | None:
    return cell.predicted_s if cell.turns else None


def _figure_6(results: Results, batch: int, stretch: float) -> list[str]:
    least, most = paper.FIG6_SPEEDUPS[batch]
    lines = [
        f"## Fig. 6: ResNet-50, {batch} images a GPU, images/s",
        "",
    ]
    rows = []
    alone = results.cell(Case("resnet50", batch, 0, ALONE))
    for servers in range(1, MOST_SERVERS + 1):
        row = [results.cell(Case("resnet50", batch, servers, name)) for name in (SSGD, *SSD)]
        for what, seconds in (("measured", _measured), ("predicted", _predicted)):
            base_s = seconds(row[0])
            speeds = [_speed(cell, batch, stretch, seconds, base_s) for cell in row]
            speeds[0] = speeds[0].split(" ")[0]
            speeds.append(_speed(alone, batch, stretch, seconds, base_s))
            rows.append((f"{servers}S-{WORKERS}W, {what}", *speeds))
    heads = ("", "Base (SSGD)", *(f"k = {k}" for k in SSD.values()), "Opt (linear)")
    lines += markdown_table(heads, rows).splitlines()
    best = "" if batch != 32 else f" SSGD {_paper_base():.0f}, k = 5 {_paper_ssd5():.0f} (+72.3%),"
    linear = paper.LINEAR_IMAGES_S[batch]
    lines += [
        "",
        f"The paper's 4S-4W:{best} Opt {linear:.0f}; speed-ups of {least:.0%} to {most:.0%} over "
        "all k and numbers of servers.",
    ]
    return lines


def _paper_ssd5() -> float:
    return paper.MACHINES * paper.SSD5_IMAGES_S


def _paper_base() -> float:
    return _paper_ssd5() / (1 + paper.SSD5_SPEEDUPS["resnet50", 32])


def _speed(cell: Cell, batch: int, stretch: float, seconds: _Seconds, base_s: float | None) -> str:
    step_s = seconds(cell)
    if step_s is None or math.isclose(step_s, 0.0):
        return _NONE
    text = f"{WORKERS * paper.images(batch) / (step_s / stretch):.0f}"
    return text if base_s is None else f"{text} ({base_s / step_s - 1:+.0%})"


def _figure_7(results: Results) -> list[str]:
    heads = ("", "SSGD, a step", "ASGD", "SSD-SGD-5", "predicted", "linear")
    rows = []
    for model in paper.MODELS:
        for batch in paper.LINEAR_IMAGES_S:
            base, asynchronous, late = (
                results.cell(Case(model, batch, MOST_SERVERS, name))
                for name in (SSGD, ASGD, LONGEST)
            )
            alone = results.cell(Case(model, batch, 0, ALONE))
            base_s = _measured(base)
            cells = (
                f"{model} ({batch})",
                _NONE if base_s is None else format_seconds(base_s),
                _times(base_s, _measured(asynchronous)),
                _times(base_s, _measured(late)),
                _times(_predicted(base), _predicted(late)),
                _times(base_s, _measured(alone)),
                f"{1 + paper.SSD5_SPEEDUPS[model, batch]:.2f}x",
            )
            rows.append(cells)
    table = markdown_table((*heads, "SSD-SGD-5 in the paper"), rows)
    return [f"## Fig. 7: {MOST_SERVERS} servers, speed over SSGD's", "", *table.splitlines()]


def predicted_again(results: Results, raw: str = "") -> str:
    """Return what was promised of each plan that ran, and what is predicted of it now, as a table.

    Args:
        results: with the buckets of its plans; cases without are left out.
        raw: as for :func:`report`.
    """
    planner = Planner(results.rate)
    lines = [f"Every sample is in [{raw}]({raw}).", ""] if raw else []
    rows = []
    errors: tuple[list[float], list[float]] = ([], [])
    for name in sorted(results.cells):
        case, cell = case_of(name), results.cells[name]
        counts = results.counts.get(case.place)
        if counts is None or not cell.turns or cell.predicted_s is None:
            continue
        workload = paper.workload(case.model, case.batch, parse_rate(results.rate))
        row = [name, format_seconds(cell.step_s)]
        now_s = planner.again(case, workload, counts).iteration_s
        for found, predicted_s in zip(errors, (cell.predicted_s, now_s), strict=True):
            found.append(predicted_s / cell.step_s - 1)
            row += [format_seconds(predicted_s), f"{found[-1]:+.0%}"]
        rows.append(row)
    if not errors[0]:
        return "no case here has been measured by a plan whose buckets are known"
    for what, summary in (("median of the errors' sizes", statistics.median), ("the largest", max)):
        then, now = (f"{summary(map(abs, found)):.1%}" for found in errors)
        rows.append([what, "", "", then, "", now])
    heads = ("case", "measured", "promised then", "", "predicted now", "")
    return "\n".join((*lines, markdown_table(heads, rows)))


def _times(base_s: float | None, step_s: float | None) -> str:
    return _NONE if base_s is None or step_s is None else f"{base_s / step_s:.2f}x"
