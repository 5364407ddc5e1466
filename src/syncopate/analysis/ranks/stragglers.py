"""Stragglers: the ranks that others wait for, and why they are late.

An all-reduce makes every rank's iteration equally long, so a straggler does not show in iteration
times. It shows in arrivals: others wait for it (:mod:`syncopate.analysis.exposure`). Why it is late
is what it spends more time on than the median of the other ranks, of a pipeline those of its stage:

    compute     forward, backward and update, in the usual iteration
    input, ..   one of the pauses that are recorded, in the mean
    link        its messages end later after the last arrival than those of the others, which
                keeps its channel busy when the next is ready
    pause       an iteration in which it computes or waits for input for unusually long, without a
                recorded reason

A median tells the usual from what happened once; fewer than three iterations do not allow it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.collectives import Collectives, collectives, partners
from syncopate.analysis.evidence.pipeline import of_stage
from syncopate.analysis.exposure import Exposures, exposures
from syncopate.analysis.work import INPUT, SEVERAL, Work, steady, usual, works
from syncopate.artifacts.timeline import PAUSES, Timeline
from syncopate.artifacts.timelines.spans import Numbers, Times, coded

COMPUTE, LINK, PAUSE, SERVER, UNKNOWN = "compute", "link", "pause", "server", "unknown"
"""Causes beside the recorded pauses."""

_UNUSUAL = 0.1
"""A pause exceeds what is usual by at least this part of the usual computation."""

_EXPLAINS = 0.2
"""A cause explains a straggler when it is at least this part of the waiting."""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: which.
        caused_s: how long another rank waits for it in an iteration, exposed, in the mean over the
            others that it has messages with.
        share: of all waiting, in [0, 1].
        cause: ``"compute"``, ``"link"``, ``"pause"``, one of
            :data:`~syncopate.artifacts.timeline.PAUSES`, or ``"unknown"``.
        excess_s: cause -> what this rank spends on it in an iteration beyond the median of the
            other ranks; the positive ones.
        iterations: those in which others waited for it for at least half of ``caused_s``.
    """

    rank: int
    caused_s: float
    share: float
    cause: str
    excess_s: dict[str, float] = field(default_factory=dict)
    iterations: tuple[int, ...] = ()


def stragglers(timeline: Timeline) -> tuple[Straggler, ...]:
    """Return every rank that others wait for, the worst first."""
    messages = collectives(timeline)
    work = works(timeline)
    numbers = steady([one.iteration for one in work])
    caused = _caused(exposures(timeline), numbers, partners(timeline))
    total_s = sum(sum(rows.values()) for rows in caused.values())
    mine = own_times(work, messages, numbers)
    there = sorted(mine)
    alike = {
        there[at]: {there[other]: mine[there[other]] for other in one}
        for one in of_stage(timeline, there)
        for at in one
    }
    found = []
    for rank, by_iteration in caused.items():
        caused_s = sum(by_iteration.values()) / len(numbers)
        excess_s = _excess(rank, alike.get(rank, {}))
        cause = max(excess_s, key=excess_s.__getitem__, default=UNKNOWN)
        if excess_s.get(cause, 0.0) < _EXPLAINS * caused_s:
            cause = UNKNOWN
        felt = tuple(i for i, s in sorted(by_iteration.items()) if s >= caused_s / 2)
        found.append(
            Straggler(rank, caused_s, caused_s * len(numbers) / total_s, cause, excess_s, felt)
        )
    return tuple(sorted(found, key=lambda one: (-one.caused_s, one.rank)))


def own_times(
    work: Iterable[Work], messages: Collectives, numbers: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Return each rank's seconds in an iteration for each cause.

    Args:
        work: of all ranks.
        messages: of all ranks.
        numbers: the iterations that count.
    """
    by_rank: dict[int, list[Work]] = defaultdict(list)
    counted = frozenset(numbers)
    for one in work:
        if one.iteration in counted:
            by_rank[one.rank].append(one)
    spans = messages.spans.take(messages.rows)
    after_s = _sums(spans.iteration, spans.rank, spans.end_s - messages.moves_s, numbers)
    found: dict[int, dict[str, float]] = {}
    for rank, mine in by_rank.items():
        computing_s, waiting_s = [w.computation_s for w in mine], [w.input_s for w in mine]
        least_s = _UNUSUAL * usual(computing_s)
        once_s = unusual_s(computing_s, least_s) + unusual_s(waiting_s, least_s)
        times = {COMPUTE: usual(computing_s), INPUT: usual(waiting_s), PAUSE: once_s}
        for name in PAUSES:
            if name != INPUT:
                times[name] = statistics.fmean(w.paused_s.get(name, 0.0) for w in mine)
        tails_s = [after_s.get((w.iteration, rank), 0.0) for w in mine]
        found[rank] = times | {LINK: usual(tails_s)}
    return found


def unusual_s(values_s: Sequence[float], least_s: float) -> float:
    """Return by how much values exceed what is usual by at least ``least_s``, in the mean."""
    if len(values_s) < SEVERAL:
        return 0.0
    usual_s = usual(values_s)
    excess = [value - usual_s for value in values_s]
    return sum(over for over in excess if over > least_s) / len(values_s)


def _caused(
    found: Exposures, numbers: Sequence[int], others: Sequence[int]
) -> dict[int, dict[int, float]]:
    """Return rank -> iteration -> how long another rank waited for it, in the mean over them.

    Args:
        found: how long ranks waited.
        numbers: the iterations that count.
        others: rank -> how many others it has messages with.
    """
    caused: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for one, ranks, waited_s in found.charges():
        sums = _sums(found.spans.iteration[one], ranks, waited_s, numbers)
        for (iteration, rank), sum_s in sums.items():
            caused[rank][iteration] += sum_s / max(others[rank], 1)
    return caused


def _sums(
    iterations: Numbers, ranks: NDArray[Any], seconds_s: Times, numbers: Sequence[int]
) -> dict[tuple[int, int], float]:
    """Return the sums of seconds by iteration and rank, of the iterations that count."""
    counted = np.isin(iterations, numbers)
    code = coded([iterations[counted], ranks[counted]])
    _, one, group = np.unique(code, return_index=True, return_inverse=True)
    keys = zip(iterations[counted][one].tolist(), ranks[counted][one].tolist(), strict=True)
    return dict(zip(keys, np.bincount(group, seconds_s[counted]).tolist(), strict=True))


def _excess(rank: int, times: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return by how much a rank exceeds the median of the others; where it does."""
    others = [mine for other, mine in times.items() if other != rank]
    if not others or rank not in times:
        return {}
    excess = {
        cause: spent_s - statistics.median(mine[cause] for mine in others)
        for cause, spent_s in times[rank].items()
    }
    return {cause: more_s for cause, more_s in excess.items() if more_s > 0}
