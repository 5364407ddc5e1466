"""Cluster: the machines as communication sees them.

A cluster is a list of levels, innermost first (devices in a host, hosts in a rack, racks), each
with its fan-out, latency and bandwidth (:mod:`syncopate.artifacts.level`); where each rank sits;
how fast one rank reduces; and, when it was calibrated, the measured curve of every collective
algorithm with its raw samples.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.level import Level, require_time, size_of, sizes_text, unit_counts
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import AlgorithmOptions
from syncopate.shown import Row, Shown
from syncopate.units import KIB, format_count


def robust_mean(samples: Sequence[float]) -> float:
    """Return the mean of ``samples``, far outliers drawn in; the median of fewer than four.

    The mean, because an iteration is the sum of many parts, and durations lean to the slow side:
    sums of medians promise too little. Samples beyond Tukey's outer fence (three interquartile
    ranges outside the quartiles) count as much as the fence.
    """
    return statistics.median(samples) if len(samples) < 4 else statistics.fmean(_fenced(samples))


def standard_error(samples: Sequence[float]) -> float:
    """Return how uncertain the :func:`robust_mean` of ``samples`` is; 0.0 of a single one."""
    if len(samples) < 2:
        return 0.0
    inside = _fenced(samples) if len(samples) >= 4 else list(samples)
    return statistics.stdev(inside) / math.sqrt(len(inside))


def _fenced(samples: Sequence[float]) -> list[float]:
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    reach = 3 * (high - low)
    return [min(max(s, low - reach), high + reach) for s in samples]


class LinearFit(Record, frozen=True, kw_only=True):
    """The papers' model of one collective: ``T(n) = a + b n``.

    Attributes:
        a_s: start-up time.
        b_s_per_byte: time per byte.
    """

    a_s: float
    b_s_per_byte: float

    def __post_init__(self) -> None:
        require_time("a_s", self.a_s)
        require_time("b_s_per_byte", self.b_s_per_byte)


MAX_POINT_BYTES = 1 << 50
"""Of a measured size: beside larger ones the costs of small messages would be lost in rounding."""


class CurvePoint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All samples of one message size.

    Attributes:
        nbytes: message size in bytes, counted as nccl-tests counts it (the total buffer).
        samples_s: the raw durations, each the maximum over ranks; at least one.
        options: what the algorithm was told besides the order of the ranks, such as
            ``{"blocks": 8}``; empty for its defaults.
    """

    nbytes: int
    samples_s: tuple[float, ...]
    options: AlgorithmOptions = {}

    def __post_init__(self) -> None:
        if not 0 <= self.nbytes <= MAX_POINT_BYTES:
            raise InvalidValueError("nbytes", self.nbytes, f"an integer in [0, {MAX_POINT_BYTES}]")
        if not self.samples_s:
            raise InvalidValueError("samples_s", self.samples_s, "at least one duration")
        for sample in self.samples_s:
            require_time("samples_s", sample)
        for name, value in self.options.items():
            if isinstance(value, int) and value < 1:
                raise InvalidValueError(f"option {name}", value, "an integer >= 1")

    @property
    def expected_s(self) -> float:
        """Expected duration, the :func:`robust_mean` of the samples."""
        return robust_mean(self.samples_s)


