"""Iterations: which collectives belong to which step of the training.

Where the file says when steps began, that decides. A dump of the flight recorder does not say it.
There the longest stretch in which the same collectives of the same sizes come again and again is
taken for the training, and what comes again for one iteration. Of the places where it could begin,
it begins where all ranks paused longest: no rank goes on before the last bucket has arrived.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise

from syncopate.tracing.foreign.ranktrace import Launch, RankTrace, Work

_LONGEST = 512
"""Collectives of an iteration that are found by their repetition."""


def iteration_at(trace: RankTrace, moment_ns: int) -> int:
    """Return the iteration of a moment, by the marks of its rank.

    What is before the first mark is of the iteration before.
    """
    place = bisect_left(trace.marks, (moment_ns, 0))
    if place:
        return trace.marks[place - 1][1]
    return max(trace.marks[0][1] - 1, 0) if trace.marks else 0


def iteration_of(trace: RankTrace, one: Launch | Work) -> int:
    """Return the iteration of a collective or computation of a rank with marks."""
    return one.iteration if one.iteration >= 0 else iteration_at(trace, one.start_ns)


def iterations(traces: Sequence[RankTrace]) -> tuple[dict[Hashable, int], str]:
    """Return the iteration of every collective that ranks share, by key; and a note on how.

    Args:
        traces: of all ranks; those with marks need nothing of this.
    """
    unmarked = [trace for trace in traces if not trace.marks]
    if not unmarked:
        return {}, ""
    longest = max(unmarked, key=lambda trace: len(trace.launches))
    launches = [launch for launch in longest.launches if launch.key is not None]
    keys = [launch.key for launch in launches]
    begin, end, period = _repetition([(e.collective, e.group.key, e.nbytes) for e in launches])
    if period == 0:
        return dict.fromkeys(keys, 0), "no collectives repeat: all count as one iteration"
    gaps = _gaps(keys, unmarked)
    first = max(
        range(begin, begin + period),
        key=lambda at: (sum(gaps[at:end:period]) / len(gaps[at:end:period]), -at),
    )
    starts = [
        first <= at < end and (at - first) % period == 0 and at > 0 for at in range(len(keys))
    ]
    note = f"iterations: every {period} collectives, which repeat from collective {first} on"
    if period == 1:
        note = (
            "iterations: each collective counts as one, because one size follows the other; "
            "`syncopate record` notes the steps"
        )
    return dict(zip(keys, accumulate(map(int, starts)), strict=True)), note


def _gaps(keys: Sequence[Hashable], traces: Sequence[RankTrace]) -> list[int]:
    """Return how long the rank that paused least paused before each collective, in nanoseconds."""
    starts = [{launch.key: launch.start_ns for launch in trace.launches} for trace in traces]
    gaps = [0]
    for before, now in pairwise(keys):
        seen = [own[now] - own[before] for own in starts if now in own and before in own]
        gaps.append(min(seen, default=0))
    return gaps


def _repetition(kinds: Sequence[Hashable]) -> tuple[int, int, int]:
    """Return begin, end and period of the longest stretch that repeats; the shortest period.

    A stretch repeats when it is at least two periods long; a period of 0: none does.
    """
    best = (0, 0, 0)
    for period in range(1, min(len(kinds) // 2, _LONGEST) + 1):
        run = 0
        for at in range(period, len(kinds) + 1):
            if at < len(kinds) and kinds[at] == kinds[at - period]:
                run += 1
                continue
            if run >= period and run + period > best[1] - best[0]:
                best = (at - period - run, at, period)
            run = 0
    return best
