"""Midst: messages in the midst of a row of computation, which the rank stands still for.

A table may have one row for a whole forward. Ranks that share a layer add their parts in its midst,
and none computes on before that is over. A gradient is not there before backward, so what is
reduced within a forward is such a message, and so is what the same group sends by the same
collective, with as many bytes, within backward. Where neither group nor bytes are said, a message
within backward may be a bucket of gradients beside computation, and is left as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from syncopate.tracing.foreign.ranktrace import Launch, Work

_REDUCED = ("all_reduce", "reduce_scatter", "all_to_all")
_AROUND = ("forward", "backward", "update")


def waits(messages: Sequence[Launch], work: Sequence[Work]) -> Iterator[Work]:
    """Yield when a rank stood still for messages in the midst of its computation.

    Args:
        messages: of the rank.
        work: what it computed.
    """
    rows = sorted((one for one in work if one.lane in _AROUND), key=lambda one: one.start_ns)
    begins = [one.start_ns for one in rows]
    within: list[tuple[Launch, str]] = []
    for one in messages:
        at = bisect_right(begins, one.start_ns) - 1
        inside = at >= 0 and rows[at].start_ns < one.start_ns
        if inside and one.end_ns is not None and one.end_ns < rows[at].end_ns:
            within.append((one, rows[at].lane))
    forward = {_alike(one) for one, lane in within if lane == "forward"}
    groups = {group for group, kind, _ in forward if kind in _REDUCED}
    for one, lane in within:
        told = lane == "forward" or one.group.name or one.nbytes
        if one.group.key in groups and _alike(one) in forward and told:
            yield Work(one.collective, "wait", one.start_ns, one.end_ns or 0, one.iteration)


def _alike(one: Launch) -> tuple[tuple[str, int, int], str, int]:
    return one.group.key, one.collective, one.nbytes
