"""Validated: how far predictions were off where they were held against measurements.

An interval of 90%: 5% of the measured iterations were shorter than ``low`` times their prediction,
and 5% longer than ``high`` times. It says how good the model is for inputs that were measured
somewhere else. What an input of one's own is worth (a wrong latency, a guessed computation) it
cannot know.

The table has what ``syncopate validate`` finds, and ``docs/validation.md`` shows; a test holds it
to the points. A kind without a row was not validated, and has no interval.
"""

from __future__ import annotations

from typing import NamedTuple

from syncopate.artifacts.cluster import Cluster
from syncopate.errors import InvalidValueError
from syncopate.units import format_rate


class Validated(NamedTuple):
    """What was validated, and what came of it.

    Attributes:
        kind: ``"gpu"`` or ``"lab"``.
        points: how many measurements.
        median: of the sizes of the errors.
        p90: their 90th percentile.
        low: 5% of the measurements were below this part of their prediction.
        high: 5% were above this one.
        ranks: fewest and most.
        links_bytes_per_s: slowest and fastest link between hosts.
        source: whose measurements.
    """

    kind: str
    points: int
    median: float
    p90: float
    low: float
    high: float
    ranks: tuple[int, int]
    links_bytes_per_s: tuple[float, float]
    source: str

    def interval_s(self, iteration_s: float, bound_s: float = 0.0) -> tuple[float, float]:
        """Return between what an iteration will lie that is predicted to take ``iteration_s``.

        Args:
            iteration_s: the prediction.
            bound_s: the physical bound, which no iteration is below.

        Raises:
            InvalidValueError: a prediction that is no duration, or below the bound.

        Example:
            >>> low_s, high_s = BY_KIND["gpu"].interval_s(0.200, bound_s=0.190)
            >>> round(low_s, 3), round(high_s, 3)
            (0.19, 0.235)
        """
        if not iteration_s >= max(bound_s, 0.0):
            rule = f"a number of seconds, at least the bound of {bound_s} s"
            raise InvalidValueError("iteration_s", iteration_s, rule)
        return max(self.low * iteration_s, bound_s), self.high * iteration_s

    def outside(self, cluster: Cluster) -> tuple[str, ...]:
        """Return in what a cluster lies outside of what was validated, a sentence each."""
        least, most = self.ranks
        slow, fast = self.links_bytes_per_s
        found = []
        if not least <= cluster.world_size <= most:
            found.append(
                f"{cluster.world_size} ranks are outside of what was validated, {least} to {most}"
            )
        rate = cluster.levels[-1].bandwidth_bytes_per_s
        if not _MARGIN * slow <= rate <= fast:
            found.append(
                f"links of {format_rate(rate)} are outside of what was validated, "
                f"{format_rate(slow)} to {format_rate(fast)}"
            )
        return tuple(found)


_MARGIN = 0.8
"""A link carries less than its nominal rate, and a cluster's level may say either."""

VALIDATED = (
    Validated(
        kind="gpu",
        points=27,
        median=0.0176,
        p90=0.0916,
        low=0.9102,
        high=1.1765,
        ranks=(8, 32),
        links_bytes_per_s=(1.25e9, 12.5e9),
        source="ResNet-50 on 2, 4 and 8 nodes of 4 RTX 2080 Ti over 10GbE, 100 Gbit/s InfiniBand "
        "and TCP over it: HKBU-HPML/ddl-benchmarks, results of 2020-05-29",
    ),
)

BY_KIND = {row.kind: row for row in VALIDATED}