class CollectiveCurve(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The measured times of one algorithm of one collective on this cluster.

    The points and the order hold what is needed to run what was measured: the schedule is that of
    the registry's algorithm with the point's options and this order.

    Attributes:
        collective: such as ``"all_reduce"``; a rooted one was measured with rank 0 as its root.
        algorithm: a name from the schedule registry, or ``"native"``.
        points: measurements by ascending size.
        fit: the robust linear fit of the points.
        order: the ranks in the order that the schedules followed; empty for that of their numbers.
    """

    collective: str
    algorithm: str
    points: tuple[CurvePoint, ...]
    fit: LinearFit
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = [point.nbytes for point in self.points]
        if not sizes or sizes != sorted(set(sizes)):
            raise InvalidValueError("points", sizes, "non-empty, by strictly ascending nbytes")


class LinkProbe(Record, frozen=True, kw_only=True):
    """Raw one-way times between two ranks.

    Attributes:
        src: sending rank.
        dst: receiving rank.
        points: half the round-trip times, by message size.
    """

    src: int
    dst: int
    points: tuple[CurvePoint, ...]


STAGED_BYTES = 64 * KIB
"""Buffers up to this size are copied in and out of memory of their own, and so handled apart."""


class Handling(Record, frozen=True, kw_only=True):
    """The work of processors for messages, besides the wire, as calibration measured it.

    Ranks that share processors get in each other's way. So figures are of moments at which every
    rank has a message to send and one to receive, unless said otherwise; a round with fewer
    messages takes its share of them, and no less than one message takes alone.

    Attributes:
        up_to_bytes: buffers up to this size are handled so; None for all that are larger than
            other entries say.
        call_s: start and end of a collective: when the last rank begins, after the first.
        round_s: a round in which every rank waits for its message.
        stream_s: a message, where they are not waited for one by one.
        addition_s: a reduction, however short.
        byte_s: a byte.
        burst_byte_s: a byte of one message alone that a link's burst lets through at once.
        exposed: share of this work that is not hidden behind the wire of a link that is busy.
        left_over: share of a message, up to what the kernel buffers of it, that is still to leave
            when its sender goes on to another rank, and shares the link with what goes there.
    """

    up_to_bytes: int | None = None
    call_s: float = 0.0
    round_s: float = 0.0
    stream_s: float = 0.0
    addition_s: float = 0.0
    byte_s: float = 0.0
    burst_byte_s: float = 0.0
    exposed: float = 0.0
    left_over: float = 0.0

    def __post_init__(self) -> None:
        if self.up_to_bytes is not None and self.up_to_bytes < 0:
            raise InvalidValueError("up_to_bytes", self.up_to_bytes, "an integer >= 0, or none")
        for name in self.__struct_fields__[1:]:
            require_time(name, getattr(self, name))


class Interference(Record, frozen=True, kw_only=True):
    """How much computation and a collective disturb each other while both run.

    On CPU ranks the network stack, the reduction and the computation share the cores; on GPUs
    collectives take multiprocessors and memory bandwidth. Ideal overlap is ``(1, 1)``.

    Attributes:
        compute_rate: progress of computation per second while a collective runs, in [0, 1].
        collective_stretch: duration of a collective beside computation over its duration on an
            otherwise idle machine; >= 1.
        unexplained_s: by how much a measured iteration was longer than computation and collectives
            explain, or shorter where negative. It is added to predictions, and says nothing about
            which plan is better.
    """

    compute_rate: float = 1.0
    collective_stretch: float = 1.0
    unexplained_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.compute_rate <= 1.0:
            raise InvalidValueError("compute_rate", self.compute_rate, "a number in [0, 1]")
        if not math.isfinite(self.collective_stretch) or self.collective_stretch < 1.0:
            raise InvalidValueError(
                "collective_stretch", self.collective_stretch, "a finite number >= 1"
            )
        if not math.isfinite(self.unexplained_s):
            raise InvalidValueError("unexplained_s", self.unexplained_s, "finite")

    @property
    def is_ideal(self) -> bool:
        """Whether computation and collectives leave each other alone."""
        return self.compute_rate == 1 and self.collective_stretch == 1


MAX_RANKS = 1 << 20
"""Of a cluster: what is worked out for each of them has to fit into memory."""

MAX_LEVELS = 64
"""Of a cluster: at most 20 can join anything."""


class Cluster(Shown, Artifact, frozen=True, kw_only=True):
    """The machines as communication sees them; see the module.

    Attributes:
        name: what to call it in reports.
        levels: innermost first; where units are equal, the world size is the product of their
            sizes.
        placement: the rank at each position, positions counted innermost level fastest; empty
            when rank and position are the same.
        hosts: host name of each rank; empty when unknown.
        reduction_s_per_byte: γ, time to add one byte of one buffer to another.
        handling: what messages cost besides the wire, by ascending buffer size; empty for a
            cluster written by hand, whose messages cost α, β and γ alone.
        curves: measured collectives; empty for a cluster written by hand.
        probes: raw link probes; empty for a cluster written by hand.
        interference: what overlap costs here.
        warnings: what calibration found wrong, a sentence each: a slow host, say.
        metadata: versions, hardware, date: all that makes the figures reproducible.
    """

    KIND: ClassVar[str] = "cluster"
    SCHEMA_VERSION: ClassVar[int] = 2  # 1 knew units of equal size alone
    OLDEST_VERSION: ClassVar[int | None] = 1

    name: str
    levels: tuple[Level, ...]
    placement: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    reduction_s_per_byte: float = 0.0
    handling: tuple[Handling, ...] = ()
    curves: tuple[CollectiveCurve, ...] = ()
    probes: tuple[LinkProbe, ...] = ()
    interference: Interference = Interference()
    warnings: tuple[str, ...] = ()
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidValueError("levels", self.levels, "at least one level")
        if len(self.levels) > MAX_LEVELS:
            rule = f"at most {MAX_LEVELS}; leave out those of size 1, which join nothing"
            raise InvalidValueError("number of levels", len(self.levels), rule)
        require_time("reduction_s_per_byte", self.reduction_s_per_byte)
        if self.world_size > MAX_RANKS:
            rule = f"at most {MAX_RANKS} ranks; these are levels of {sizes_text(self.levels)}"
            raise InvalidValueError("size of all levels", self.world_size, rule)
        limits = [math.inf if h.up_to_bytes is None else h.up_to_bytes for h in self.handling]
        if self.handling and (limits != sorted(set(limits)) or limits[-1] < math.inf):
            rule = "by ascending up_to_bytes, and the last without"
            raise InvalidValueError("handling", [h.up_to_bytes for h in self.handling], rule)
        p = self.world_size
        if self.placement and (
            len(self.placement) != p or sorted(self.placement) != list(range(p))
        ):
            raise InvalidValueError(
                "placement", self.placement, f"a permutation of the ranks 0..{p - 1}"
            )
        if self.hosts and len(self.hosts) != p:
            raise InvalidValueError("hosts", self.hosts, f"one host name for each of {p} ranks")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return unit_counts(self.levels)[0]

    @property
    def joining(self) -> tuple[Level, ...]:
        """The levels that join anything, innermost first; none of a single rank."""
        return tuple(level for level in self.levels if level.joins)

    @property
    def first_outer(self) -> int:
        """Index of the level that joins hosts.

        It is the one named ``"host"``. Where none has that name, the innermost of several levels is
        taken for what is inside a host.
        """
        names = [level.name for level in self.levels]
        return names.index("host") if "host" in names else int(len(names) > 1)

    @property
    def host_count(self) -> int:
        """Number of hosts: by name where the hosts are known, else by :attr:`first_outer`."""
        if self.hosts:
            return len(set(self.hosts))
        return unit_counts(self.levels)[self.first_outer]

    @property
    def ranks_per_host(self) -> int:
        """Number of ranks on the host that has the most."""
        if self.hosts:
            return max(Counter(self.hosts).values())
        inner = self.levels[: self.first_outer]
        if all(isinstance(level.size, int) for level in inner):
            return self.world_size // self.host_count
        found = list(range(self.world_size))
        for level in inner:
            found = [level.place(unit)[0] for unit in found]
        return max(Counter(found).values())

    def summary(self) -> tuple[str, ...]:
        """Return how many ranks it has on how many hosts, and what calibration found wrong."""
        ranks = format_count(self.world_size, "rank")
        hosts = format_count(self.host_count, "host")
        return (f"{self.name}: {ranks} on {hosts}", *self.warnings)

    def rows(self) -> list[Row]:
        """Return the levels, the innermost first."""
        return [
            {
                "level": level.name,
                "size": level.size,
                "latency_s": level.latency_s,
                "link_bytes_per_s": level.bandwidth_bytes_per_s,
            }
            for level in self.levels
        ]

    def position(self, rank: int) -> int:
        """Return where ``rank`` sits, positions counted innermost level fastest."""
        self._require_rank(rank)
        return self.placement.index(rank) if self.placement else rank

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of ``rank``, one per level, innermost first."""
        unit = self.position(rank)
        coordinates = []
        for level in self.levels:
            unit, digit = level.place(unit)
            coordinates.append(digit)
        return tuple(coordinates)

    def rank_at(self, coordinates: tuple[int, ...]) -> int:
        """Return the rank that sits at ``coordinates`` (one per level, innermost first)."""
        rule = f"one index for each level of {sizes_text(self.levels)}, below the size of its unit"
        if len(coordinates) != len(self.levels):
            raise InvalidValueError("coordinates", coordinates, rule)
        position = 0
        for level, digit in zip(reversed(self.levels), reversed(coordinates), strict=True):
            held = level.held(position)
            if not 0 <= digit < len(held):
                raise InvalidValueError("coordinates", coordinates, rule)
            position = held[digit]
        return self.placement[position] if self.placement else position

    def level_between(self, a: int, b: int) -> Level:
        """Return the level that a message from rank ``a`` to rank ``b`` crosses.

        It is the outermost level at which their coordinates differ; the innermost for ``a == b``.
        """
        here, there = self.coordinates(a), self.coordinates(b)
        differing = [i for i in range(len(self.levels)) if here[i] != there[i]]
        return self.levels[max(differing, default=0)]

    def curve(self, collective: str, algorithm: str) -> CollectiveCurve | None:
        """Return the measured curve of an algorithm, or None when it was not measured."""
        for curve in self.curves:
            if curve.collective == collective and curve.algorithm == algorithm:
                return curve
        return None

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise InvalidValueError("rank", rank, f"in 0..{self.world_size - 1}")

    @classmethod
    def flat(
        cls,
        world_size: int,
        *,
        latency_s: float,
        bandwidth_bytes_per_s: float,
        reduction_s_per_byte: float = 0.0,
        name: str = "flat",
    ) -> Cluster:
        """Return a cluster of one level: ``world_size`` ranks on one switch."""
        level = Level(
            name="host",
            size=world_size,
            latency_s=latency_s,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        )
        return cls(name=name, levels=(level,), reduction_s_per_byte=reduction_s_per_byte)

    @classmethod
    def preset(cls, network: str, nodes: int) -> Cluster:
        """Return a flat cluster of ``nodes`` hosts on a well-known network.

        Args:
            network: one of ``NETWORKS``.
            nodes: number of hosts, one rank each.

        Raises:
            UnknownNameError: no such network.
            InvalidValueError: more than ``MAX_RANKS``, or none.
        """
        if network not in NETWORKS:
            raise UnknownNameError("network", network, NETWORKS)
        if nodes > MAX_RANKS:
            raise InvalidValueError("nodes", nodes, f"at most {MAX_RANKS}")
        latency_s, bandwidth, reduction = NETWORKS[network]
        return cls.flat(
            nodes,
            latency_s=latency_s,
            bandwidth_bytes_per_s=bandwidth,
            reduction_s_per_byte=reduction,
            name=f"{nodes} nodes, {network}",
        )

    def in_racks(self, hosts: Sequence[int], uplink_bytes_per_s: float | None = None) -> Cluster:
        """Return this cluster of one level with its hosts in racks, in the order of their ranks.

        A message between racks takes the latency of any other.

        Args:
            hosts: how many stand in each rack.
            uplink_bytes_per_s: between a rack and the core, each direction; as much as the hosts of
                the largest rack send together where left out.

        Raises:
            InvalidValueError: the racks do not hold all hosts, or the uplink has no such rate.
        """
        (level,) = self.levels
        if min(hosts, default=0) < 1 or sum(hosts) != level.largest:
            rule = f"the hosts of each rack, >= 1, of {level.largest} in all"
            raise InvalidValueError("racks", tuple(hosts), rule)
        rate = level.bandwidth_bytes_per_s
        uplink = max(hosts) * rate if uplink_bytes_per_s is None else uplink_bytes_per_s
        levels = (
            replace(level, size=size_of(hosts)),
            replace(level, name="rack", size=len(hosts), bandwidth_bytes_per_s=uplink),
        )
        racks = "+".join(map(str, hosts))
        changed: Cluster = replace(self, levels=levels, name=f"{self.name}, racks of {racks}")
        return changed


BESIDE_RUN = "cluster.json"
"""The file in the directory of a run that says what it ran on."""

NETWORKS: dict[str, tuple[float, float, float]] = {
    "1gbe": (45.26e-6, 0.94e9 / 8, 2.5e-10),
    "10gbe": (45.26e-6, 9.4e9 / 8, 2.5e-10),
    "25gbe": (20e-6, 23.5e9 / 8, 2.5e-10),
    "100gbe": (10e-6, 94e9 / 8, 2.5e-10),
}
"""Network -> (α in s, 1/β in bytes/s, γ in s/byte) of :meth:`Cluster.preset`.

α of 1 and 10 GbE is the one MG-WFBP reports for its 10GbE cluster (Fig. 5b: 90.52 us on two nodes
is 2 α); the faster ones are typical of their adapters. Bandwidths are TCP goodput at 94% of the
line rate; γ is a memory-bound addition at 4 GB/s per rank.
"""
