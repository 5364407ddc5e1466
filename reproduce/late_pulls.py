"""What late weights cost: SSD-SGD's rules, local SGD and DiLoCo beside SSGD, at searched rates.

    python reproduce/late_pulls.py                            # the tables of what was trained
    python reproduce/late_pulls.py --train study.json         # train what is missing, then those
    python reproduce/late_pulls.py --train study.json --task text --workers 4 8
    python reproduce/late_pulls.py --train quick.json --quick # a part in few steps

Three tasks, 2 to 16 workers, three schedules of the learning rate; k = 1, 2 and 4, and averages
every 8 steps. Each contender is trained at four learning rates from one seed, and at others twice
or half as large until none at the edge is the best. The rate of the best test accuracy is then
trained from three other seeds, and these count. A worker has the same batch in all, so more workers
see more samples in as many steps. A fifth of the steps are the warm-up.

All workers of all contenders at one rate are computed together, in one process on one thread. What
a step does to their weights is the engine's own rule (``ssd_sgd_search.Local``). Each combination
of task, workers and schedule is kept as soon as it is done, and a study that was stopped goes on
where it was: all 36 take half an hour.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from rich import box
from rich.console import Console

from late_pulls_runs import (
    AVERAGED,
    DELAYED,
    QUICK_STEPS,
    ROWS,
    SCHEDULES,
    STEPS,
    SYNCHRONOUS,
    WORKERS,
    Cell,
    LatePulls,
    Row,
    compared,
)
from late_pulls_tasks import TASKS
from syncopate.collectives.machine import cpu_name
from syncopate.errors import SyncopateError
from syncopate.reports.tables import ReportTable

STUDIED = Path(__file__).parent / "data" / "late_pulls.json"


def trained(path: Path, options: argparse.Namespace) -> LatePulls:
    """Train what a file lacks; each combination is kept as soon as it is done."""
    torch.set_num_threads(1)
    if path.exists():
        study = LatePulls.load(path)
    else:
        metadata = {
            "command": f"python reproduce/{Path(__file__).name} --train FILE",
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cpu": cpu_name(),
            "torch": str(torch.__version__),
        }
        steps = QUICK_STEPS if options.quick else STEPS
        study = LatePulls(steps=steps, quick=options.quick, metadata=metadata)
    places = [
        (name, workers, schedule)
        for workers in options.workers
        for name in options.task
        for schedule in SCHEDULES
    ]
    places = [place for place in places if not study.found(*place)]
    tasks = {name: TASKS[name]() for name in {name for name, _, _ in places}}
    for done, (name, workers, schedule) in enumerate(places, 1):
        began_s = time.perf_counter()
        cells = compared((name, workers, schedule), tasks[name], study.steps)
        study = replace(study, cells=(*study.cells, *cells))
        study.save(path)
        spent_s = time.perf_counter() - began_s
        print(
            f"{done} of {len(places)}: {name}, {workers} workers, {schedule}, in {spent_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return study


class Spread(NamedTuple):
    """Points of accuracy in %: their mean, its standard error, and of how many trainings."""

    mean: float
    error: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.error:.1f}"


def spread(points: Sequence[float]) -> Spread:
    """Return the mean of values and its standard error."""
    error = statistics.stdev(points) / len(points) ** 0.5 if len(points) > 1 else 0.0
    return Spread(statistics.fmean(points), error, len(points))


def above(
    study: LatePulls,
    row: Row,
    base: Row | str = SYNCHRONOUS,
    *,
    task: str | None = None,
    workers: int | None = None,
    schedule: str | None = None,
) -> Spread | None:
    """Return how far a row's accuracy is above another's in the same combination and seed.

    Args:
        study: where.
        row: which.
        base: the other, or a contender with the same k.
        task: one alone.
        workers: one number alone.
        schedule: one alone.

    Returns:
        None where nothing of it was trained.
    """
    other = Row(base, row.k) if isinstance(base, str) else base
    points: list[float] = []
    for cells in combinations(study, task, workers, schedule):
        pairs = zip(cells[row].accuracies, cells[other].accuracies, strict=True)
        points += [100 * (ours - theirs) for ours, theirs in pairs]
    return spread(points) if points else None


def combinations(
    study: LatePulls, task: str | None, workers: int | None, schedule: str | None
) -> Iterator[dict[Row, Cell]]:
    """Yield the cells of each combination that was trained, by row."""
    for one in (task,) if task else TASKS:
        for number in (workers,) if workers else WORKERS:
            for how in (schedule,) if schedule else SCHEDULES:
                cells = study.found(one, number, how)
                if cells:
                    yield cells


def at_the_edge(study: LatePulls) -> int:
    """Return how many cells have the least or the greatest rate of their search."""
    return sum(cell.rate in (cell.rates[0], cell.rates[-1]) for cell in study.cells)


def by_workers(study: LatePulls, task: str) -> ReportTable:
    """Return a task's table: points above SSGD by row and workers, over all schedules."""
    columns = [{"workers": number} for number in WORKERS]
    return _table(study, f"{task}: by workers", task, columns, [str(n) for n in WORKERS])


