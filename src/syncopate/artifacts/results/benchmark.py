"""Benchmark: one collective measured by several contenders at several sizes, with raw samples.

Counted as nccl-tests counts it: S is the total buffer (what each rank holds before an all-reduce or
a reduce-scatter and after an all-gather), algbw = S / t and busbw = algbw times a factor that makes
it comparable with the line rate at any number of ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import ClassVar

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.level import require_time
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import AlgorithmOptions
from syncopate.shown import Row, Shown
from syncopate.units import format_count

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
}
"""busbw / algbw of each collective at a number of ranks, as nccl-tests defines it."""

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
"""Collectives that add; what they are timed with is a sum."""

BARRIER = "barrier"
BACK_TO_BACK = "back-to-back"
MODES = (BARRIER, BACK_TO_BACK)
"""Whether a barrier separates the timed calls, as OSU does it, or nothing, as nccl-tests does."""

PEERS = ("gloo", "mpi")
"""Whom a benchmark may interleave: Gloo's own collectives, called on torch.distributed directly,
and those of an MPI library."""


_MOST_SIZES = 1 << 16


def geometric(first: int, last: int, factor: float) -> tuple[int, ...]:
    """Return ``first``, ``first * factor``, .. up to ``last``, rounded to whole bytes.

    Raises:
        InvalidValueError: sizes or factor that make no such row.
    """
    if first < 1:
        raise InvalidValueError("first size", first, "at least 1 byte")
    if last < first:
        raise InvalidValueError("last size", last, f"at least the first, {first}")
    if not factor > 1:
        raise InvalidValueError("factor", factor, "a number > 1")
    if math.log(last) - math.log(first) > _MOST_SIZES * math.log(factor):
        raise InvalidValueError("factor", factor, f"one that makes at most {_MOST_SIZES} sizes")
    sizes, size = [], float(first)
    while math.isfinite(size) and round(size) <= last:
        sizes.append(round(size))
        size *= factor
    return tuple(dict.fromkeys(sizes))


def percentile(samples_s: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least ``percent`` % of the samples do not exceed.

    Nearest rank, so it is always a duration that was measured.

    Args:
        samples_s: at least one duration.
        percent: in (0, 100].
    """
    ordered = sorted(samples_s)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


class Timing(Record, frozen=True, kw_only=True):
    """All timed calls of one contender at one size, in or out of place.

    Attributes:
        samples_s: the duration of each call, the maximum over ranks; at least one.
        time_s: time of one call: the mean of the samples, or, back to back, the longest rank's
            loop divided by its calls.
        wrong: elements that differed from the right result, summed over ranks; -1 when not
            verified.
    """

    samples_s: tuple[float, ...]
    time_s: float
    wrong: int

    def __post_init__(self) -> None:
        if not self.samples_s:
            raise InvalidValueError("samples_s", self.samples_s, "at least one duration")
        for sample in (*self.samples_s, self.time_s):
            require_time("samples_s and time_s", sample)
        if self.wrong < -1:
            raise InvalidValueError("wrong", self.wrong, "an integer >= -1")

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of the samples; see :func:`percentile`."""
        return percentile(self.samples_s, percent)


class Point(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One contender at one size.

    Attributes:
        count: elements of the total buffer; >= 1.
        nbytes: the same in bytes, S.
        algorithm: what ran; empty for a peer.
        options: what the algorithm was told, as far as the benchmark told it.
        out_of_place: the input copied into the output buffer and the collective run there.
        in_place: the collective alone.
    """

    count: int
    nbytes: int
    algorithm: str = ""
    options: AlgorithmOptions = {}
    out_of_place: Timing
    in_place: Timing

    def __post_init__(self) -> None:
        if self.count < 1 or self.nbytes < self.count:
            raise InvalidValueError("count", self.count, "an integer >= 1 and <= nbytes")


