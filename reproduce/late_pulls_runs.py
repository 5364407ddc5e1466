"""The study of late pulls: its rows, what is kept of them, and the search and training of a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from late_pulls_averages import Averages, Method
from late_pulls_tasks import Task
from ssd_sgd_search import Local
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.delay import GLU, SGD, Delay

BATCH, MOMENTUM = 8, 0.9
STEPS, QUICK_STEPS = 400, 40
PERIODS = (1, 2, 4)
WORKERS = (2, 4, 8, 16)
SEARCHED, COUNTED = 0, (1, 2, 3)
"""Seeds: of the search, and of what counts."""

MOST_FURTHER = 6
"""How often the search goes beyond the rates that it had."""

SSGD = "SSGD"
CONTENDERS: dict[str, dict[str, Any]] = {
    "GLU": {"local_update": GLU},
    "GLU, alpha 1, beta 1.5": {"local_update": GLU, "alpha": 1.0, "beta": 1.5},
    "GLU, alpha 0.5, beta 2": {"local_update": GLU, "alpha": 0.5, "beta": 2.0},
    "SGD": {"local_update": SGD},
}
"""Name -> the local rule; all else has its default."""

AVERAGED = {
    "local SGD": Method(8),
    "DiLoCo": Method(8, outer_lr=0.7, outer_momentum=0.9),
    "streaming DiLoCo": Method(8, 0.7, 0.9, fragments=2, overlap=2, kept=0.5),
}
"""Name -> how workers average; the outer optimizer is DiLoCo's."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "step": lambda part: 1.0 if part < 0.5 else 0.1 if part < 0.75 else 0.01,
    "cosine": lambda part: (1 + math.cos(math.pi * part)) / 2,
}
"""Name -> what the learning rate is multiplied by, by the part of all steps that were taken."""


Step = Callable[..., None]
"""Updates a row's weights: ``step(gradients, global weights, group=..., num=...)``."""


