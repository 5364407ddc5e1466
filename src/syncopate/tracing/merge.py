"""Merge: the spans of all ranks on one clock.

Every rank records on its own clock. Processes of one host share theirs (``time.perf_counter`` is
the system's monotonic clock); clocks of different hosts differ by an offset that round trips tell.

[Note: offsets without round trips]
No rank is done with a collective before every rank has come to it. So each one that all take part
in bounds how far two clocks differ, from both sides, as the messages between two hosts do (Duda,
Harrus, Haddad and Bernard, Estimating global time in distributed systems, 1987). The narrowest
bounds of a training are as far apart as its shortest collectives last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from syncopate.errors import InvalidValueError
from syncopate.timeline import Span, Timeline


def merge(
    spans: Sequence[Iterable[Span]],
    *,
    name: str,
    offsets_s: Sequence[float] | None = None,
    source: str = "measured",
    metadata: Mapping[str, str] | None = None,
) -> Timeline:
    """Return one timeline of every rank's spans; it starts at 0 with the earliest span.

    Args:
        spans: per rank, its spans on its own clock.
        name: what to call the timeline in reports.
        offsets_s: per rank, its clock minus the common one; all 0 when left out.
        source: ``"measured"`` or ``"simulated"``.
        metadata: plan, cluster, versions, date.

    Raises:
        InvalidValueError: not one offset per rank, or a span under another rank's index.
    """
    world_size = len(spans)
    offsets = [0.0] * world_size if offsets_s is None else list(offsets_s)
    if len(offsets) != world_size:
        raise InvalidValueError("offsets_s", offsets, f"one number for each of {world_size} ranks")
    rows: list[tuple[Span, float]] = []
    for rank, of_rank in enumerate(spans):
        for span in of_rank:
            if span.rank != rank:
                raise InvalidValueError(
                    f"rank of span {span.name}", span.rank, f"{rank}, where it was given"
                )
            rows.append((span, offsets[rank]))
    origin_s = min((span.start_s - offset for span, offset in rows), default=0.0)
    shifted = [
        msgspec.structs.replace(
            span,
            start_s=span.start_s - offset - origin_s,
            end_s=span.end_s - offset - origin_s,
            launched_s=None if span.launched_s is None else span.launched_s - offset - origin_s,
            ready_s=None if span.ready_s is None else span.ready_s - offset - origin_s,
        )
        for span, offset in rows
    ]
    shifted.sort(key=lambda span: (span.start_s, span.rank, span.end_s))
    return Timeline(
        name=name,
        source=source,
        world_size=max(world_size, 1),
        spans=tuple(shifted),
        metadata=dict(metadata or {}),
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


def offset_bounds(
    spans: Sequence[Iterable[Span]], together: Iterable[str]
) -> list[tuple[float, float]]:
    """Return between what each rank's clock minus rank 0's must be, by what they did together.

    See [Note: offsets without round trips]. Infinite where ranks did nothing together.

    Args:
        spans: per rank, its spans on its own clock.
        together: lanes of which nothing ends on a rank before it began on all others.
    """
    lanes = frozenset(together)
    per_rank = [_numbered(span for span in of_rank if span.lane in lanes) for of_rank in spans]
    found = []
    for own in per_rank:
        low_s, high_s = -math.inf, math.inf
        for key, (start_s, end_s) in per_rank[0].items():
            if key in own:
                low_s = max(low_s, own[key][0] - end_s)
                high_s = min(high_s, own[key][1] - start_s)
        found.append((low_s, high_s))
    return found


_Collective = tuple[int, str, str, int, str, int]


def _numbered(spans: Iterable[Span]) -> dict[_Collective, tuple[float, float]]:
    """Return start and end of each collective, by what names it on every rank."""
    found: dict[_Collective, tuple[float, float]] = {}
    count: dict[tuple[int, str, str, int, str], int] = defaultdict(int)
    for span in sorted(spans, key=lambda span: span.start_s):
        key = (span.iteration, span.lane, span.name, span.channel, span.detail)
        found[*key, count[key]] = (span.start_s, span.end_s)
        count[key] += 1
    return found
