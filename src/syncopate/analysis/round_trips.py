"""Round trips: where the time goes between a push to a server and the weights that come back."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from syncopate.artifacts.timelines.round_trip import RoundTrip


class MeanRoundTrip(NamedTuple):
    """The mean over the trips of a server's slices.

    Attributes:
        server: which.
        trips: how many.
        stages_s: of each of :data:`STAGES`.
    """

    server: str
    trips: int
    stages_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """From the push to the weights."""
        return sum(self.stages_s)


def mean_round_trips(trips: Iterable[RoundTrip]) -> tuple[MeanRoundTrip, ...]:
    """Return the mean of each server's trips, by server."""
    by_server: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for trip in trips:
        by_server[trip.server].append(trip.stages_s)
    return tuple(
        MeanRoundTrip(server, len(mine), tuple(map(statistics.fmean, zip(*mine, strict=True))))
        for server, mine in sorted(by_server.items(), key=lambda one: int(one[0][1:]))
    )
