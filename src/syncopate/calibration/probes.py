"""Probes: the collectives that handling is fitted to, timed on the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from syncopate.artifacts.cluster import Cluster
from syncopate.calibration.samples import Sample, probes
from syncopate.calibration.timing import Stopwatch, SynchronisedStart
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import device_of
from syncopate.output import Progress
from syncopate.schedules.conditions import conditions
from syncopate.units import KIB

MOST_RANKS = 128
"""Beyond, the small messages of a ring take longer than a calibration may."""

_FEWEST_SAMPLES, _MOST_SAMPLES = 1, 15
_RARELY = 3
_SMALL_BYTES = 128 * KIB


def measure_samples(
    communicator: Communicator,
    cluster: Cluster,
    *,
    budget_s: float,
    progress: Progress | None = None,
) -> tuple[Sample, ...]:
    """Measure the probes; alike on all ranks, every one of which must call.

    Args:
        communicator: the ranks.
        cluster: what is known of them: levels, placement and hosts.
        budget_s: about how long to take.
        progress: called before every call.

    Returns:
        All probes at all sizes, but for the largest where these would take more than the budget;
        none for a single rank, or for more than ``MOST_RANKS``.
    """
    if not 1 < communicator.world_size <= MOST_RANKS:
        return ()
    return _Bench(communicator, cluster, progress).measure(budget_s)


class _Bench:
    """Runs the probes from agreed starts, all sizes in turns, so that a disturbance hits all alike.

    Large sizes take their turn more rarely.
    """

    def __init__(
        self, communicator: Communicator, cluster: Cluster, progress: Progress | None
    ) -> None:
        self._communicator = communicator
        self._watch = Stopwatch(progress)
        self._starts = SynchronisedStart(communicator, shared_clock=len(set(cluster.hosts)) == 1)
        self._probes = probes(cluster)
        # One each, as gradients have: so none finds its own data in a processor's cache.
        device = device_of(communicator)
        self._buffers = []
        for probe in self._probes:
            self._report(0.0)
            self._buffers.append(torch.zeros(probe[-1] // 4, device=device))

    def _report(self, done: float) -> None:
        self._watch("small messages", done)

    def measure(self, budget_s: float) -> tuple[Sample, ...]:
        """Return a sample per probe, the same on all ranks."""
        calls = self._affordable(
            [
                self._call(buffer, *probe[:-1])
                for buffer, probe in zip(self._buffers, self._probes, strict=True)
            ],
            budget_s,
        )
        measured = self._probes[: len(calls)]
        seconds: list[list[float]] = [[] for _ in calls]
        began_s = self._watch.spent_s
        for turn in range(_MOST_SAMPLES * _RARELY):
            spent = (self._watch.spent_s - began_s) / budget_s
            spent = self._communicator.broadcast_object(spent)
            if turn >= _FEWEST_SAMPLES * _RARELY and spent > 1:
                break
            small = turn % _RARELY
            now = [i for i, probe in enumerate(measured) if probe[-1] <= _SMALL_BYTES or not small]
            for index in now:
                self._report(spent)
                seconds[index].append(self._starts.timed(calls[index]))
        ranks = self._communicator.all_gather_object(seconds)
        longest = [zip(*(rank[i] for rank in ranks), strict=True) for i in range(len(calls))]
        return tuple(
            Sample(*probe, tuple(max(times_s) for times_s in repetitions))
            for probe, repetitions in zip(measured, longest, strict=True)
        )

    def _affordable(
        self, calls: list[Callable[[], object]], budget_s: float
    ) -> list[Callable[[], object]]:
        """Make the calls once, by ascending size; return those before they become too long.

        Each size, of which the next takes in proportion, may take half the budget. The sizes up to
        ``_SMALL_BYTES`` are measured however long they take.
        """
        spent_s, before, done = 0.0, 0, 0
        for nbytes, some in itertools.groupby(self._probes, key=lambda probe: probe[-1]):
            if nbytes > _SMALL_BYTES and spent_s * nbytes / before > budget_s / 2:
                break
            count = len(list(some))
            began_s = self._watch.spent_s
            for call in calls[done : done + count]:
                self._report(0.0)
                call()
            spent_s = self._communicator.broadcast_object(self._watch.spent_s - began_s)
            before, done = nbytes, done + count
        return calls[:done]

    def _call(
        self, buffer: torch.Tensor, collective: str, algorithm: str, options: Mapping[str, Any]
    ) -> Callable[[], object]:
        run = getattr(self._communicator, collective)
        root = (0,) if conditions(collective).rooted else ()
        return lambda: run(buffer, *root, algorithm=algorithm, options=dict(options))
