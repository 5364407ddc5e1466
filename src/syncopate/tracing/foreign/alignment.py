"""Alignment: how far the wall clocks of hosts may be apart, as the training itself tells.

Files of other tools carry wall clocks. Ranks of one host read the same; those of other hosts are
set by NTP, say, to milliseconds. No optimizer steps before every rank has come to every collective
of its iteration. So an iteration is one thing that ranks do together: a rank comes to it with its
last collective before its step, and is done with it when the step begins. What that says of clocks
is [Note: offsets without round trips]. A clock that keeps within these bounds is left as it is; one
that does not is moved within them: to where ends agree, as below, or to the nearest bound.

The kernels of NCCL say more: all ranks end one together, up to microseconds. So clocks differ by
what these ends do, in the median. Then the rank whose kernel was the shortest came last, and what
the kernels of others lasted longer they waited for it.

On a CPU they end one at about the same time. That moves clocks where collectives of two lengths
agree on it (:mod:`syncopate.tracing.foreign.ends`). Else it only says by how much they may be off,
better than bounds do, which are as far apart as ranks wait for each other. Where no tool says when
collectives ended, steps stand for them: ranks begin them at about the same time too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence

from syncopate.artifacts.timeline import Span
from syncopate.tracing.foreign.ends import told
from syncopate.tracing.foreign.iterations import iteration_of
from syncopate.tracing.foreign.ranktrace import OF_ALL_RANKS, RankTrace
from syncopate.tracing.merge import ClockOffset, bounds_of_each

_TOGETHER = "wait"
_ENDED_TOGETHER = ("all_reduce", "reduce_scatter", "all_gather")


def offsets(traces: Sequence[RankTrace]) -> tuple[ClockOffset, ...]:
    """Return each rank's clock minus the first rank's, in the order of ``traces``.

    An infinite error: nothing tells.
    """
    turns = [_turns(trace) for trace in traces]
    # As seconds since 1970, floats would lose tenths of a microsecond.
    origin_ns = min(
        (begin_ns for mine in turns for begin_ns, _ in mine.values()),
        default=min((one.start_ns for trace in traces for one in trace.launches), default=0),
    )
    spans = [_spans(mine, origin_ns) for mine in turns]
    bounds = bounds_of_each(spans, (_TOGETHER,))
    ends = [_ends(trace) or _steps(mine) for trace, mine in zip(traces, turns, strict=True)]
    apart = len({trace.host or which for which, trace in enumerate(traces)}) == len(traces)
    if (apart or _of_a_table(traces)) and (known := told(traces)) is not None:
        return tuple(known)
    return tuple(
        _offset(trace, traces[0], bound.between_s, _apart_ns(mine, ends[0]))
        for trace, bound, mine in zip(traces, bounds, ends, strict=True)
    )


def _of_a_table(traces: Sequence[RankTrace]) -> bool:
    """Say whether ranks are of a table, which may have times of several clocks."""
    return all(trace.host == trace.tool for trace in traces)


def _ends(trace: RankTrace) -> dict[Hashable, int]:
    """Return when a rank ended each collective that all ranks end together."""
    return {
        one.key: one.end_ns
        for one in trace.launches
        if one.key is not None and one.end_ns is not None and one.collective in _ENDED_TOGETHER
    }


def _steps(turns: dict[int, tuple[int, int]]) -> dict[Hashable, int]:
    return {number: step_ns for number, (_, step_ns) in turns.items()}


def _apart_ns(ends: dict[Hashable, int], others: dict[Hashable, int]) -> list[int]:
    """Return by how much a rank ended collectives later than the first."""
    return [end_ns - others[key] for key, end_ns in ends.items() if key in others]


def _offset(
    own: RankTrace, first: RankTrace, bounds_s: tuple[float, float], apart_ns: Sequence[int]
) -> ClockOffset:
    if own is first or (own.host and own.host == first.host):
        return ClockOffset(0.0, 0.0)
    middle_ns = off_ns = 0.0
    if apart_ns:
        middle_ns = statistics.median(apart_ns)
        off_ns = statistics.median(abs(one - middle_ns) for one in apart_ns)
        if own.on_device and first.on_device:
            seconds = middle_ns * 1e-9 if abs(middle_ns) > off_ns else 0.0
            return ClockOffset(seconds, max(off_ns, 1.0) * 1e-9)
    low_s, high_s = bounds_s
    if not math.isfinite(low_s) or low_s > high_s:
        return ClockOffset(0.0, math.inf)
    seconds = min(max(0.0, low_s), high_s)
    error_s = max(high_s - seconds, seconds - low_s)
    if apart_ns:
        middle_s = middle_ns * 1e-9
        if seconds and low_s <= middle_s <= high_s:
            seconds = middle_s
        error_s = min(error_s, abs(middle_s - seconds) + off_ns * 1e-9)
    return ClockOffset(seconds, error_s)


def _spans(turns: dict[int, tuple[int, int]], origin_ns: int) -> list[Span]:
    """Return each iteration as one thing that ranks do together."""
    return [
        Span(
            name=_TOGETHER,
            lane=_TOGETHER,
            rank=0,
            start_s=(begin_ns - origin_ns) * 1e-9,
            end_s=(end_ns - origin_ns) * 1e-9,
            iteration=number,
        )
        for number, (begin_ns, end_ns) in turns.items()
    ]


def _turns(trace: RankTrace) -> dict[int, tuple[int, int]]:
    """Return iteration -> when the rank came to its last collective, and began its last step."""
    steps: dict[int, int] = {}
    for work in trace.work:
        if work.lane == "update":
            number = iteration_of(trace, work)
            steps[number] = max(steps.get(number, work.start_ns), work.start_ns)
    last: dict[int, int] = {}
    everybody = _everybody(trace)
    for launch in trace.launches:
        if launch.collective in OF_ALL_RANKS and launch.group.key == everybody:
            number, at_ns = iteration_of(trace, launch), launch.start_ns
            if number in steps and at_ns <= steps[number]:
                last[number] = max(last.get(number, at_ns), at_ns)
    return {number: (last[number], steps[number]) for number in last}


def _everybody(trace: RankTrace) -> Hashable:
    """Return the key of the group of all ranks; where ranks are not known, torch makes it first."""
    groups = [launch.group for launch in trace.launches]
    groups = [one for one in groups if len(one.ranks) in (0, trace.world_size)]
    return min((one.key for one in groups), key=lambda k: (-k[2], len(k[0]), k[0]), default=None)
