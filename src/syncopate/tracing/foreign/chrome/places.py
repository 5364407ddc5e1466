"""Places: which collectives on different ranks are one, by their order and by when they were.

The k-th of a kind in an iteration and group is one collective on all ranks: they run the same
program. Where a rank has more of them than another and times exclude that, some events were lost,
and those are one that were at the same time: no rank is done with such a collective before every
rank has come to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from syncopate.tracing.foreign.ranktrace import OF_ALL_RANKS, RankTrace

_Kind = tuple[int, tuple[str, int, int], str]
"""Iteration, group, collective."""


class _Seen(NamedTuple):
    """A collective on one rank: the place of the rank among traces, and its own there."""

    start_ns: int
    end_ns: int
    trace: int
    at: int


def places_of(
    traces: Sequence[RankTrace], numbered: Sequence[Sequence[int]], error_ns: int
) -> list[list[int]]:
    """Return for each collective of each rank which of its kind it is.

    Args:
        traces: on one clock.
        numbered: the iteration of each collective.
        error_ns: by how much clocks may be off.
    """
    places: list[list[int]] = []
    kinds: dict[_Kind, list[list[_Seen]]] = defaultdict(list)
    for which, (trace, numbers) in enumerate(zip(traces, numbered, strict=True)):
        count: Counter[_Kind] = Counter()
        own: list[int] = []
        for at, (launch, number) in enumerate(zip(trace.launches, numbers, strict=True)):
            kind = (number, launch.group.key, launch.collective)
            own.append(count[kind])
            count[kind] += 1
            if launch.end_ns is not None and launch.collective in OF_ALL_RANKS:
                seen = _Seen(launch.start_ns, launch.end_ns, which, at)
                rows = kinds[kind]
                rows.extend([] for _ in range(own[-1] + 1 - len(rows)))
                rows[own[-1]].append(seen)
        places.append(own)
    for rows in kinds.values():
        if len({len(row) for row in rows}) > 1 and any(_excluded(row, error_ns) for row in rows):
            every = sorted(seen for row in rows for seen in row)
            for place, together in enumerate(_at_once(every, error_ns)):
                for seen in together:
                    places[seen.trace][seen.at] = place
    return places


def _excluded(row: Sequence[_Seen], error_ns: int) -> bool:
    """Say whether one of these ended before another began."""
    if len(row) < 2:
        return False
    return min(one.end_ns for one in row) + 2 * error_ns < max(one.start_ns for one in row)


def _at_once(every: Sequence[_Seen], error_ns: int) -> list[list[_Seen]]:
    """Return those that overlap, each rank once: by start, each joins the first that it can.

    What ends first of several goes first: the last rank to come leaves with the others.
    """
    found: list[list[_Seen]] = []
    for one in sorted(every, key=lambda seen: (seen.end_ns, seen.start_ns)):
        for together in reversed(found[-8:]):
            other = one.trace not in {seen.trace for seen in together}
            if other and not _excluded([*together, one], error_ns):
                together.append(one)
                break
        else:
            found.append([one])
    return sorted(found, key=lambda together: min(together).start_ns)