class Row(NamedTuple):
    """A contender and its k, or steps from one average to the next; 0 for SSGD."""

    contender: str
    k: int

    def delay(self, steps: int) -> Delay | None:
        """Return its delay in a training of so many steps; None for SSGD."""
        if self.contender == SSGD:
            return None
        return Delay(k=self.k, warm_up=steps // 5 - 1, **CONTENDERS[self.contender])

    def step(self, own: Tensor, steps: int) -> Step:
        """Return what updates the weights (P, D) of its workers in a training of so many steps."""
        if self.contender in AVERAGED:
            return Averages(own, AVERAGED[self.contender], steps // 5).step
        return partial(Local(own).step, delay=self.delay(steps))


SYNCHRONOUS = Row(SSGD, 0)
DELAYED = tuple(Row(name, k) for k in PERIODS for name in CONTENDERS)
ROWS = (SYNCHRONOUS, *DELAYED, *(Row(name, how.period) for name, how in AVERAGED.items()))


class Cell(Record, frozen=True, kw_only=True):
    """One row of one combination.

    Attributes:
        task: a name in ``TASKS``.
        workers: how many.
        schedule: a name in ``SCHEDULES``.
        contender: a name in ``CONTENDERS`` or ``AVERAGED``, or SSGD.
        k: steps between pulls or averages; 0 for SSGD.
        rates: learning rates of the search, ascending.
        searched: test accuracy at each of them, in [0, 1].
        rate: the best of them.
        accuracies: test accuracy at that rate, by the seeds that count.
    """

    task: str
    workers: int
    schedule: str
    contender: str
    k: int
    rates: tuple[float, ...]
    searched: tuple[float, ...]
    rate: float
    accuracies: tuple[float, ...]


class LatePulls(Artifact, frozen=True, kw_only=True):
    """All cells of a study.

    Attributes:
        steps: of each training.
        quick: whether trainings were cut to see that they run; then no figure counts.
        cells: in the order in which they were trained.
        metadata: command, hardware, versions, date.
    """

    KIND: ClassVar[str] = "late pulls study"

    steps: int
    quick: bool
    cells: tuple[Cell, ...] = ()
    metadata: dict[str, str] = {}

    def found(self, task: str, workers: int, schedule: str) -> dict[Row, Cell]:
        """Return the cells of a combination, by row."""
        return {
            Row(cell.contender, cell.k): cell
            for cell in self.cells
            if (cell.task, cell.workers, cell.schedule) == (task, workers, schedule)
        }


class Conditions(NamedTuple):
    """What rows that are trained together have in common.

    Attributes:
        workers: how many.
        schedule: a name in ``SCHEDULES``.
        steps: in all.
        seed: of weights and data.
    """

    workers: int
    schedule: str
    steps: int
    seed: int


@torch.no_grad()
def train(
    task: Task, rows: Sequence[Row], rates: Sequence[float], conditions: Conditions
) -> Tensor:
    """Train each row at its rate; return the global weights (rows, D).

    Args:
        task: what is trained.
        rows: contenders, which all see the same samples.
        rates: learning rate of each.
        conditions: the same for all.
    """
    workers, schedule, steps, seed = conditions
    random = torch.Generator().manual_seed(seed)
    start = task.start(seed)
    weights = start.repeat(len(rows), 1)
    momentum = torch.zeros_like(weights)
    local = start.repeat(len(rows), workers, 1)
    ways = [row.step(own, steps) for row, own in zip(rows, local, strict=True)]
    for num in range(steps):
        factor = SCHEDULES[schedule](num / steps)
        groups = [{"lr": factor * rate, "momentum": MOMENTUM} for rate in rates]
        inputs, targets = (
            part.unflatten(0, (workers, BATCH)).repeat(len(rows), *[1] * part.dim())
            for part in task.batch(random, workers * BATCH)
        )
        with torch.enable_grad():
            flat = task.gradient(local.flatten(0, 1), inputs, targets)
        gradients = flat.unflatten(0, (len(rows), workers))
        momentum.mul_(MOMENTUM).add_(gradients.mean(1))
        weights.sub_(momentum * weights.new_tensor([[group["lr"]] for group in groups]))
        for step, gradient, own, group in zip(ways, gradients, weights, groups, strict=True):
            step(gradient, own, group=group, num=num)
    return weights


Found = dict[float, float]
"""Learning rate -> test accuracy."""


def best_of(found: Found) -> float:
    """Return the rate of the best accuracy, and of several the least."""
    return max(sorted(found), key=found.__getitem__)


def search(task: Task, found: dict[Row, Found], conditions: Conditions) -> None:
    """Train rows at rates beyond those in ``found`` until no row's best is at the edge of its own.

    Args:
        task: what is trained.
        found: of each row; added to.
        conditions: with the seed of the search.
    """
    for _ in range(MOST_FURTHER):
        further = {}
        for row, own in found.items():
            best = best_of(own)
            if best == min(own):
                further[row] = best / 2
            elif best == max(own):
                further[row] = best * 2
        if not further:
            return
        rows = list(further)
        weights = train(task, rows, list(further.values()), conditions)
        for row, accuracy in zip(rows, task.accuracies(weights), strict=True):
            found[row][further[row]] = accuracy


def compared(place: tuple[str, int, str], task: Task, steps: int) -> list[Cell]:
    """Search the rate of each row, train it from the seeds that count, and return all cells.

    Args:
        place: the combination: a task's name, workers, schedule.
        task: of that name.
        steps: of each training.
    """
    name, workers, schedule = place
    conditions = Conditions(workers, schedule, steps, SEARCHED)
    found: dict[Row, Found] = {row: {} for row in ROWS}
    for rate in task.rates:
        weights = train(task, ROWS, [rate] * len(ROWS), conditions)
        for row, accuracy in zip(ROWS, task.accuracies(weights), strict=True):
            found[row][rate] = accuracy
    search(task, found, conditions)
    best = [best_of(found[row]) for row in ROWS]
    counted = [
        task.accuracies(train(task, ROWS, best, conditions._replace(seed=seed))) for seed in COUNTED
    ]
    return [
        Cell(
            task=name,
            workers=workers,
            schedule=schedule,
            contender=row.contender,
            k=row.k,
            rates=tuple(sorted(found[row])),
            searched=tuple(found[row][rate] for rate in sorted(found[row])),
            rate=rate,
            accuracies=tuple(each[at] for each in counted),
        )
        for at, (row, rate) in enumerate(zip(ROWS, best, strict=True))
    ]