def by_schedule(study: LatePulls, task: str) -> ReportTable:
    """Return a task's table: points above SSGD by row and schedule, over all workers."""
    columns = [{"schedule": name} for name in SCHEDULES]
    return _table(study, f"{task}: by schedule", task, columns, list(SCHEDULES))


def _table(
    study: LatePulls, title: str, task: str, columns: Sequence[dict[str, Any]], names: Iterable[str]
) -> ReportTable:
    found = ReportTable(title=title, box=box.SIMPLE_HEAD)
    for name in ("points above SSGD", *names):
        found.add_column(name, justify="right" if name in {*names} else "left")
    for row in ROWS[1:]:
        cells = [above(study, row, task=task, **column) for column in columns]
        found.add_row(titled(row), *(str(cell or "-") for cell in cells))
    base = [_mean(study, task, **column) for column in columns]
    found.add_row("SSGD itself, %", *base)
    return found


def _mean(study: LatePulls, task: str, **column: Any) -> str:
    chosen = {"workers": None, "schedule": None} | column
    cells = combinations(study, task, chosen["workers"], chosen["schedule"])
    values = [100 * value for each in cells for value in each[SYNCHRONOUS].accuracies]
    return f"{statistics.fmean(values):.1f}" if values else "-"


def on_the_page(study: LatePulls) -> str:
    """Return the table of docs/ssd_sgd.md: points above SSGD, in Markdown."""
    columns: dict[str, dict[str, Any]] = {"digits": {"task": "digits"}}
    columns["generated"] = {"task": "generated"}
    for number in WORKERS:
        columns[f"text, {number} workers"] = {"task": "text", "workers": number}
    for name in SCHEDULES:
        columns[f"text, {name}"] = {"task": "text", "schedule": name}
    lines = ["| points above SSGD |" + "".join(f" {name} |" for name in columns)]
    lines.append("| --- |" + " --- |" * len(columns))
    lines.append(
        "| SSGD itself, % |" + "".join(f" {_mean(study, **c)} |" for c in columns.values())
    )
    for row in ROWS[1:]:
        cells = (above(study, row, **column) for column in columns.values())
        lines.append(f"| {titled(row)} |" + "".join(f" {cell or '-'} |" for cell in cells))
    return "\n".join(lines)


def titled(row: Row) -> str:
    """Return what a row is called in tables."""
    return f"{row.contender}, {'H' if row.contender in AVERAGED else 'k'} = {row.k}"


def figures(study: LatePulls) -> dict[str, Any]:
    """Return points above SSGD and above GLU's defaults, by task, schedule, workers and row."""

    def of(base: Row | str, rows: Iterable[Row]) -> dict[str, Any]:
        return {
            f"{task}, {schedule}, {workers} workers, k = {row.k}, {row.contender}": found._asdict()
            for task in TASKS
            for schedule in SCHEDULES
            for workers in WORKERS
            for row in rows
            for found in [above(study, row, base, task=task, workers=workers, schedule=schedule)]
            if found
        }

    others = [row for row in DELAYED if row.contender != "GLU"]
    return {"above SSGD": of(SYNCHRONOUS, ROWS[1:]), "above GLU": of("GLU", others)}


def main(words: Sequence[str] | None = None) -> int:
    """Train what is asked for, and print tables or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=Path, metavar="FILE", help="train what this file lacks")
    add("--results", type=Path, metavar="FILE", help="show this file instead of our own")
    add("--task", nargs="+", choices=TASKS, help="which to train (all)")
    add("--workers", nargs="+", type=int, choices=WORKERS, help="which to train (all)")
    add("--quick", action="store_true", help="few steps of 2 workers, to see that it runs")
    add("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(words)
    options.task = options.task or list(TASKS)
    options.workers = options.workers or list(WORKERS[:1] if options.quick else WORKERS)
    try:
        if options.train is not None:
            study = trained(options.train, options)
        else:
            study = LatePulls.load(options.results or STUDIED)
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(figures(study), indent=1))
        return 0
    console = Console(width=150)
    for name in TASKS:
        console.print(by_workers(study, name))
        console.print(by_schedule(study, name))
    print(on_the_page(study))
    edge = at_the_edge(study)
    console.print(f"{edge} of {len(study.cells)} best rates are the least or greatest searched.")
    if study.quick:
        console.print("These trainings were cut to see that they run: no figure counts.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
