"""Timing: collectives by contenders that take turns, a barrier before every call.

All hosts of a lab read one clock, so a sample lasts from the last rank's start to the last rank's
end: ranks leave a barrier one after the other, and waiting for the last is no part of a collective.
The longest of the ranks' own durations, which is what ranks without a common clock can tell, is
kept beside it. After its call a rank rests for a moment: where hosts share processors, its next
barrier would take one from a rank that is still in the call. Contenders run in one order and then
in the other, so that none always follows the same one. Before, each runs once on data that can be
verified, which is its warm-up too. How often is agreed from the first timed calls, so that large
messages take their share of the time and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from syncopate.collectives import Communicator
from syncopate.collectives.pattern import Pattern
from syncopate.recipe import Recipe
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import NATIVE

from .results import Cell, Sampled

Span = tuple[float, float]
"""Start and end of a rank's call."""

DTYPE = torch.float32
ITEM_BYTES = 4

_REST_S = 3e-3


@dataclass(frozen=True)
class Effort:
    """How much time measuring may take.

    Attributes:
        cell_s: about how long the calls of one size may take, all contenders together.
        fewest: calls of each contender at least.
        most: calls of each contender at most.
        largest_bytes: larger messages are left out.
        calibration_s: budget of the calibration for the links, and for each collective.
        quick: whether this is to see that it runs.
    """

    cell_s: float = 5.0
    fewest: int = 5
    most: int = 41
    largest_bytes: int = 1 << 40
    calibration_s: float = 30.0
    quick: bool = False


FULL = Effort()
QUICK = Effort(cell_s=0.2, fewest=1, most=3, largest_bytes=4 << 20, calibration_s=2.0, quick=True)


@dataclass(frozen=True)
class Contender:
    """One way to run a collective.

    Attributes:
        algorithm: a registered name, ``"native"`` or ``"auto"``.
        options: of the algorithm.
        ran: what to report that ran; empty where the name says it.
        communicator: where to run it; the one that is measured on when left out.
        stands_for: what ``"auto"`` runs.
        call: what to run on the tensor in place of all that.
    """

    algorithm: str = NATIVE
    options: Mapping[str, Any] = field(default_factory=dict)
    ran: str = ""
    communicator: Communicator | None = None
    stands_for: Recipe | None = None
    call: Callable[[torch.Tensor], object] | None = None


class Turns:
    """Measures contenders on one communicator.

    Args:
        communicator: the ranks; all of them must call :meth:`measure` alike.
        effort: how much time it may take.
    """

    def __init__(self, communicator: Communicator, effort: Effort) -> None:
        self._communicator = communicator
        self._effort = effort

    def measure(self, collective: str, nbytes: int, contenders: Mapping[str, Contender]) -> Cell:
        """Return the cell, the same on all ranks."""
        tensor = torch.empty(nbytes // ITEM_BYTES, dtype=DTYPE)
        calls = {
            name: self._call(collective, tensor, contender)
            for name, contender in contenders.items()
        }
        wrong = sum(self._verify(collective, tensor, call) for call in calls.values())
        tensor.zero_()
        mine = {name: [self._once(call)] for name, call in calls.items()}
        first = sum(end_s - start_s for ((start_s, end_s),) in mine.values())
        first_s = max(self._communicator.all_gather_object(first))
        effort = self._effort
        count = min(max(round(effort.cell_s / first_s), effort.fewest), effort.most)
        for turn in range(1, count):
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                mine[name].append(self._once(calls[name]))
        gathered = {name: self._gathered(found) for name, found in mine.items()}
        return Cell(
            collective=collective,
            nbytes=nbytes,
            world_size=self._communicator.world_size,
            contenders={
                name: Sampled(
                    samples_s=tuple(map(from_last_start, found)),
                    own_s=tuple(map(longest, found)),
                    ran=contenders[name].ran,
                )
                for name, found in gathered.items()
            },
            wrong=sum(self._communicator.all_gather_object(wrong)),
        )

    def _call(
        self, collective: str, tensor: torch.Tensor, contender: Contender
    ) -> Callable[[], object]:
        if contender.call is not None:
            return partial(contender.call, tensor)
        run = getattr(contender.communicator or self._communicator, collective)
        root = (0,) if conditions(collective).rooted else ()
        return lambda: run(
            tensor, *root, algorithm=contender.algorithm, options=dict(contender.options)
        )

    def _verify(self, collective: str, tensor: torch.Tensor, call: Callable[[], object]) -> int:
        communicator = self._communicator
        pattern = Pattern(
            collective, tensor.numel(), "float32", communicator.rank, communicator.world_size
        )
        tensor.copy_(pattern.input())
        call()
        return pattern.wrong(tensor)

    def _once(self, call: Callable[[], object]) -> Span:
        self._communicator.barrier()
        start_s = time.perf_counter()
        call()
        end_s = time.perf_counter()
        time.sleep(_REST_S)
        return start_s, end_s

    def _gathered(self, mine: Sequence[Span]) -> list[tuple[Span, ...]]:
        """Return, per call, the span of every rank."""
        return list(zip(*self._communicator.all_gather_object(list(mine)), strict=True))


def from_last_start(spans: Sequence[Span]) -> float:
    """Return how long one call took from the last rank's start to the last rank's end."""
    return max(end_s for _, end_s in spans) - max(start_s for start_s, _ in spans)


def longest(spans: Sequence[Span]) -> float:
    """Return the longest of the ranks' own durations of one call."""
    return max(end_s - start_s for start_s, end_s in spans)
