"""Merge: the spans of all ranks on one clock.

Every rank records on its own clock. Processes of one host share theirs (``time.perf_counter`` is
the system's monotonic clock); clocks of different hosts differ by an offset that round trips tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


def clock_offset(round_trips: Iterable[tuple[float, float, float]]) -> float:
    """Return another clock minus ours, in seconds, from round trips between the two.

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
    return answered - (sent + received) / 2
