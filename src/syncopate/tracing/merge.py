"""Merge: the spans of all ranks on one clock.

Every rank records on its own clock. Processes of one host share theirs (``time.perf_counter`` is
the system's monotonic clock); clocks of different hosts differ by an offset that round trips tell.

[Note: offsets without round trips]
No rank is done with a collective before every rank has come to it. So each one that all take part
in bounds how far two clocks differ, from both sides, as the messages between two hosts do (Duda,
Harrus, Haddad and Bernard, Estimating global time in distributed systems, 1987). The narrowest
bounds of a training are as far apart as its shortest collectives last.

Within these bounds nothing says where a clock is but that ranks are done with a collective at about
the same time, however late one of them came. So clocks differ by what its ends do, in the median.
The middle of the bounds would be wrong by half of what one rank usually waits for the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.timeline import Span, Spans, Timeline
from syncopate.errors import InvalidValueError, encodable

_TIMES = ("start_s", "end_s", "launched_s", "ready_s")


def merge(
    spans: Sequence[Iterable[Span]],
    *,
    name: str,
    offsets_s: Sequence[float] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Timeline:
    """Return one timeline of every rank's spans; it starts at 0 with the earliest span.

    Args:
        spans: per rank, its spans on its own clock.
        name: what to call the timeline in reports.
        offsets_s: per rank, its clock minus the common one; all 0 when left out.
        metadata: plan, cluster, versions, date.

    Raises:
        InvalidValueError: not one offset per rank, or a span under another rank's index.
    """
    world_size = len(spans)
    offsets = [0.0] * world_size if offsets_s is None else list(offsets_s)
    if len(offsets) != world_size:
        raise InvalidValueError("offsets_s", offsets, f"one number for each of {world_size} ranks")
    parts = [Spans.of(of_rank) for of_rank in spans]
    for rank, part in enumerate(parts):
        for span in part.take(np.flatnonzero(part.rank != rank)[:1]):
            raise InvalidValueError(
                f"rank of span {span.name}", span.rank, f"{rank}, where it was given"
            )
    offset_s = np.repeat(offsets, [len(part) for part in parts])
    origin_s = (Spans.column(parts, "start_s") - offset_s).min(initial=math.inf)

    def shifted(field: str, column: NDArray[Any]) -> NDArray[Any]:
        return column - offset_s - origin_s if field in _TIMES else column

    by = (shifted(field, Spans.column(parts, field)) for field in ("end_s", "rank", "start_s"))
    order = np.lexsort(tuple(by))

    return Timeline(
        name=encodable(name),
        source="measured",
        world_size=max(world_size, 1),
        spans=Spans.joined(parts, lambda field, column: shifted(field, column)[order]),
        metadata={key: encodable(text) for key, text in (metadata or {}).items()},
    )


class ClockOffset(NamedTuple):
    """By how much a clock differs from another.

    Attributes:
        seconds: that clock minus the other.
        error_s: by how much that may be wrong.
    """

    seconds: float
    error_s: float


def clock_offset(round_trips: Iterable[tuple[float, float, float]]) -> ClockOffset:
    """Return another clock minus ours, from round trips between the two.

    Args:
        round_trips: ``(sent, answered, received)``: our clock when we asked, theirs when they
            answered, ours when the answer came. The fastest round trip bounds the error by half
            its duration and is the one believed (Cristian, Probabilistic clock synchronization,
            1989).

    Raises:
        InvalidValueError: no round trip at all.
    """
    best = min(round_trips, key=lambda trip: trip[2] - trip[0], default=None)
    if best is None:
        raise InvalidValueError("round_trips", [], "at least one (sent, answered, received)")
    sent, answered, received = best
    return ClockOffset(answered - (sent + received) / 2, (received - sent) / 2)


class Bounds(NamedTuple):
    """Between what a rank's clock minus rank 0's must be, by each of what they did together.

    Attributes:
        iteration: that it belongs to.
        low_s: at least.
        high_s: at most.
        ends_s: by how much its end differs from that of rank 0.
    """

    iteration: NDArray[Any]
    low_s: NDArray[Any]
    high_s: NDArray[Any]
    ends_s: NDArray[Any]

    @property
    def between_s(self) -> tuple[float, float]:
        """Between what it must be by all of them; infinite where ranks did nothing together."""
        return float(self.low_s.max(initial=-math.inf)), float(self.high_s.min(initial=math.inf))

    @property
    def offset(self) -> ClockOffset | None:
        """The offset by the ends, and the median deviation of single ones; None: unknown."""
        low_s, high_s = self.between_s
        if not (math.isfinite(low_s) and math.isfinite(high_s) and low_s <= high_s):
            return None
        middle_s = min(max(float(np.median(self.ends_s)), low_s), high_s)
        return ClockOffset(middle_s, float(np.median(np.abs(self.ends_s - middle_s))))


def bounds_of_each(spans: Sequence[Iterable[Span]], together: Iterable[str]) -> list[Bounds]:
    """Return between what each rank's clock minus rank 0's must be, by what they did together.

    See [Note: offsets without round trips].

    Args:
        spans: per rank, its spans on its own clock.
        together: lanes of which nothing ends on a rank before it began on all others.
    """
    first: Spans | None = None
    order = np.empty(0, np.int64)
    found = []
    for of_rank in spans:
        part = Spans.of(of_rank)
        own = part.take(part.in_lanes(*together))
        if first is None:
            first, order = own, _by_message(own)
        theirs, mine = order, _by_message(own)
        if not _alike(first, theirs, own, mine):
            theirs, mine = _common(first, own)
        low_s = own.start_s[mine] - first.end_s[theirs]
        high_s = own.end_s[mine] - first.start_s[theirs]
        ends_s = own.end_s[mine] - first.end_s[theirs]
        found.append(Bounds(own.iteration[mine], low_s, high_s, ends_s))
    return found


_MESSAGE = ("iteration", "lane", "name", "channel", "detail")
"""What agrees of the spans of one message; of several such they go by start."""


def _by_message(spans: Spans) -> NDArray[Any]:
    """Return an order of spans that depends on what they are of, and not on their ranks."""
    return np.lexsort((spans.start_s, *(getattr(spans, field) for field in _MESSAGE[::-1])))


def _alike(one: Spans, places: NDArray[Any], other: Spans, others: NDArray[Any]) -> bool:
    """Say whether spans of two ranks are of the same messages, in some orders of both."""
    return one.texts == other.texts and all(
        np.array_equal(getattr(one, field)[places], getattr(other, field)[others])
        for field in _MESSAGE
    )


def _common(first: Spans, own: Spans) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places in both of the messages that two ranks have in common."""
    # Rank 0 is compared with itself too.
    both = Spans.joined([first, own.changed(rank=own.rank + 1)])
    code, nth = both.numbered(*_MESSAGE)
    which = code * (nth.max(initial=0) + 1) + nth
    there, here = which[: len(first)], which[len(first) :]
    _, theirs, mine = np.intersect1d(there, here, True, return_indices=True)
    return theirs, mine
