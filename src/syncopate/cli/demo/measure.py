"""Measuring plans side by side: every contender takes its turn, several times over.

Machines drift; contenders measured one after the other would be compared with the drift. Here each
round runs a few iterations of every contender, so all of them see the same weather, and the median
over all rounds is what gets printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from syncopate.collectives import Communicator
from syncopate.output import Progress, say


class Contends(Protocol):
    """A contender that can take turns."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def turn(self, communicator: Communicator, *, warmup: int, iterations: int) -> float:
        """Take a turn on all ranks at once; return this rank's seconds per iteration.

        Args:
            communicator: joins the ranks.
            warmup: iterations that are not counted.
            iterations: those that are.
        """


@dataclass(frozen=True)
class Contender:
    """One way of training, timed by the whole turn.

    Attributes:
        name: what to call it in tables.
        prepare: makes it the way that ``step`` trains, such as installing a plan.
        step: one whole iteration, from zeroing the gradients to the optimizer's step.
    """

    name: str
    prepare: Callable[[], object]
    step: Callable[[], object]

    def turn(self, communicator: Communicator, *, warmup: int, iterations: int) -> float:
        """Train for a turn; return its time over its iterations."""
        self.prepare()
        communicator.barrier()
        for _ in range(warmup):
            self.step()
        start_s = time.perf_counter()
        for _ in range(iterations):
            self.step()
        return (time.perf_counter() - start_s) / iterations


def measure(
    contenders: Sequence[Contends],
    communicator: Communicator,
    *,
    rounds: int,
    iterations: int,
    warmup: int = 2,
    progress: Progress | None = None,
) -> dict[str, list[float]]:
    """Measure iteration times of every contender, interleaved.

    Args:
        contenders: the same on all ranks, in the same order.
        communicator: joins the ranks.
        rounds: turns of each contender.
        iterations: measured iterations per turn.
        warmup: iterations per turn that are not counted.
        progress: called with what runs and the fraction done.

    Returns:
        Seconds per iteration by contender, one figure per turn: the maximum over ranks of its time
        over its iterations. (Single iterations would not do: a rank that is late in one is early
        in the next, so the slowest rank of each adds up to more time than passed.)
    """
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    turns = rounds * len(contenders)
    for turn in range(turns):
        contender = contenders[turn % len(contenders)]
        say(progress, contender.name, turn / turns)
        seconds = contender.turn(communicator, warmup=warmup, iterations=iterations)
        times[contender.name].append(seconds)
    everyone: list[dict[str, list[float]]] = communicator.all_gather_object(times)
    return {
        name: [max(same) for same in zip(*(own[name] for own in everyone), strict=True)]
        for name in times
    }
