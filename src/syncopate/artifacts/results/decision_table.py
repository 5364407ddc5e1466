"""Decision table: which algorithm carries which sizes of a collective on a cluster, and why.

It is made from a cluster by :mod:`syncopate.costs.decide.tabulate`, printed by ``syncopate choose``
and written as the rules of other libraries by ``syncopate convert``.
"""

from __future__ import annotations

from typing import ClassVar

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.level import require_time
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import AlgorithmOptions
from syncopate.shown import Row, Shown
from syncopate.units import format_count

MEASURED = "measured"
PRICED = "priced"
BASES = (MEASURED, PRICED)
"""Whether curves of the collective decided, or the prices of schedules on the cluster's links."""


class Candidate(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An algorithm at one size.

    Attributes:
        algorithm: a registered name, or ``"native"``.
        options: what it is told.
        expected_s: how long it is expected to take.
        tied: of a runner-up, whether noise alone separates it from what was chosen.
    """

    algorithm: str
    options: AlgorithmOptions = {}
    expected_s: float
    tied: bool = False

    def __post_init__(self) -> None:
        require_time("expected_s", self.expected_s)


class SizeRange(Record, frozen=True, kw_only=True):
    """The algorithm and options for a range of sizes.

    Attributes:
        min_bytes: the smallest, counted as nccl-tests counts it (the total buffer).
        max_bytes: the largest, itself included; None where there is no limit.
        at_bytes: the size for which times are given: a measured one in the middle of the range if
            there is one, else the middle, by ratio.
        chosen: what carries them.
        others: what else could, the fastest first.
    """

    min_bytes: int
    max_bytes: int | None
    at_bytes: int
    chosen: Candidate
    others: tuple[Candidate, ...] = ()

    def __post_init__(self) -> None:
        largest = self.at_bytes if self.max_bytes is None else self.max_bytes
        if not 0 <= self.min_bytes <= self.at_bytes <= largest:
            raise InvalidValueError(
                "at_bytes", self.at_bytes, f"in {self.min_bytes}..{self.max_bytes}"
            )


class CollectiveDecisions(Record, frozen=True, kw_only=True):
    """The decisions for one collective.

    Attributes:
        collective: such as ``"all_reduce"``.
        basis: one of :data:`BASES`.
        measured_bytes: the smallest and the largest measured size; None where nothing was measured.
        ranges: by ascending size, from 0 bytes up without gaps, the last without limit.
    """

    collective: str
    basis: str
    measured_bytes: tuple[int, int] | None = None
    ranges: tuple[SizeRange, ...]

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise UnknownNameError("basis", self.basis, BASES)
        expected: int | None = 0
        for each in self.ranges:
            if each.min_bytes != expected:
                rule = f"without gaps, so begin at {expected}"
                raise InvalidValueError(f"ranges of {self.collective}", each.min_bytes, rule)
            expected = None if each.max_bytes is None else each.max_bytes + 1
        if not self.ranges or expected is not None:
            raise InvalidValueError(
                f"ranges of {self.collective}", self.ranges, "up to one without limit"
            )


class DecisionTable(Shown, Artifact, frozen=True, kw_only=True):
    """The decisions for a cluster.

    Attributes:
        cluster: its name.
        world_size: its ranks; what was decided is good for this number alone.
        hosts: how many hosts they are on.
        probed: whether its links were measured, so that prices rest on measurements too.
        collectives: decisions by collective, each once.
    """

    KIND: ClassVar[str] = "decisions"

    cluster: str
    world_size: int
    hosts: int
    probed: bool
    collectives: tuple[CollectiveDecisions, ...]

    def __post_init__(self) -> None:
        names = [each.collective for each in self.collectives]
        if len(set(names)) != len(names):
            raise InvalidValueError("collectives", names, "each once")

    def summary(self) -> tuple[str, ...]:
        """Return for which cluster."""
        ranks, hosts = format_count(self.world_size, "rank"), format_count(self.hosts, "host")
        return (f"decisions for {self.cluster}: {ranks} on {hosts}",)

    def rows(self) -> list[Row]:
        """Return the ranges and their algorithms; ``most_nbytes`` is None without a limit."""
        return [
            {
                "collective": decided.collective,
                "least_nbytes": one.min_bytes,
                "most_nbytes": one.max_bytes,
                "algorithm": one.chosen.algorithm,
                "at_nbytes": one.at_bytes,
                "expected_s": one.chosen.expected_s,
            }
            for decided in self.collectives
            for one in decided.ranges
        ]

    def of(self, collective: str) -> CollectiveDecisions:
        """Return the decisions for a collective.

        Raises:
            UnknownNameError: the table has none.
        """
        for each in self.collectives:
            if each.collective == collective:
                return each
        known = [each.collective for each in self.collectives]
        raise UnknownNameError("collective", collective, known)
