"""Curves: what every algorithm of a collective costs here, from a few bytes to many megabytes.

[Note: what runs] Each algorithm runs with the options that suit the cluster and the size, as the
prices on the links just measured choose them
(:func:`syncopate.costs.decide.options.best_options`): how many blocks a pipeline has, which ranks
are neighbours. A curve records them, so that a plan, or ``algorithm="auto"``, runs what was
measured. Rooted collectives have rank 0 as their root.

[Note: what one sample is] A barrier, then one collective on an idle channel, submitted as an engine
submits it (``async_op``). Ranks leave a barrier at different moments, and a collective cannot begin
before the last of them: on one host, whose ranks share a clock, a sample lasts from the last rank's
start to the last rank's end. Over several hosts clocks cannot be compared that finely, and a sample
is the longest of the ranks' own durations. Within one size the algorithms take turns, so that a
disturbance hits all of them alike.

[Note: order of sizes] Every fourth size comes first, from small to large, then what lies between,
so that a short budget gives a coarse curve of the whole range rather than a fine one of its
beginning, from which nothing could be said about buckets.

[Note: what is measured] A long message takes a budget's second or more, so it is for those alone
that stand a chance. What an algorithm is expected to take is its price on the links just measured,
corrected by how its nearest measured size compares with its price there; the backend's own has no
price, and is taken to cost what the cheapest of the others does. From ``HOPELESS_FROM_BYTES`` on,
those expected to take ``CHANCE`` times the best are left out. Of the others the fastest are
measured, as many as the budget allows; where it allows no repetition, once, and that one run is
warm-up, check and sample.

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

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint
from syncopate.calibration.timing import lower_quartile
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.handle import Handle
from syncopate.collectives.machine import device_of, synchronize
from syncopate.collectives.pattern import Pattern
from syncopate.costs.decide.options import best_options
from syncopate.costs.model.collective import schedule_cost
from syncopate.costs.model.fits import fit_linear
from syncopate.errors import CalibrationError
from syncopate.output import Progress, say
from syncopate.recipe import ORDER
from syncopate.schedules.conditions import conditions
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

CHANCE = 2.0
"""An algorithm expected to take this many times the best is not measured at a long message, see
[Note: what is measured]."""

ALWAYS_MEASURED = 3
"""How many sizes are measured however short the budget is."""

MOST_BYTES = 256 * MIB
"""The longest message that is measured for a plan's sake: beyond it a curve is a line."""

SIZE_SHARE = 1 / 3
FLAT_BYTES = 64 * KIB
"""Below this size a collective is expected to take its start-up time."""

Points = Mapping[str, dict[int, CurvePoint]]
"""``algorithm -> size in bytes -> measurements``."""

