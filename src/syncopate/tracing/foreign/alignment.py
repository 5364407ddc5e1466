"""Alignment: how far the wall clocks of hosts may be apart, as the training itself tells.

Files of other tools carry wall clocks. Ranks of one host read the same; those of other hosts are
set by NTP, say, to milliseconds. No optimizer steps before every rank has come to every collective
of its iteration. So an iteration is one thing that ranks do together: a rank comes to it with its
last collective before its step, and is done with it when the step begins. What that says of clocks
is [Note: offsets without round trips]. A clock that keeps within these bounds is left as it is; one
that does not is moved to the nearest bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from syncopate.timeline import Span
from syncopate.tracing.foreign.iterations import iteration_at
from syncopate.tracing.foreign.ranktrace import OF_ALL_RANKS, RankTrace
from syncopate.tracing.merge import ClockOffset, offset_bounds

_TOGETHER = "wait"


def offsets(traces: Sequence[RankTrace]) -> tuple[ClockOffset, ...]:
    """Return each rank's clock minus the first rank's, in the order of ``traces``.

    An infinite error: nothing tells.
    """
    turns = [_turns(trace) for trace in traces]
    # As seconds since 1970, floats would lose tenths of a microsecond.
    origin_ns = min((begin for mine in turns for begin, _ in mine.values()), default=0)
    spans = [_spans(mine, origin_ns) for mine in turns]
    bounds = offset_bounds(spans, (_TOGETHER,))
    return tuple(
        _offset(trace, traces[0], *between) for trace, between in zip(traces, bounds, strict=True)
    )


def _offset(own: RankTrace, first: RankTrace, low_s: float, high_s: float) -> ClockOffset:
    if own is first or (own.host and own.host == first.host):
        return ClockOffset(0.0, 0.0)
    if not math.isfinite(low_s) or low_s > high_s:
        return ClockOffset(0.0, math.inf)
    seconds = min(max(0.0, low_s), high_s)
    return ClockOffset(seconds, max(high_s - seconds, seconds - low_s))


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
            number = iteration_at(trace, work.start_ns)
            steps[number] = max(steps.get(number, 0), work.start_ns)
    last: dict[int, int] = {}
    for launch in trace.launches:
        if launch.collective in OF_ALL_RANKS and launch.group == _everybody(trace):
            number = iteration_at(trace, launch.start_ns)
            if launch.start_ns <= steps.get(number, 0):
                last[number] = max(last.get(number, 0), launch.start_ns)
    return {number: (last[number], steps[number]) for number in last}


def _everybody(trace: RankTrace) -> str:
    """Return the name of the group of all ranks: torch makes it first."""
    return min((launch.group for launch in trace.launches), key=lambda g: (len(g), g), default="")
