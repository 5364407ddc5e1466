"""Partial: what a calibration that was ended has measured, from which the next one goes on.

Links and racks are kept as a whole, and collectives size by size; interference is measured last and
is not kept. The next calibration goes by what is kept as if it had measured it itself: the seconds
that it took count towards the budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import Cluster, CurvePoint
from syncopate.artifacts.level import require_time
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import hosts_of
from syncopate.units import format_count


class Partial(Artifact, frozen=True, kw_only=True):
    """A calibration that was ended.

    Attributes:
        asked: the arguments that it was called with; another calibration goes on from it only with
            the same ones.
        network: levels, links, γ and handling, without curves.
        points: ``collective -> algorithm -> measurements``.
        spent_s: seconds that it took.
    """

    KIND: ClassVar[str] = "partial calibration"

    asked: dict[str, str]
    network: Cluster
    points: dict[str, dict[str, tuple[CurvePoint, ...]]] = {}
    spent_s: float

    def __post_init__(self) -> None:
        require_time("spent_s", self.spent_s)


class Taken:
    """What a calibration has measured so far, alike on all ranks.

    Args:
        partial: where it goes on from; of rank 0.

    Attributes:
        network: as :class:`Partial` has it; None before it was measured.
        points: ``collective -> algorithm -> size in bytes -> measurements``. A size is added for
            all algorithms at once.
        resumed: whether it goes on from what was kept.
    """

    def __init__(self, partial: Partial | None = None) -> None:
        self.network: Cluster | None = None
        self.points: dict[str, dict[str, dict[int, CurvePoint]]] = {}
        self.resumed = False
        self._partial = partial
        self._start_s = time.perf_counter()

    def agree(self, communicator: Communicator) -> None:
        """Take what rank 0 goes on from, on all ranks; called before anything is measured.

        What is of other hosts, or of the same in another order, is left out.
        """
        self._start_s = time.perf_counter()
        partial: Partial | None = communicator.broadcast_object(self._partial)
        hosts = hosts_of(communicator)
        if partial is None or partial.network.hosts != hosts:
            return
        self.resumed = True
        self.network = partial.network
        self.points = {
            collective: {
                name: {point.nbytes: point for point in points} for name, points in curves.items()
            }
            for collective, curves in partial.points.items()
        }
        self._start_s -= partial.spent_s

    @property
    def spent_s(self) -> float:
        """Seconds since it began, those of the calibration that it goes on from included."""
        return time.perf_counter() - self._start_s

    def partial(self, asked: Mapping[str, str]) -> Partial | None:
        """Return what is kept when it is ended now; None where there is nothing to go on from."""
        if self.network is None:
            return None
        points = {
            collective: {
                name: tuple(points[size] for size in sorted(points))
                for name, points in curves.items()
                if points
            }
            for collective, curves in self.points.items()
        }
        return Partial(asked=dict(asked), network=self.network, points=points, spent_s=self.spent_s)

    def summary(self) -> str:
        """Return what was measured, such as ``"links and 7 sizes of all_reduce"``."""
        counts = {
            collective: len({size for points in curves.values() for size in points})
            for collective, curves in self.points.items()
        }
        sizes = [f"{format_count(n, 'size')} of {name}" for name, n in counts.items() if n]
        return " and ".join(["links", *sizes])


_taken: ContextVar[Taken | None] = ContextVar("taken", default=None)


@contextmanager
def taken_into(taken: Taken) -> Iterator[None]:
    """Let a calibration inside the block go on from ``taken``, and add to it; on every rank."""
    token = _taken.set(taken)
    try:
        yield
    finally:
        _taken.reset(token)


def begun(communicator: Communicator) -> Taken:
    """Return what a calibration that begins now has already, alike on all ranks."""
    taken = _taken.get()
    if taken is None:
        return Taken()
    taken.agree(communicator)
    return taken
