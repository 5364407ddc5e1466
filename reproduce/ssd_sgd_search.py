"""SSD-SGD's local rules at several learning rates: four workers in one process, on digits.

    python reproduce/ssd_sgd_search.py                        # the table of what was trained
    python reproduce/ssd_sgd_search.py --train search.json    # train what is missing, then that
    python reproduce/ssd_sgd_search.py --train quick.json --quick       # two epochs of one seed

The paper chose its learning rates by search (Section 4.1). ``ssd_sgd.py`` takes them over by the
linear rule, and there SGD as the local rule loses its way when the delay begins. This trains the
rows of Fig. 5 at parts of that rate, local rates in proportion. Workers take turns in one process:
same data, same rules, same sums as ``ssd_sgd.py`` but for their rounding. A run takes half a
minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from rich import box
from rich.console import Console
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ssd_sgd_runs import (
    FIG_5,
    ROWS,
    SSGD,
    WORKLOADS,
    Place,
    Run,
    Setting,
    Study,
    Workload,
    delay_of,
    setting_of,
)
from syncopate.collectives.machine import cpu_name
from syncopate.delay import Delay
from syncopate.engine.exchange.delay.rules import RULES, Flat, hyper_of
from syncopate.errors import SyncopateError
from syncopate.reports.tables import ReportTable
from syncopate.zoo.task import seeded

SEARCHED = Path(__file__).parent / "data" / "ssd_sgd_search.json"
WORKERS = 4
NAME = "digits"
DIVISORS = (1, 2, 4)
"""Learning rates: that of ``ssd_sgd.py`` over each."""

SEEDS = 3
SEARCH_ROWS = (SSGD, *FIG_5)
_EPOCHS_APART = 1000


def at(divisor: int) -> str:
    """Return what runs at a learning rate are filed under."""
    return f"{NAME}, lr / {divisor}"


class Local:
    """Weights between pulls: those of one worker, or of several that step alike.

    Args:
        weights: changed in place, of any shape whose last dimensions are those of the global ones.
    """

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.before = weights.clone()
        self.squares = torch.zeros_like(weights)
        self.arrived: Tensor | None = None

    def step(
        self,
        gradient: Tensor,
        weights: Tensor,
        delay: Delay | None,
        group: Mapping[str, Any],
        num: int,
    ) -> None:
        """Do what Algorithm 1 does in iteration ``num`` when the global weights are updated.

        Args:
            gradient: of the local weights, as they were before.
            weights: the global ones, updated; not kept.
            delay: None for SSGD.
            group: of the optimizer of the global weights, as it is in this iteration.
            num: from 0.
        """
        if delay is None or num <= delay.wp:
            self.weights.copy_(weights)
            self.before.copy_(weights)
            return
        if self.arrived is not None:
            self.weights.copy_(self.arrived)
            self.arrived = None
        updates = num - delay.wp - 1
        pulled = updates > 0 and updates % delay.k == 0
        before = self.weights.clone() if pulled else self.before
        rule = RULES[delay.local_update]
        rule(Flat(self.weights, gradient, self.before, self.squares), hyper_of(delay, group))
        self.before = before
        if num % delay.k == delay.k - 1:
            self.arrived = weights.detach().clone()


class Worker:
    """One worker: a model whose parameters are views of its local weights.

    Args:
        model: its own.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.local = Local(parameters_to_vector(model.parameters()).detach().clone())
        vector_to_parameters(self.local.weights, model.parameters())

    def gradient(self, workload: Workload, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the gradient of one batch, flat."""
        self.model.zero_grad()
        inputs, targets = batch
        workload.loss(self.model(inputs), targets).backward()
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])


@torch.no_grad()
def stepped(
    workers: Sequence[Local],
    gradients: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    delay: Delay | None,
    num: int,
) -> None:
    """Update global and local weights in iteration ``num``: Algorithm 1 from line 5 on."""
    (group,) = optimizer.param_groups
    (weights,) = group["params"]
    weights.grad = torch.stack(list(gradients)).mean(0)
    optimizer.step()
    for worker, gradient in zip(workers, gradients, strict=True):
        worker.step(gradient, weights, delay, group, num)


def train(place: Place, workload: Workload, setting: Setting, workers: int = WORKERS) -> Run:
    """Train once in this process.

    Args:
        place: the run.
        workload: what is trained.
        setting: how.
        workers: how many take turns.
    """
    began_s, delay = time.perf_counter(), delay_of(ROWS[place.row], setting)
    team = []
    for _ in range(workers):
        with seeded(place.seed):
            team.append(Worker(workload.build()))
    weights = team[0].local.weights.clone().requires_grad_()
    optimizer = torch.optim.SGD(
        [weights], lr=setting.lr, momentum=setting.momentum, weight_decay=setting.weight_decay
    )
    curve, num = [], 0
    for epoch in range(setting.epochs):
        order = place.seed * _EPOCHS_APART + epoch
        batches = (workload.batches(setting.batch_size, order, n, workers) for n in range(workers))
        for step in zip(*batches, strict=True):
            pairs = zip(team, step, strict=True)
            gradients = [worker.gradient(workload, batch) for worker, batch in pairs]
            stepped([worker.local for worker in team], gradients, optimizer, delay, num)
            num += 1
        curve.append(_tested(team[0], weights, workload))
    return Run(
        workload=place.workload,
        row=place.row,
        seed=place.seed,
        accuracy=curve[-1],
        curve=tuple(curve),
        warm_up=delay.wp if delay else 0,
        seconds=time.perf_counter() - began_s,
    )


@torch.no_grad()
def _tested(worker: Worker, weights: Tensor, workload: Workload) -> float:
    """Return the accuracy of the global weights; see [Note: what is tested]."""
    own = worker.local.weights.clone()
    worker.local.weights.copy_(weights)
    found = workload.accuracy(worker.model)
    worker.local.weights.copy_(own)
    return found


def study_of(path: Path | None, quick: bool, workload: Workload) -> Study:
    """Return what a file holds, or a study without a run."""
    if path is not None and path.exists():
        return Study.load(path)
    setting = setting_of(NAME, workload, WORKERS, quick)
    settings = {at(n): replace(setting, lr=setting.lr / n) for n in DIVISORS}
    metadata = {
        "command": f"python reproduce/{Path(__file__).name} --train FILE",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "torch": str(torch.__version__),
        "processes": "1",
    }
    return Study(ranks=WORKERS, quick=quick, settings=settings, metadata=metadata)


def trained(path: Path, options: argparse.Namespace) -> Study:
    """Train what a file lacks; each run is kept as soon as it is done."""
    torch.set_num_threads(1)
    workload = WORKLOADS[NAME]()
    study = study_of(path, options.quick, workload)
    places = [
        Place(at(divisor), row, seed)
        for seed in range(1 if options.quick else options.seeds)
        for divisor in ((1,) if options.quick else DIVISORS)
        for row in SEARCH_ROWS
    ]
    for place in places:
        if place.seed not in study.found(place.workload, place.row):
            run = train(place, workload, study.settings[place.workload])
            study = replace(study, runs=(*study.runs, run))
            study.save(path)
            print(f"{place}: {run.accuracy:.2%} in {run.seconds:.1f} s", file=sys.stderr)
    return study


def accuracies(study: Study, row: str) -> Iterator[tuple[int, list[float]]]:
    """Yield each learning rate's divisor with a row's accuracies in %, where it was trained."""
    for divisor in DIVISORS:
        runs = study.found(at(divisor), row)
        if runs:
            yield divisor, [100 * runs[seed].accuracy for seed in sorted(runs)]


def table(study: Study) -> ReportTable:
    """Return accuracy by row and learning rate: the mean, and least to most over seeds."""
    found = ReportTable(
        title="Fig. 5's rules on digits by learning rate, test accuracy, %", box=box.SIMPLE_HEAD
    )
    for column in ("", *(f"lr / {divisor}" for divisor in DIVISORS)):
        found.add_column(column, justify="right" if column else "left")
    for row in SEARCH_ROWS:
        cells = dict.fromkeys(DIVISORS, "-")
        for divisor, values in accuracies(study, row):
            spread = f"{min(values):.1f} to {max(values):.1f}" if len(values) > 1 else "one seed"
            cells[divisor] = f"{statistics.fmean(values):.1f} ({spread})"
        title = "GLU" if row == FIG_5[0] else ROWS[row].title
        found.add_row(title, *cells.values())
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Train what is asked for, and print the table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=Path, metavar="FILE", help="train the runs that this file lacks")
    add("--results", type=Path, metavar="FILE", help="show this file instead of our own")
    add("--seeds", type=int, default=SEEDS, help=f"of each row ({SEEDS})")
    add("--quick", action="store_true", help="two epochs of one seed, to see that it runs")
    add("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    try:
        if options.train is not None:
            study = trained(options.train, options)
        else:
            study = Study.load(options.results or SEARCHED)
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps({row: dict(accuracies(study, row)) for row in SEARCH_ROWS}, indent=1))
        return 0
    console = Console(width=150)
    console.print(table(study))
    if study.quick:
        console.print("These runs were cut to see that they run: no figure counts.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
