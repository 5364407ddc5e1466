"""Curves: what every algorithm of a collective costs here, from a few bytes to many megabytes.

[Note: what runs] Each algorithm runs with the options that suit the cluster and the size, as the
prices on the links just measured choose them
(:func:`syncopate.costs.model.best_variant`): how many blocks a pipeline has, which ranks are
neighbours. A curve records them, so that a plan, or ``algorithm="auto"``, runs what was measured.
Rooted collectives have rank 0 as their root.

[Note: what one sample is] A barrier, then one collective on an idle channel, submitted as an engine
submits it (``async_op``). Ranks leave a barrier at different moments, and a collective cannot begin
before the last of them: on one host, whose ranks share a clock, a sample lasts from the last rank's
start to the last rank's end. Over several hosts clocks cannot be compared that finely, and a sample
is the longest of the ranks' own durations. Within one size the algorithms take turns, so that a
disturbance hits all of them alike.

[Note: order of sizes] Every fourth size comes first, from small to large, then what lies between,
so that a short budget gives a coarse curve of the whole range rather than a fine one of its
beginning, from which nothing could be said about buckets.

All decisions (how often, what to leave out) are taken from gathered figures, so that every rank
takes the same one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from syncopate.calibration.pattern import Pattern
from syncopate.calibration.progress import Progress, say
from syncopate.calibration.quantiles import lower_quartile
from syncopate.calibration.wire import device_of, synchronize
from syncopate.cluster import Cluster, CollectiveCurve, CurvePoint
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.handle import Handle
from syncopate.costs.fits import fit_linear
from syncopate.costs.model import best_variant
from syncopate.errors import CalibrationError
from syncopate.schedules.conditions import conditions
from syncopate.schedules.options import ORDER
from syncopate.schedules.registry import ALGORITHMS, NATIVE
from syncopate.units import KIB, MIB, format_bytes

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

ALWAYS_MEASURED = 3
"""How many sizes are measured however short the budget is."""

SIZE_SHARE = 1 / 3
FLAT_BYTES = 64 * KIB
"""Below this size a collective is expected to take its start-up time."""

Points = Mapping[str, dict[int, CurvePoint]]
"""``algorithm -> size in bytes -> measurements``."""

Options = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""``algorithm -> size in bytes -> its options``, for every size that is measured."""

