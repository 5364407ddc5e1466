"""Alignment: how far the wall clocks of hosts may be apart, as the training itself tells.

Files of other tools carry wall clocks. Ranks of one host read the same; those of other hosts are
set by NTP, say, to milliseconds. No optimizer steps before every rank has come to every collective
of its iteration. So with u the moment when a rank's step began, l the moment when another came to
the last collective before its own step, both on their own clocks, and d the first clock minus the
second, ``d <= u - l`` in every iteration; and the same the other way round. A clock that keeps
within these bounds is left as it is; one that does not is moved to the nearest bound.

Source: Duda, Harrus, Haddad and Bernard, Estimating global time in distributed systems, 1987.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from syncopate.tracing.foreign.iterations import iteration_at
from syncopate.tracing.foreign.ranktrace import OF_ALL_RANKS, RankTrace


class Offset(NamedTuple):
    """A rank's clock against that of the first rank.

    Attributes:
        ns: that clock minus the first rank's.
        error_ns: by how much that may be wrong; infinite: nothing tells.
    """

    ns: int
    error_ns: float


def offsets(traces: Sequence[RankTrace]) -> tuple[Offset, ...]:
    """Return the offset of each rank's clock, in the order of ``traces``."""
    first = traces[0]
    return (Offset(0, 0), *(_offset(trace, first) for trace in traces[1:]))


def _offset(own: RankTrace, first: RankTrace) -> Offset:
    if own.host and own.host == first.host:
        return Offset(0, 0)
    ours, theirs = _turns(own), _turns(first)
    both = ours.keys() & theirs.keys()
    high = min((ours[k][1] - theirs[k][0] for k in both), default=math.inf)
    low = max((ours[k][0] - theirs[k][1] for k in both), default=-math.inf)
    if low > high or not both:
        return Offset(0, math.inf)
    ns = min(max(0, low), high)
    return Offset(round(ns), max(high - ns, ns - low))


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
