"""Handling: what messages cost besides the wire, fitted to a few collectives of small messages.

Five collectives show the five figures of :class:`~syncopate.cluster.Handling` at two sizes each: an
all-gather along a ring is p - 1 rounds of all ranks, a recursive one log2 p of them, an all-reduce
along a ring adds as well; a chain broadcast in one block is a message at a time, and in many it is
a stream. What they took is held against what :mod:`syncopate.costs.execution` expects, which is
close to linear in the figures: so the fit is a non-negative least squares of relative errors, a few
times over. Buffers that the executor copies and those in which it works in place have figures of
their own.

Everything else that is priced on a calibrated cluster, all other algorithms, options and sizes, is
a prediction.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from scipy.optimize import nnls

from syncopate.calibration.progress import Progress, say
from syncopate.calibration.starts import Starts
from syncopate.calibration.wire import device_of
from syncopate.cluster import Cluster, Handling
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.executor import STAGED_BYTES
from syncopate.costs.execution import execution_times
from syncopate.costs.messages import FloatArray
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import conditions
from syncopate.units import KIB, MIB

PROBES: tuple[tuple[str, str, Mapping[str, int]], ...] = (
    ("all_gather", "ring", {}),
    ("all_gather", "recursive", {}),
    ("all_reduce", "ring", {}),
    ("broadcast", "lp", {"blocks": 1}),
    ("broadcast", "lp", {"blocks": 16}),
)
"""What is measured: collective, algorithm and options."""

SIZES: tuple[tuple[int | None, tuple[int, ...]], ...] = (
    (STAGED_BYTES, (4 * KIB, 64 * KIB)),
    (None, (128 * KIB, 4 * MIB)),
)
"""Sizes in bytes at which they are measured, by the largest buffer that they speak for."""

MOST_RANKS = 128
"""Beyond, the small messages of a ring take longer than a calibration may."""

_FITTED = ("call_s", "round_s", "stream_s", "addition_s", "byte_s")
_FEWEST_SAMPLES, _MOST_SAMPLES = 1, 15
_RARELY = 3
_SMALL_BYTES = 128 * KIB
_STEPS = 8
_NUDGES = np.diag([1e-7, 1e-7, 1e-7, 1e-7, 1e-12])
_UNFELT = 1e-6


class Sample(NamedTuple):
    """One probe and what it took.

    Attributes:
        collective: its name.
        algorithm: its name.
        options: of the algorithm.
        nbytes: size of the buffer.
        seconds: the median over turns of the longest rank's time.
    """

    collective: str
    algorithm: str
    options: Mapping[str, Any]
    nbytes: int
    seconds: float


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
        progress: called before every size.

    Returns:
        All probes at all sizes; none for a single rank, or for more than ``MOST_RANKS``.
    """
    if not 1 < communicator.world_size <= MOST_RANKS:
        return ()
    sizes = [nbytes for _, some in SIZES for nbytes in some]
    bench = _Bench(communicator, cluster, sizes)
    return bench.measure(budget_s, progress)


def handling_of(
    cluster: Cluster, samples: Sequence[Sample], burst_byte_s: float
) -> tuple[Handling, ...]:
    """Return one entry per range of sizes, fitted to the samples there; none without samples.

    Args:
        cluster: what is known: levels, placement, γ.
        samples: of all sizes.
        burst_byte_s: see :class:`~syncopate.cluster.Handling`; measured with the links.
    """
    if not samples:
        return ()
    return tuple(
        Handling(
            up_to_bytes=limit,
            burst_byte_s=burst_byte_s,
            **fit(cluster, [s for s in samples if s.nbytes in some], burst_byte_s),
        )
        for limit, some in SIZES
    )