_Stamps = list[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """The measured curves of one collective and how they came about.

    Attributes:
        collective: which.
        curves: one per algorithm, in the order asked for.
        left_out: ``algorithm -> why some of its sizes were not measured``.
        repetitions: ``size in bytes -> samples per algorithm``, ascending.
    """

    collective: str
    curves: tuple[CollectiveCurve, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    repetitions: Mapping[int, int] = field(default_factory=dict)


def suiting(
    communicator: Communicator,
    cluster: Cluster,
    collective: str,
    algorithms: Sequence[str],
    sizes: Sequence[int],
) -> Options:
    """Return the options to measure with, see [Note: what runs]; rank 0's, on every rank.

    Args:
        communicator: the ranks; all of them must call this.
        cluster: the links.
        collective: such as ``"all_reduce"``.
        algorithms: registered names or ``"native"``, which takes none.
        sizes: message sizes in bytes; those that an algorithm had better not carry are left out.
    """
    found: Options = {}
    if communicator.rank == 0:
        found = {
            name: {
                size: {} if name == NATIVE else best_variant(cluster, collective, name, size)
                for size in sizes
                if name == NATIVE or ALGORITHMS[collective, name].carries(size)
            }
            for name in algorithms
        }
        found = {name: told for name, told in found.items() if told}
    agreed: Options = communicator.broadcast_object(found)
    return agreed


def measure_curves(
    communicator: Communicator,
    collective: str,
    options: Options,
    *,
    budget_s: float,
    shared_clock: bool,
    progress: Progress | None = None,
) -> Curves:
    """Measure a collective; alike on all ranks.

    Args:
        communicator: the ranks; all of them must call this. One rank alone has nothing to measure.
        collective: such as ``"all_reduce"``.
        options: the algorithms to measure, and at every size, a multiple of 4, their options.
        budget_s: about how long to take; the first few sizes are measured whatever they cost.
        shared_clock: whether all ranks read one clock, see [Note: what one sample is].
        progress: called before every size.

    Raises:
        CalibrationError: an algorithm returned a wrong result.
    """
    if communicator.world_size == 1:
        return Curves(collective)
    sizes = sorted({size for by_size in options.values() for size in by_size})
    bench = _Bench(communicator, collective, max(sizes), shared_clock)
    points: Points = {name: {} for name in options}
    for index, nbytes in enumerate(coarse_first(sizes)):
        say(progress, f"{collective} {format_bytes(nbytes)}", index / len(sizes))
        left_s = budget_s - bench.elapsed_s()
        names = [n for n in options if nbytes in options[n] and not hopeless(n, points)]
        if index >= ALWAYS_MEASURED:
            names = affordable(names, points, nbytes, left_s)
        if not names:
            continue
        here = {name: options[name][nbytes] for name in names}
        bench.warm_up(nbytes, here)
        samples_s = bench.sample(nbytes, here, left_s / (len(sizes) - index))
        for name in names:
            told = {key: value for key, value in here[name].items() if key != ORDER}
            points[name][nbytes] = CurvePoint(
                nbytes=nbytes, samples_s=tuple(samples_s[name]), options=told
            )
    counts = {p.nbytes: len(p.samples_s) for curve in points.values() for p in curve.values()}
    return Curves(
        collective,
        curves=tuple(
            _curve(collective, name, curve, options[name]) for name, curve in points.items()
        ),
        left_out=_left_out(points, options),
        repetitions=dict(sorted(counts.items())),
    )


def coarse_first(sizes: Sequence[int]) -> list[int]:
    """Return ``sizes`` in the order of measuring; see [Note: order of sizes]."""
    ordered = [*sizes[::4], *sizes[-1:], *sizes[2::4], *sizes[1::2]]
    return list(dict.fromkeys(ordered))


class _Bench:
    """Runs collectives on one buffer and gathers when each rank started and ended."""

    def __init__(
        self, communicator: Communicator, collective: str, largest: int, shared_clock: bool
    ) -> None:
        self._communicator = communicator
        self._collective = collective
        self._root = (0,) if conditions(collective).rooted else ()
        self._shared_clock = shared_clock
        self._device = device_of(communicator)
        self._buffer = torch.zeros(largest // 4, device=self._device)
        self._start_s = time.perf_counter()

    def elapsed_s(self) -> float:
        """Return the time since the bench was made, as rank 0 sees it, on all ranks."""
        seconds: float = self._communicator.broadcast_object(time.perf_counter() - self._start_s)
        return seconds

    def warm_up(self, nbytes: int, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Run each algorithm once and check its result.

        Raises:
            CalibrationError: it is wrong, on whichever rank.
        """
        view = self._buffer[: nbytes // 4]
        size, rank = self._communicator.world_size, self._communicator.rank
        pattern = Pattern(self._collective, view.numel(), "float32", rank, size)
        wrong = []
        for name, told in options.items():
            view.copy_(pattern.input())
            self._run(view, name, told)
            if pattern.wrong(view.cpu()):
                wrong.append(name)
        # Zeros stay zeros, however often they are summed.
        view.zero_()
        bad = [name for rank in self._communicator.all_gather_object(wrong) for name in rank]
        if bad:
            raise CalibrationError(
                f"{self._collective} ({bad[0]}) of {nbytes} bytes returned a wrong result; do not "
                "train with it: leave it out with algorithms=..., and report it"
            )

    def sample(
        self, nbytes: int, options: Mapping[str, Mapping[str, Any]], budget_s: float
    ) -> dict[str, list[float]]:
        """Run the algorithms in turns for about ``budget_s``; return the durations in seconds."""
        view = self._buffer[: nbytes // 4]
        samples_s: dict[str, list[float]] = {name: [] for name in options}
        until_s = self.elapsed_s() + budget_s
        count = 0
        while not count or (count < MOST_REPETITIONS and self.elapsed_s() < until_s):
            stamps: dict[str, _Stamps] = {name: [] for name in options}
            for _ in range(FEWEST_REPETITIONS):
                for name, told in options.items():
                    stamps[name].append(self._run(view, name, told))
            count += FEWEST_REPETITIONS
            for name, more_s in self._gather(stamps).items():
                samples_s[name].extend(more_s)
        return samples_s

    def _run(
        self, view: torch.Tensor, name: str, options: Mapping[str, Any]
    ) -> tuple[float, float]:
        collective = getattr(self._communicator, self._collective)
        self._communicator.barrier()
        start_s = time.perf_counter()
        handle: Handle = collective(
            view, *self._root, algorithm=name, async_op=True, options=options
        )
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


def hopeless(name: str, points: Points) -> bool:
    """Say whether the two largest sizes measured make an algorithm not worth measuring on."""
    return _ratio_if_hopeless(name, points) is not None


def _ratio_if_hopeless(name: str, points: Points) -> float | None:
    recent = [size for size in sorted(points[name])[-2:] if size >= HOPELESS_FROM_BYTES]
    ratios = []
    for size in recent:
        best_s = min(_typical_s(curve[size]) for curve in points.values() if size in curve)
        ratios.append(_typical_s(points[name][size]) / best_s if best_s > 0 else 1.0)
    return ratios[1] if len(ratios) == 2 and HOPELESS < ratios[0] <= ratios[1] else None


def affordable(names: Sequence[str], points: Points, nbytes: int, left_s: float) -> list[str]:
    """Return the fastest of ``names``, as many as may be measured at ``nbytes``.

    The fewest repetitions may take ``SIZE_SHARE`` of the time left, so that one large size does
    not starve the others.
    """
    expected_s = {name: _expected_s(points[name], nbytes) for name in names}
    chosen = sorted(names, key=lambda name: expected_s[name])
    # Warm-up and check take about as long as one more repetition each.
    while chosen and (FEWEST_REPETITIONS + 2) * sum(expected_s[n] for n in chosen) > max(
        left_s * SIZE_SHARE, 0.0
    ):
        chosen.pop()
    return [name for name in names if name in chosen]


def _expected_s(curve: Mapping[int, CurvePoint], nbytes: int) -> float:
    """Extrapolate from the nearest size: flat up to ``FLAT_BYTES``, proportional above."""
    near = min(curve, key=lambda size: abs(math.log(size / nbytes)))
    return _typical_s(curve[near]) * max(nbytes, FLAT_BYTES) / max(near, FLAT_BYTES)


def _left_out(points: Points, options: Options) -> dict[str, str]:
    reasons = {}
    for name, curve in points.items():
        sizes = options[name]
        missing = [size for size in sizes if size not in curve]
        if missing:
            ratio = _ratio_if_hopeless(name, points)
            why = f"{ratio:.1f} times the best" if ratio is not None else "time budget"
            reasons[name] = f"{len(missing)} of {len(sizes)} sizes ({why})"
    return reasons


def _typical_s(point: CurvePoint) -> float:
    return lower_quartile(point.samples_s)


def _curve(
    collective: str,
    name: str,
    points: Mapping[int, CurvePoint],
    options: Mapping[int, Mapping[str, Any]],
) -> CollectiveCurve:
    orders = {tuple(told.get(ORDER, ())) for told in options.values()}
    ascending = tuple(points[size] for size in sorted(points))
    fit = fit_linear(
        [float(point.nbytes) for point in ascending],
        [point.expected_s for point in ascending],
    )
    return CollectiveCurve(
        collective=collective, algorithm=name, points=ascending, fit=fit, order=orders.pop()
    )