Options = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""``algorithm -> size in bytes -> its options``, for every size that is measured."""

Prices = Mapping[str, Mapping[int, float]]
"""``algorithm -> size in bytes -> its price in seconds``, where it has one."""

_RUNS = FEWEST_REPETITIONS + 2
"""What a size takes at least: warm-up and check take about as long as one repetition each."""

_Stamps = list[tuple[float, float]]


def sizes_up_to(largest_bytes: int) -> tuple[int, ...]:
    """Return the message sizes that say what any bucket of up to ``largest_bytes`` costs.

    Powers of four up to 1 MiB, of two above, and the largest itself, or ``MOST_BYTES`` instead; all
    are multiples of 4. A power that is hardly smaller than the largest is left out.
    """
    last = min(-(-largest_bytes // 4) * 4, MOST_BYTES)
    powers = [4**k for k in range(1, 10)] + [2**k for k in range(20, MOST_BYTES.bit_length())]
    return (*(size for size in powers if size * 1.25 <= last), last)


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
                size: {} if name == NATIVE else best_options(cluster, collective, name, size)
                for size in sizes
                if name == NATIVE or ALGORITHMS[collective, name].carries(size)
            }
            for name in algorithms
        }
        found = {name: told for name, told in found.items() if told}
    agreed: Options = communicator.broadcast_object(found)
    return agreed


def prices(cluster: Cluster, collective: str, told: Options) -> Prices:
    """Return what is expected of each algorithm before it is measured.

    The backend's own stands with the cheapest of the others, where there are any.

    Args:
        cluster: the links.
        collective: such as ``"all_reduce"``.
        told: the options to measure with, of :func:`suiting`.
    """
    found = {
        name: {
            size: float(schedule_cost(cluster, collective, name).fixed(options)(size))
            for size, options in by_size.items()
        }
        for name, by_size in told.items()
        if name != NATIVE
    }
    if found and NATIVE in told:
        everywhere = {size for by_size in found.values() for size in by_size}
        found[NATIVE] = {
            size: min(by_size[size] for by_size in found.values() if size in by_size)
            for size in told[NATIVE]
            if size in everywhere
        }
    return found


def measure_curves(
    communicator: Communicator,
    collective: str,
    options: Options,
    expected: Prices,
    *,
    budget_s: float,
    shared_clock: bool,
    progress: Progress | None = None,
    points: dict[str, dict[int, CurvePoint]] | None = None,
) -> Curves:
    """Measure a collective; alike on all ranks.

    Args:
        communicator: the ranks; all of them must call this. One rank alone has nothing to measure.
        collective: such as ``"all_reduce"``.
        options: the algorithms to measure, and at every size, a multiple of 4, their options.
        expected: their prices, see [Note: what is measured].
        budget_s: about how long to take; the first few sizes are always measured.
        shared_clock: whether all ranks read one clock, see [Note: what one sample is].
        progress: called before every size.
        points: what was measured earlier, of the same ranks with the same options; it is not
            measured again, and each size is added to it.

    Raises:
        CalibrationError: an algorithm returned a wrong result.
    """
    if communicator.world_size == 1:
        return Curves(collective)
    sizes = sorted({size for by_size in options.values() for size in by_size})
    bench = _Bench(communicator, collective, shared_clock)
    points = {} if points is None else points
    for name in options:
        points.setdefault(name, {})
    for index, nbytes in enumerate(coarse_first(sizes)):
        say(progress, f"{collective} {format_bytes(nbytes)}", index / len(sizes))
        if any(nbytes in curve for curve in points.values()):
            continue
        left_s = budget_s - bench.elapsed_s()
        names = [n for n in options if nbytes in options[n] and hopeless(n, points) is None]
        names = promising(names, points, nbytes, expected)
        once = False
        if index >= ALWAYS_MEASURED:
            affording = affordable(names, points, nbytes, left_s, expected)
            once = not affording
            names = affording or affordable(names, points, nbytes, left_s, expected, runs=1)
        if not names:
            continue
        here = {name: options[name][nbytes] for name in names}
        samples_s = bench.check(nbytes, here)
        if not once:
            samples_s = bench.sample(nbytes, here, left_s / (len(sizes) - index))
        found = {name: _point(nbytes, samples_s[name], here[name]) for name in names}
        # In one call, between whose parts no signal is handled: what ends it finds whole sizes.
        points.update({name: {**points[name], nbytes: point} for name, point in found.items()})
    return _curves(collective, options, expected, points)


def _curves(collective: str, options: Options, expected: Prices, points: Points) -> Curves:
    counts = {p.nbytes: len(p.samples_s) for curve in points.values() for p in curve.values()}
    return Curves(
        collective,
        curves=tuple(
            _curve(collective, name, curve, options[name]) for name, curve in points.items()
        ),
        left_out=_left_out(points, options, expected),
        repetitions=dict(sorted(counts.items())),
    )


def _point(nbytes: int, samples_s: Sequence[float], options: Mapping[str, Any]) -> CurvePoint:
    told = {key: value for key, value in options.items() if key != ORDER}
    return CurvePoint(nbytes=nbytes, samples_s=tuple(samples_s), options=told)


def coarse_first(sizes: Sequence[int]) -> list[int]:
    """Return ``sizes`` in the order of measuring; see [Note: order of sizes]."""
    ordered = [*sizes[::4], *sizes[-1:], *sizes[2::4], *sizes[1::2]]
    return list(dict.fromkeys(ordered))


class _Bench:
    """Runs collectives on one buffer and gathers when each rank started and ended."""

    def __init__(self, communicator: Communicator, collective: str, shared_clock: bool) -> None:
        self._communicator = communicator
        self._collective = collective
        self._root = (0,) if conditions(collective).rooted else ()
        self._shared_clock = shared_clock
        self._device = device_of(communicator)
        self._buffer = torch.zeros(0, device=self._device)
        self._start_s = time.perf_counter()

    def elapsed_s(self) -> float:
        """Return the time since the bench was made, as rank 0 sees it, on all ranks."""
        seconds: float = self._communicator.broadcast_object(time.perf_counter() - self._start_s)
        return seconds

    def check(
        self, nbytes: int, options: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, list[float]]:
        """Run each algorithm once and check its result; return the durations in seconds.

        The first run of a short message warms up; its duration says little.

        Raises:
            CalibrationError: it is wrong, on whichever rank.
        """
        view = self._view(nbytes)
        size, rank = self._communicator.world_size, self._communicator.rank
        pattern = Pattern(self._collective, view.numel(), "float32", rank, size)
        wrong = []
        stamps: dict[str, _Stamps] = {}
        for name, told in options.items():
            view.copy_(pattern.input())
            stamps[name] = [self._run(view, name, told)]
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
        return self._gather(stamps)

    def sample(
        self, nbytes: int, options: Mapping[str, Mapping[str, Any]], budget_s: float
    ) -> dict[str, list[float]]:
        """Run the algorithms in turns for about ``budget_s``; return the durations in seconds."""
        view = self._view(nbytes)
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

    def _view(self, nbytes: int) -> torch.Tensor:
        """Return a buffer of that size. A size that is never measured takes no memory."""
        if nbytes // 4 > self._buffer.numel():
            self._buffer = torch.zeros(nbytes // 4, device=self._device)
        return self._buffer[: nbytes // 4]

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


def hopeless(name: str, points: Points) -> float | None:
    """Return an algorithm's time over the best one's; None where it is worth measuring on.

    The two largest sizes measured decide.
    """
    recent = [size for size in sorted(points[name])[-2:] if size >= HOPELESS_FROM_BYTES]
    ratios = []
    for size in recent:
        best_s = min(_typical_s(curve[size]) for curve in points.values() if size in curve)
        ratios.append(_typical_s(points[name][size]) / best_s if best_s > 0 else 1.0)
    return ratios[1] if len(ratios) == 2 and HOPELESS < ratios[0] <= ratios[1] else None


def promising(names: Sequence[str], points: Points, nbytes: int, expected: Prices) -> list[str]:
    """Return those of ``names`` that stand a chance at ``nbytes``; see [Note: what is measured]."""
    if nbytes < HOPELESS_FROM_BYTES:
        return list(names)
    here_s = {n: _expected_s(points[n], nbytes, expected.get(n, {})) for n in names}
    best_s = min(here_s.values(), default=0.0)
    return [name for name in names if here_s[name] <= CHANCE * best_s]


def affordable(
    names: Sequence[str],
    points: Points,
    nbytes: int,
    left_s: float,
    expected: Prices,
    *,
    runs: int = _RUNS,
) -> list[str]:
    """Return the fastest of ``names``, as many as may be measured at ``nbytes``.

    Their ``runs`` may take ``SIZE_SHARE`` of the time left, so that one large size does not starve
    the others.
    """
    expected_s = {n: _expected_s(points[n], nbytes, expected.get(n, {})) for n in names}
    chosen = sorted(names, key=lambda name: expected_s[name])
    while chosen and runs * sum(expected_s[n] for n in chosen) > max(left_s * SIZE_SHARE, 0.0):
        chosen.pop()
    return [name for name in names if name in chosen]


def _expected_s(
    curve: Mapping[int, CurvePoint], nbytes: int, price_s: Mapping[int, float]
) -> float:
    """Return what a size is expected to take, by the nearest one measured and by the prices.

    Without prices, a message takes the same up to ``FLAT_BYTES``, and proportionally more above.
    """
    near = min(curve, key=lambda size: abs(math.log(size / nbytes)), default=0)
    if nbytes in price_s and near < HOPELESS_FROM_BYTES <= nbytes:
        # What starting up takes says nothing about long messages.
        return price_s[nbytes]
    if nbytes in price_s and price_s.get(near, 0.0) > 0:
        return _typical_s(curve[near]) * price_s[nbytes] / price_s[near]
    return _typical_s(curve[near]) * max(nbytes, FLAT_BYTES) / max(near, FLAT_BYTES)


def _left_out(points: Points, options: Options, expected: Prices) -> dict[str, str]:
    reasons = {}
    for name, curve in points.items():
        sizes = options[name]
        missing = [size for size in sizes if size not in curve]
        if missing:
            ratio = hopeless(name, points)
            if ratio is not None:
                why = f"{ratio:.1f} times the best"
            elif name in promising([*points], points, missing[-1], expected):
                why = "time budget"
            else:
                why = "no chance by price"
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
