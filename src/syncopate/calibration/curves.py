"""Curves: what every all-reduce algorithm costs here, from a few bytes to many megabytes.

[Note: what one sample is] A barrier, then one collective on an idle channel, submitted as an engine
submits it (``async_op``). Ranks leave a barrier at different moments, and a collective cannot begin
before the last of them: on one host, whose ranks share a clock, a sample lasts from the last rank's
start to the last rank's end. Over several hosts clocks cannot be compared that finely, and a sample
is the longest of the ranks' own durations. Within one size the algorithms take turns, so that a
disturbance hits all of them alike.

All decisions (how often, what to stop) are taken from gathered figures, so that every rank takes
the same one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from syncopate.calibration.progress import Progress, say
from syncopate.calibration.wire import device_of, synchronize
from syncopate.cluster import CollectiveCurve, CurvePoint
from syncopate.collectives.communicator import Communicator
from syncopate.costs.fits import fit_linear
from syncopate.errors import CalibrationError
from syncopate.units import MIB, format_bytes

COLLECTIVE = "all_reduce"

DEFAULT_SIZES: tuple[int, ...] = tuple(
    sorted([*(4**k for k in range(1, 14)), 2 * MIB, 8 * MIB, 32 * MIB])
)
"""Message sizes in bytes: powers of 4 from 4 B to 64 MiB, and closer above 1 MiB, where curves
bend."""

MOST_REPETITIONS = 40
FEWEST_REPETITIONS = 3
HOPELESS = 3.0
"""An algorithm this many times slower than the best at two sizes running is measured no further."""

_Stamps = list[tuple[float, float]]


@dataclass
class Curves:
    """The measured curves and how they came about.

    Attributes:
        curves: one per algorithm, in the order asked for.
        stopped: ``algorithm -> why it was not measured at larger sizes``.
        repetitions: ``size in bytes -> samples per algorithm``.
    """

    curves: tuple[CollectiveCurve, ...] = ()
    stopped: dict[str, str] = field(default_factory=dict)
    repetitions: dict[int, int] = field(default_factory=dict)


def measure_curves(
    communicator: Communicator,
    *,
    sizes: Sequence[int],
    algorithms: Sequence[str],
    budget_s: float,
    shared_clock: bool,
    progress: Progress | None = None,
) -> Curves:
    """Measure all-reduce; alike on all ranks.

    Args:
        communicator: at least two ranks; all of them must call this.
        sizes: message sizes in bytes, ascending multiples of 4.
        algorithms: registered names or ``"native"``.
        budget_s: about how long to take; the smallest size is measured whatever it costs.
        shared_clock: whether all ranks read one clock, see [Note: what one sample is].
        progress: called before every size.

    Raises:
        CalibrationError: an algorithm returned a wrong sum.
    """
    start_s = time.perf_counter()
    bench = _Bench(communicator, max(sizes), shared_clock)
    result = Curves()
    medians_s: list[dict[str, float]] = []
    points: dict[str, list[CurvePoint]] = {name: [] for name in algorithms}
    for index, nbytes in enumerate(sizes):
        say(progress, f"{COLLECTIVE} {format_bytes(nbytes)}", index / len(sizes))
        elapsed_s = communicator.broadcast_object(time.perf_counter() - start_s)
        left_s = budget_s - elapsed_s
        _drop_hopeless(result.stopped, medians_s, sizes)
        if index > 0:
            growth = nbytes / sizes[index - 1]
            _drop_unaffordable(result.stopped, medians_s[-1], growth, left_s, sizes[index - 1])
        names = [name for name in algorithms if name not in result.stopped]
        if not names:
            break
        first_s = bench.warm_up(nbytes, names)
        share_s = left_s / (len(sizes) - index)
        count = min(max(int(share_s / sum(first_s.values())), FEWEST_REPETITIONS), MOST_REPETITIONS)
        samples_s = bench.sample(nbytes, names, count)
        for name in names:
            points[name].append(CurvePoint(nbytes=nbytes, samples_s=tuple(samples_s[name])))
        medians_s.append({name: statistics.median(samples_s[name]) for name in names})
        result.repetitions[nbytes] = count
    result.curves = tuple(_curve(name, points[name]) for name in algorithms)
    return result


class _Bench:
    """Runs collectives on one buffer and gathers when each rank started and ended."""

    def __init__(self, communicator: Communicator, largest: int, shared_clock: bool) -> None:
        self._communicator = communicator
        self._shared_clock = shared_clock
        self._device = device_of(communicator)
        self._buffer = torch.zeros(largest // 4, device=self._device)

    def warm_up(self, nbytes: int, names: Sequence[str]) -> dict[str, float]:
        """Run each algorithm once, check its sum, and return its duration."""
        view = self._buffer[: nbytes // 4]
        stamps: dict[str, _Stamps] = {}
        wrong = []
        for name in names:
            view.fill_(float(self._communicator.rank + 1))
            stamps[name] = [self._run(view, name)]
            size = self._communicator.world_size
            if not bool((view == size * (size + 1) / 2).all()):
                wrong.append(name)
        view.zero_()
        bad = [name for rank in self._communicator.all_gather_object(wrong) for name in rank]
        if bad:
            raise CalibrationError(
                f"{COLLECTIVE} ({bad[0]}) of {nbytes} bytes returned a wrong sum; do not train "
                "with it: leave it out with algorithms=..., and report it"
            )
        return {name: samples[0] for name, samples in self._gather(stamps).items()}

    def sample(self, nbytes: int, names: Sequence[str], count: int) -> dict[str, list[float]]:
        """Run each algorithm ``count`` times, in turns; return the durations in seconds."""
        view = self._buffer[: nbytes // 4]
        stamps: dict[str, _Stamps] = {name: [] for name in names}
        for _ in range(count):
            for name in names:
                stamps[name].append(self._run(view, name))
        return self._gather(stamps)

    def _run(self, view: torch.Tensor, name: str) -> tuple[float, float]:
        self._communicator.barrier()
        start_s = time.perf_counter()
        handle = self._communicator.all_reduce(view, algorithm=name, async_op=True)
        handle.wait()
        synchronize(self._device)
        end_s = handle.finished_s
        return start_s, max(start_s, end_s)

    def _gather(self, stamps: Mapping[str, _Stamps]) -> dict[str, list[float]]:
        ranks = self._communicator.all_gather_object(dict(stamps))
        return {
            name: [
                duration(moments, self._shared_clock)
                for moments in zip(*(rank[name] for rank in ranks), strict=True)
            ]
            for name in stamps
        }


def duration(moments: Sequence[tuple[float, float]], shared_clock: bool) -> float:
    """Return how long one collective took; see [Note: what one sample is].

    Args:
        moments: ``(start, end)`` of every rank, in seconds.
        shared_clock: whether they are of one clock.
    """
    if shared_clock:
        return max(max(e for _, e in moments) - max(s for s, _ in moments), 0.0)
    return max(end - start for start, end in moments)


def _drop_hopeless(
    stopped: dict[str, str], medians_s: Sequence[Mapping[str, float]], sizes: Sequence[int]
) -> None:
    if len(medians_s) < 2:
        return
    for name in medians_s[-1]:
        ratios = [at[name] / min(at.values()) for at in medians_s[-2:] if min(at.values()) > 0]
        if name not in stopped and len(ratios) == 2 and min(ratios) > HOPELESS:
            last = format_bytes(sizes[len(medians_s) - 1])
            stopped[name] = f"{ratios[-1]:.1f} times the best at {last}"


def _drop_unaffordable(
    stopped: dict[str, str],
    last_s: Mapping[str, float],
    growth: float,
    left_s: float,
    last_size: int,
) -> None:
    """Stop the slowest algorithms until the fewest repetitions of the rest fit the budget."""
    alive = sorted((name for name in last_s if name not in stopped), key=lambda name: last_s[name])
    while alive:
        need_s = growth * (FEWEST_REPETITIONS + 1) * sum(last_s[name] for name in alive)
        if need_s <= left_s:
            return
        stopped[alive.pop()] = f"time budget spent at {format_bytes(last_size)}"


def _curve(name: str, points: Sequence[CurvePoint]) -> CollectiveCurve:
    fit = fit_linear(
        [float(point.nbytes) for point in points],
        [statistics.median(point.samples_s) for point in points],
    )
    return CollectiveCurve(collective=COLLECTIVE, algorithm=name, points=tuple(points), fit=fit)