class _Bench:
    """Runs the probes from agreed starts, all sizes in turns, so that a disturbance hits all alike.

    Large sizes take their turn more rarely.
    """

    def __init__(self, communicator: Communicator, cluster: Cluster, sizes: Sequence[int]) -> None:
        self._communicator = communicator
        self._starts = Starts(communicator, shared_clock=len(set(cluster.hosts)) == 1)
        self._probes = [
            (collective, name, registry.fitted(collective, name, cluster) | dict(options), nbytes)
            for nbytes in sizes
            for collective, name, options in PROBES
        ]
        self._buffer = torch.zeros(max(sizes) // 4, device=device_of(communicator))

    def measure(self, budget_s: float, progress: Progress | None) -> tuple[Sample, ...]:
        """Return a sample per probe, the same on all ranks."""
        calls = [self._call(*probe) for probe in self._probes]
        for call in calls:
            call()
        seconds: list[list[float]] = [[] for _ in calls]
        began_s = time.perf_counter()
        for turn in range(_MOST_SAMPLES * _RARELY):
            spent = (time.perf_counter() - began_s) / budget_s
            spent = self._communicator.broadcast_object(spent)
            if turn >= _FEWEST_SAMPLES * _RARELY and spent > 1:
                break
            say(progress, "small messages", spent)
            for times_s, call, probe in zip(seconds, calls, self._probes, strict=True):
                if probe[-1] <= _SMALL_BYTES or turn % _RARELY == 0:
                    times_s.append(self._starts.timed(call))
        ranks = self._communicator.all_gather_object(seconds)
        longest = [zip(*(rank[i] for rank in ranks), strict=True) for i in range(len(calls))]
        return tuple(
            Sample(*probe, statistics.median(max(times_s) for times_s in repetitions))
            for probe, repetitions in zip(self._probes, longest, strict=True)
        )

    def _call(
        self, collective: str, algorithm: str, options: Mapping[str, Any], nbytes: int
    ) -> Callable[[], object]:
        view = self._buffer[: nbytes // 4]
        run = getattr(self._communicator, collective)
        root = (0,) if conditions(collective).rooted else ()
        return lambda: run(view, *root, algorithm=algorithm, options=dict(options))


def fit(cluster: Cluster, samples: Sequence[Sample], burst_byte_s: float) -> dict[str, float]:
    """Return the figures with which the expected times are closest to the measured ones.

    Args:
        cluster: levels, placement and γ.
        samples: at least one; with few of them some figures may be 0.
        burst_byte_s: the figure that is known already.
    """
    measured = np.array([sample.seconds for sample in samples])

    def predicted(figures: FloatArray) -> FloatArray:
        handling = Handling(
            burst_byte_s=burst_byte_s, **dict(zip(_FITTED, figures.tolist(), strict=True))
        )
        return _expected(structs.replace(cluster, handling=(handling,)), samples)

    best = figures = _guess(cluster.world_size, samples)
    least = np.inf
    for _ in range(_STEPS):
        here = predicted(figures)
        error = float(np.square(here / measured - 1).sum())
        if error < least:
            best, least = figures, error
        slopes = np.stack([(predicted(figures + d) - here) / d.sum() for d in _NUDGES], axis=1)
        slopes /= measured[:, None]
        # A figure that is nowhere in the way cannot be told, and stays as it is.
        felt = np.abs(slopes).max(axis=0) * figures.clip(_NUDGES.max(axis=0)) > _UNFELT
        target = 1 - here / measured + slopes[:, felt] @ figures[felt]
        scale = np.abs(slopes[:, felt]).max(axis=0)
        found = figures.copy()
        found[felt] = nnls(slopes[:, felt] / scale, target)[0] / scale
        figures = (found + best) / 2 if error > least else found
    return dict(zip(_FITTED, best.tolist(), strict=True))


def _guess(ranks: int, samples: Sequence[Sample]) -> FloatArray:
    """Return figures to start from, at which every one of them is in the way of something."""
    shortest_s = min(sample.seconds for sample in samples)
    rounds_s = [s.seconds / (ranks - 1) for s in samples if s[:2] == ("all_gather", "ring")]
    round_s = min(rounds_s, default=shortest_s)
    return np.array([shortest_s / 2, round_s, round_s / 2, round_s / 10, 1e-9])


def _expected(cluster: Cluster, samples: Sequence[Sample]) -> FloatArray:
    """Return what each sample is expected to take."""
    rows: dict[Schedule, list[int]] = {}
    for row, sample in enumerate(samples):
        schedule = registry.build(
            sample.collective, sample.algorithm, cluster.world_size, **sample.options
        )
        rows.setdefault(schedule, []).append(row)
    found = np.empty(len(samples))
    for schedule, those in rows.items():
        found[those] = execution_times(schedule, cluster, [samples[row].nbytes for row in those])
    return found