class Series(Record, frozen=True, kw_only=True):
    """One contender at every size.

    Attributes:
        contender: a registered algorithm with its options, if any were asked for, ``"native"``,
            ``"auto"``, or the name of a peer.
        peer: whether it is a peer to compare with, and not run by a communicator.
        points: by strictly ascending size; at least one.
    """

    contender: str
    peer: bool = False
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        sizes = [point.nbytes for point in self.points]
        if not sizes or sizes != sorted(set(sizes)):
            raise InvalidValueError("points", sizes, "non-empty, by strictly ascending nbytes")

    @property
    def wrong(self) -> int:
        """Wrong elements, summed over everything verified."""
        timings = [t for p in self.points for t in (p.out_of_place, p.in_place)]
        return sum(max(timing.wrong, 0) for timing in timings)


class Benchmark(Shown, Artifact, frozen=True, kw_only=True):
    """The result of ``syncopate bench``.

    Attributes:
        collective: such as ``"all_reduce"``.
        dtype: element type, by torch's name.
        root: the root of a rooted collective; -1 for the others, as nccl-tests prints it.
        mode: one of :data:`MODES`.
        warmup: untimed calls before the timed ones.
        hosts: host name of every rank.
        series: every contender, all with the same sizes.
        metadata: versions and environment.
    """

    KIND: ClassVar[str] = "benchmark"

    collective: str
    dtype: str
    root: int
    mode: str
    warmup: int
    hosts: tuple[str, ...]
    series: tuple[Series, ...]
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.collective not in BUS_FACTORS:
            raise UnknownNameError("collective", self.collective, BUS_FACTORS)
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        if not self.hosts:
            raise InvalidValueError("hosts", self.hosts, "one name per rank, at least one")
        if not self.series:
            raise InvalidValueError("series", self.series, "at least one contender")
        for series in self.series:
            sizes = [point.nbytes for point in series.points]
            if sizes != [point.nbytes for point in self.series[0].points]:
                raise InvalidValueError(
                    f"sizes of {series.contender}", sizes, "the same as every other contender's"
                )

    def summary(self) -> tuple[str, ...]:
        """Return the collective and the ranks in words."""
        hosts = len(set(self.hosts))
        return (
            f"{self.collective} of {self.dtype} on {format_count(self.world_size, 'rank')}, "
            f"{format_count(hosts, 'host')}",
        )

    def rows(self) -> list[Row]:
        """Return each contender at each size, in place: the median, and nccl-tests' bandwidths."""
        return [
            {
                "contender": series.contender,
                "nbytes": point.nbytes,
                "algorithm": point.algorithm or None,
                "median_s": (p50_s := point.in_place.percentile_s(50)),
                "algbw_bytes_per_s": self.algbw_bytes_per_s(point.nbytes, p50_s),
                "busbw_bytes_per_s": self.busbw_bytes_per_s(point.nbytes, p50_s),
                "wrong": point.in_place.wrong,
            }
            for series in self.series
            for point in series.points
        ]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    def algbw_bytes_per_s(self, nbytes: int, time_s: float) -> float:
        """Return S / t; 0 when no time was measured."""
        return nbytes / time_s if time_s > 0 else 0.0

    def busbw_bytes_per_s(self, nbytes: int, time_s: float) -> float:
        """Return algbw times the collective's factor."""
        return self.algbw_bytes_per_s(nbytes, time_s) * BUS_FACTORS[self.collective](
            self.world_size
        )

    def average_busbw_bytes_per_s(self, series: Series) -> float:
        """Return the mean of a contender's bus bandwidths over sizes and places."""
        return statistics.fmean(
            self.busbw_bytes_per_s(point.nbytes, timing.time_s)
            for point in series.points
            for timing in (point.out_of_place, point.in_place)
        )

    @property
    def wrong(self) -> int:
        """Wrong elements, summed over everything verified."""
        return sum(series.wrong for series in self.series)

    @property
    def culprits(self) -> str:
        """The contenders with wrong elements, and how many each has: ``"ring 2, lp 1"``."""
        return ", ".join(f"{one.contender} {one.wrong}" for one in self.series if one.wrong)
