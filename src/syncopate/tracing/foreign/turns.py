"""Turns: which stretches of a rank's time were forward and which backward, by when they began.

A forward is a call of an outermost module; the last one before a backward lasts until that comes to
its output, the loss included. A backward lasts until the rank comes to its last collective before
the next forward or step; what it waits for then is no computation. Where it has none, as in a
micro-batch whose gradients are kept, it lasts until that forward or step. Between a step and the
next forward a rank reads its input.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from syncopate.tracing.foreign.ranktrace import RankTrace, Work


def forwards_and_backwards(
    trace: RankTrace, forwards: Sequence[tuple[int, int]], backwards: Sequence[int]
) -> Iterator[Work]:
    """Yield forwards and backwards of a rank.

    Args:
        trace: its collectives and steps.
        forwards: ``(begin, end)`` of each call of an outermost module, in nanoseconds, in order.
        backwards: when each backward came to the first of their outputs, in order.
    """
    turns = sorted([*(begin for begin, _ in forwards), *(work.start_ns for work in trace.work)])
    launched = [launch.start_ns for launch in trace.launches]
    begun = list(backwards)
    for begin_ns, end_ns in forwards:
        next_ns = _next(turns, begin_ns)
        backward_ns = _next(begun, end_ns - 1)
        if backward_ns is None or (next_ns is not None and next_ns < backward_ns):
            yield Work("forward", "forward", begin_ns, end_ns)
            continue
        yield Work("forward", "forward", begin_ns, backward_ns)
        last = len(launched) if next_ns is None else bisect_left(launched, next_ns)
        if last and launched[last - 1] > backward_ns:
            yield Work("backward", "backward", backward_ns, launched[last - 1])
        elif next_ns is not None:
            yield Work("backward", "backward", backward_ns, next_ns)


def _next(moments: Sequence[int], after_ns: int) -> int | None:
    """Return the first of sorted moments behind another; None where there is none."""
    place = bisect_left(moments, after_ns + 1)
    return moments[place] if place < len(moments) else None
