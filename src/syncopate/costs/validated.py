"""Validated: how far predictions were off where they were held against measurements.

The figures say how good the model is for inputs that were measured somewhere else. What an input of
one's own is worth (a wrong latency, a guessed computation) they cannot know.

The table has what ``syncopate validate`` finds, and ``docs/validation.md`` shows; a test holds it
to the points. A kind without a row was not validated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from syncopate.units import format_rate


class Validated(NamedTuple):
    """A validated kind of prediction, and its errors.

    Attributes:
        kind: ``"gpu"`` or ``"lab"``.
        points: how many measurements.
        median: of the sizes of the errors.
        p90: their 90th percentile.
        ranks: fewest and most.
        links_bytes_per_s: slowest and fastest link between hosts.
        source: whose measurements.
    """

    kind: str
    points: int
    median: float
    p90: float
    ranks: tuple[int, int]
    links_bytes_per_s: tuple[float, float]
    source: str

    def outside(self, ranks: Collection[int], bytes_per_s: Collection[float]) -> Iterator[str]:
        """Yield in what clusters lie outside of what was validated, a sentence each.

        Args:
            ranks: how many they have; at least one number.
            bytes_per_s: what the links between their hosts carry; at least one.
        """
        least, most = self.ranks
        slow, fast = self.links_bytes_per_s
        if min(ranks) < least or max(ranks) > most:
            yield (
                f"{_range(str(min(ranks)), str(max(ranks)))} ranks lie outside of what was "
                f"validated, {least} to {most}"
            )
        if min(bytes_per_s) < _MARGIN * slow or max(bytes_per_s) > fast:
            found = _range(format_rate(min(bytes_per_s)), format_rate(max(bytes_per_s)))
            yield (
                f"links of {found} lie outside of what was validated, {format_rate(slow)} to "
                f"{format_rate(fast)}"
            )


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


_MARGIN = 0.8
"""A link carries less than its nominal rate, and a cluster's level may say either."""

VALIDATED = (
    Validated(
        kind="gpu",
        points=27,
        median=0.0176,
        p90=0.0916,
        ranks=(8, 32),
        links_bytes_per_s=(1.25e9, 12.5e9),
        source="ResNet-50 on 2, 4 and 8 nodes of 4 RTX 2080 Ti over 10GbE, 100 Gbit/s InfiniBand "
        "and TCP over it: HKBU-HPML/ddl-benchmarks, results of 2020-05-29",
    ),
    # What shared processors add was measured apart, and added (docs/validation.md).
    Validated(
        kind="lab",
        points=24,
        median=0.0530,
        p90=0.1041,
        ranks=(2, 8),
        links_bytes_per_s=(31.25e6, 0.5e9),
        source="ResNet-50 replayed and ResNet-20 computing on emulated hosts that share two cores, "
        "links of 0.25 to 4 Gbit/s: this project, 2026-11-29",
    ),
)

BY_KIND = {row.kind: row for row in VALIDATED}
