"""Interference: what overlap costs this model here, from its own steps, overlapped against held.

[Note: reading it off] The same collectives run held, when none disturbs backward and backward
disturbs none, and overlapped. Of what overlap adds to backward, every second in which a
collective was under way had its share: ``compute_rate = 1 - (overlapped - held) / under way``.
Collectives that ran inside backward took ``collective_stretch`` times as long as held. A model that
leaves processors and links idle while it computes has neither; what noise alone could have made is
taken for none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from syncopate.artifacts.cluster import Interference
from syncopate.profiling.timings import Timing, durations

NOISE = 0.03
"""Longer by less than this share, backward or collectives are taken for undisturbed."""


@dataclass(frozen=True)
class Observed:
    """One step of one rank.

    Attributes:
        backward_s: how long backward took.
        span: start and end of backward on the clock of ``timings``; None where it is not known, as
            on a device.
        timings: its collectives.
    """

    backward_s: float
    span: tuple[float, float] | None
    timings: tuple[Timing, ...]

    @property
    def under_way_s(self) -> float:
        """For how long of backward a collective was under way."""
        busy_s, until_s = 0.0, float("-inf")
        limit_s = self.span[1] if self.span else float("inf")
        for _, _, start_s, end_s in sorted(self.timings, key=lambda timing: timing[2]):
            start_s, end_s = max(start_s, until_s), min(end_s, limit_s)  # noqa: PLW2901
            if end_s > start_s:
                busy_s += end_s - start_s
                until_s = end_s
        return min(busy_s, self.backward_s)

    def inside(self, index: int) -> bool:
        """Say whether a collective ran while backward did, from its start to its end."""
        return self.span is not None and self.timings[index][3] <= self.span[1]


Ranks = Sequence[Observed]
"""One step, on every rank."""


def interference_of(held: Sequence[Ranks], overlapped: Sequence[Ranks]) -> Interference:
    """Return what overlap costs; see [Note: reading it off].

    Args:
        held: steps of one plan, at least one.
        overlapped: steps of the same plan, at least one.
    """
    return Interference(
        compute_rate=_compute_rate(held, overlapped),
        collective_stretch=_stretch(held, overlapped),
    )


def _compute_rate(held: Sequence[Ranks], overlapped: Sequence[Ranks]) -> float:
    alone_s = statistics.median(_backward_s(ranks) for ranks in held)
    beside_s = statistics.median(_backward_s(ranks) for ranks in overlapped)
    busy_s = statistics.median(
        statistics.fmean(one.under_way_s for one in ranks) for ranks in overlapped
    )
    added_s = beside_s - alone_s
    if busy_s <= 0 or added_s <= NOISE * alone_s:
        return 1.0
    return min(max(1.0 - added_s / busy_s, 0.0), 1.0)


def _backward_s(ranks: Ranks) -> float:
    return statistics.fmean(one.backward_s for one in ranks)


def _stretch(held: Sequence[Ranks], overlapped: Sequence[Ranks]) -> float:
    alone = [durations([one.timings for one in ranks]) for ranks in held]
    alone_s = [statistics.median(same) for same in zip(*alone, strict=True)]
    expected_s = took_s = 0.0
    for ranks in overlapped:
        beside = durations([one.timings for one in ranks])
        for index, seconds in enumerate(beside):
            if all(one.inside(index) for one in ranks):
                expected_s += alone_s[index]
                took_s += seconds
    if expected_s <= 0 or took_s <= (1 + NOISE) * expected_s:
        return 1.0
    return took_s / expected_s
