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

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from syncopate.calibration.progress import Progress, say
from syncopate.calibration.quantiles import lower_quartile
from syncopate.calibration.wire import device_of, synchronize
from syncopate.cluster import CollectiveCurve, CurvePoint
from syncopate.collectives.communicator import Communicator
from syncopate.costs.fits import fit_linear
from syncopate.errors import CalibrationError
from syncopate.units import KIB, MIB, format_bytes

COLLECTIVE = "all_reduce"

DEFAULT_SIZES: tuple[int, ...] = tuple(
    sorted([*(4**k for k in range(1, 14)), 2 * MIB, 8 * MIB, 32 * MIB])
)
"""Message sizes in bytes: powers of 4 from 4 B to 64 MiB, and closer above 1 MiB, where curves
bend."""

MOST_REPETITIONS = 45
FEWEST_REPETITIONS = 3

HOPELESS = 3.0
HOPELESS_FROM_BYTES = 256 * KIB
"""An algorithm this many times slower than the best, at two sizes running and without catching up,
is measured no further; judged from this size on, because a ring of many ranks is slow at small
sizes and yet the best at large ones."""

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
    bench = _Bench(communicator, max(sizes), shared_clock)
    result = Curves()
    points: dict[str, list[CurvePoint]] = {name: [] for name in algorithms}
    for index, nbytes in enumerate(sizes):
        say(progress, f"{COLLECTIVE} {format_bytes(nbytes)}", index / len(sizes))
        left_s = budget_s - bench.elapsed_s()
        _stop_hopeless(result.stopped, points)
        if index > 0:
            _stop_unaffordable(result.stopped, points, nbytes, left_s)
        names = [name for name in algorithms if name not in result.stopped]
        if not names:
            break
        bench.warm_up(nbytes, names)
        samples_s = bench.sample(nbytes, names, left_s / (len(sizes) - index))
        for name in names:
            points[name].append(CurvePoint(nbytes=nbytes, samples_s=tuple(samples_s[name])))
        result.repetitions[nbytes] = len(samples_s[names[0]])
    result.curves = tuple(_curve(name, points[name]) for name in algorithms)
    return result


class _Bench:
    """Runs collectives on one buffer and gathers when each rank started and ended."""

    def __init__(self, communicator: Communicator, largest: int, shared_clock: bool) -> None:
        self._communicator = communicator
        self._shared_clock = shared_clock
        self._device = device_of(communicator)
        self._buffer = torch.zeros(largest // 4, device=self._device)
        self._start_s = time.perf_counter()

    def elapsed_s(self) -> float:
        """Return the time since the bench was made, as rank 0 sees it, on all ranks."""
        seconds: float = self._communicator.broadcast_object(time.perf_counter() - self._start_s)
        return seconds

    def warm_up(self, nbytes: int, names: Sequence[str]) -> None:
        """Run each algorithm once and check its sum.

        Raises:
            CalibrationError: it is wrong, on whichever rank.
        """
        view = self._buffer[: nbytes // 4]
        wrong = []
        for name in names:
            view.fill_(float(self._communicator.rank + 1))
            self._run(view, name)
            size = self._communicator.world_size
            if not bool((view == size * (size + 1) / 2).all()):
                wrong.append(name)
        # Zeros stay zeros, however often they are summed.
        view.zero_()
        bad = [name for rank in self._communicator.all_gather_object(wrong) for name in rank]
        if bad:
            raise CalibrationError(
                f"{COLLECTIVE} ({bad[0]}) of {nbytes} bytes returned a wrong sum; do not train "
                "with it: leave it out with algorithms=..., and report it"
            )

    def sample(self, nbytes: int, names: Sequence[str], budget_s: float) -> dict[str, list[float]]:
        """Run the algorithms in turns for about ``budget_s``; return the durations in seconds."""
        view = self._buffer[: nbytes // 4]
        samples_s: dict[str, list[float]] = {name: [] for name in names}
        until_s = self.elapsed_s() + budget_s
        count = 0
        while not count or (count < MOST_REPETITIONS and self.elapsed_s() < until_s):
            stamps: dict[str, _Stamps] = {name: [] for name in names}
            for _ in range(FEWEST_REPETITIONS):
                for name in names:
                    stamps[name].append(self._run(view, name))
            count += FEWEST_REPETITIONS
            for name, more_s in self._gather(stamps).items():
                samples_s[name].extend(more_s)
        return samples_s

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


def _stop_hopeless(stopped: dict[str, str], points: Mapping[str, Sequence[CurvePoint]]) -> None:
    """Add to ``stopped`` the algorithms that the last two sizes showed to be hopeless."""
    best_s: dict[int, float] = {}
    for curve in points.values():
        for point in curve:
            best_s[point.nbytes] = min(best_s.get(point.nbytes, math.inf), _typical_s(point))
    for name, curve in points.items():
        recent = [point for point in curve[-2:] if point.nbytes >= HOPELESS_FROM_BYTES]
        ratios = [_typical_s(p) / best_s[p.nbytes] for p in recent if best_s[p.nbytes] > 0]
        if name not in stopped and len(ratios) == 2 and HOPELESS < ratios[0] <= ratios[1]:
            at = format_bytes(recent[-1].nbytes)
            stopped[name] = f"{ratios[-1]:.1f} times the best at {at}"


def _stop_unaffordable(
    stopped: dict[str, str],
    points: Mapping[str, Sequence[CurvePoint]],
    nbytes: int,
    left_s: float,
) -> None:
    """Stop the slowest algorithms until the fewest repetitions of the rest fit into ``left_s``."""
    last = {name: curve[-1] for name, curve in points.items() if name not in stopped}
    alive = sorted(last, key=lambda name: _typical_s(last[name]))
    while alive:
        # Warm-up and check take about as long as one more repetition each.
        need_s = (FEWEST_REPETITIONS + 2) * sum(
            _typical_s(last[name]) * nbytes / last[name].nbytes for name in alive
        )
        if need_s <= left_s:
            return
        name = alive.pop()
        stopped[name] = f"time budget spent at {format_bytes(last[name].nbytes)}"


def _typical_s(point: CurvePoint) -> float:
    return lower_quartile(point.samples_s)


def _curve(name: str, points: Sequence[CurvePoint]) -> CollectiveCurve:
    fit = fit_linear(
        [float(point.nbytes) for point in points],
        [statistics.median(point.samples_s) for point in points],
    )
    return CollectiveCurve(collective=COLLECTIVE, algorithm=name, points=tuple(points), fit=fit)
