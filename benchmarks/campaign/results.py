"""Results: what one part of the campaign measured, with every raw sample."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Level
from syncopate.lab import Topology

NOISE = 0.05
"""Two medians closer than this are not told apart."""


class Sampled(Record, frozen=True, kw_only=True):
    """One contender at one size.

    Attributes:
        samples_s: each call, from the last rank's start to the last rank's end, in seconds.
        own_s: the longest of the ranks' own durations of each call.
        ran: the algorithm and options that ran, where the name does not say it: what ``auto`` took.
        link_bytes: link -> bytes that it sent in one call, counted at its interface; empty where
            nobody counted.
        scheduled_bytes: the same by the schedule, which knows no headers.
    """

    samples_s: tuple[float, ...]
    own_s: tuple[float, ...] = ()
    ran: str = ""
    link_bytes: dict[str, float] = {}
    scheduled_bytes: dict[str, float] = {}

    @property
    def median_s(self) -> float:
        """The figure that is reported."""
        return statistics.median(self.samples_s)

    @property
    def own_median_s(self) -> float:
        """The median of the longest ranks' own durations; NaN where they were not kept."""
        return statistics.median(self.own_s) if self.own_s else float("nan")

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile; the sample itself when there is one alone."""
        if len(self.samples_s) == 1:
            return self.samples_s[0], self.samples_s[0]
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return low, high


class Cell(Record, frozen=True, kw_only=True):
    """One collective at one size on some ranks, by contenders that took turns.

    Attributes:
        collective: such as ``"all_reduce"``.
        nbytes: the total buffer, as nccl-tests counts it.
        world_size: ranks that took part, the first of the lab.
        contenders: name -> what it took.
        wrong: elements that differed from the right result, over all ranks and contenders.
    """

    collective: str
    nbytes: int
    world_size: int
    contenders: dict[str, Sampled]
    wrong: int

    def ratio(self, slow: str, fast: str) -> float:
        """Return how many times faster ``fast`` is than ``slow``, by their medians."""
        return self.contenders[slow].median_s / self.contenders[fast].median_s

    def slower(self, name: str, peer: str) -> bool:
        """Say whether ``name`` is slower than ``peer`` beyond noise.

        Noise is a median within ``NOISE`` of the other's, or quartiles that overlap.
        """
        one, other = self.contenders[name], self.contenders[peer]
        apart = one.quartiles_s[0] > other.quartiles_s[1]
        return apart and one.median_s > (1 + NOISE) * other.median_s


class Stream(Record, frozen=True, kw_only=True):
    """Plain one-way TCP streams between hosts, without this project or Gloo.

    Attributes:
        nbytes: bytes of each stream.
        everyone: whether every host sent to the next at the same time, or host 0 to host 1 alone.
        samples_s: from the first byte sent to the last received, of the slowest stream.
    """

    nbytes: int
    everyone: bool
    samples_s: tuple[float, ...]


class Decision(Record, frozen=True, kw_only=True):
    """What ``auto`` takes up to a size.

    Attributes:
        collective: such as ``"all_reduce"``.
        least_bytes: the smallest message for which it holds.
        ran: algorithm and options.
    """

    collective: str
    least_bytes: int
    ran: str


class Saying(Record, frozen=True, kw_only=True):
    """What some ranks told their user.

    Attributes:
        ranks: who.
        seconds: when the last of them did, from when it happened.
        text: the line.
        names: whether it names the host or rank at fault.
    """

    ranks: tuple[int, ...]
    seconds: float
    text: str
    names: bool


class Scene(Record, frozen=True, kw_only=True):
    """Something that went wrong on purpose, and what the user saw.

    Attributes:
        title: what was done to the cluster.
        limit_s: how soon the one at fault should be named.
        by: the ranks that should name it.
        sayings: what ranks told.
    """

    title: str
    limit_s: float
    by: tuple[int, ...]
    sayings: tuple[Saying, ...]

    @property
    def named_s(self) -> float | None:
        """When the last rank that should named the one at fault; None when one never did."""
        times = {rank: s.seconds for s in self.sayings if s.names for rank in s.ranks}
        if not all(rank in times for rank in self.by):
            return None
        return max(times[rank] for rank in self.by)


class PartResult(Artifact, frozen=True, kw_only=True):
    """One part of the campaign.

    Attributes:
        part: its name.
        command: the exact command.
        topology: the emulated cluster.
        quick: whether repetitions were cut to see that it runs; then no figure counts.
        elapsed_s: how long the part took, without starting the lab.
        cells: collectives measured.
        streams: plain TCP streams.
        decisions: what ``auto`` takes, by collective and size.
        levels: the network as calibration found it; empty where it was not asked.
        placement: the rank at each position, as calibration found it.
        reduction_s_per_byte: γ, as calibration found it.
        scenes: failures.
        metadata: hardware, versions, date.
    """

    KIND: ClassVar[str] = "collectives-lab"

    part: str
    command: str
    topology: Topology
    quick: bool
    elapsed_s: float
    cells: tuple[Cell, ...] = ()
    streams: tuple[Stream, ...] = ()
    decisions: tuple[Decision, ...] = ()
    levels: tuple[Level, ...] = ()
    placement: tuple[int, ...] = ()
    reduction_s_per_byte: float = 0.0
    scenes: tuple[Scene, ...] = ()
    metadata: dict[str, str] = {}

    def of(self, collective: str, world_size: int | None = None) -> tuple[Cell, ...]:
        """Return the cells of a collective, by ascending size."""
        found = [
            cell
            for cell in self.cells
            if cell.collective == collective and world_size in (None, cell.world_size)
        ]
        return tuple(sorted(found, key=lambda cell: (cell.world_size, cell.nbytes)))


def label(algorithm: str, options: Mapping[str, Any]) -> str:
    """Return an algorithm and its options as ``syncopate bench`` takes them.

    Example:
        >>> label("blueconnect", {"factors": (4, 2), "pipelines": 4})
        'blueconnect:factors=4x2:pipelines=4'
    """
    return ":".join([algorithm, *(f"{name}={_text(value)}" for name, value in options.items())])


def _text(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return ("+" if isinstance(value[0], str) else "x").join(map(str, value))


def stream_s(streams: Sequence[Stream], nbytes: float, *, everyone: bool) -> float:
    """Return how long a plain stream of ``nbytes`` takes, linear between the sizes measured.

    Beyond the ends it takes the rate of the nearest size.
    """
    points = sorted(
        (stream.nbytes, statistics.median(stream.samples_s))
        for stream in streams
        if stream.everyone == everyone
    )
    if not points:
        return float("nan")
    for (low, low_s), (high, high_s) in pairwise(points):
        if low <= nbytes <= high:
            return low_s + (high_s - low_s) * (nbytes - low) / (high - low)
    size, seconds = points[0] if nbytes < points[0][0] else points[-1]
    return seconds * nbytes / size
