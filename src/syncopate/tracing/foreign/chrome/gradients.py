"""Gradients: when autograd had each, as torch.profiler saw it with ``record_shapes=True``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from syncopate.artifacts.timelines.gradients import Seen, usual
from syncopate.tracing.foreign.chrome.events import Event
from syncopate.tracing.foreign.ranktrace import Work

ACCUMULATED = "torch::autograd::AccumulateGrad"
"""The event in which a gradient is added to what its parameter has."""

_DTYPES = {
    "double": "float64",
    "float": "float32",
    "bfloat16": "bfloat16",
    "half": "float16",
}
"""torch's names of dtypes by those of C++, in small letters."""


def gradients_of(events: Iterable[Event], phases: Sequence[Work]) -> tuple[Seen, ...]:
    """Return the gradients of a backward in ready order; none where shapes were not recorded.

    Args:
        events: of one rank.
        phases: its computation as the host saw it.
    """
    accumulated = sorted(
        (event for event in events if event.name == ACCUMULATED), key=lambda event: event.end_ns
    )
    backwards = [work for work in phases if work.lane == "backward" and work.end_ns > work.start_ns]
    found: list[list[Seen]] = [[] for _ in backwards]
    place = 0
    for event in accumulated:
        while place < len(backwards) and event.start_ns > backwards[place].end_ns:
            place += 1
        if place == len(backwards) or event.start_ns < backwards[place].start_ns:
            continue
        back = backwards[place]
        done = (event.end_ns - back.start_ns) / (back.end_ns - back.start_ns)
        seen = _seen(event, min(done, 1.0))
        if seen is None:
            return ()
        found[place].append(seen)
    return usual(found)


def _seen(event: Event, done: float) -> Seen | None:
    """Return the gradient of an event; None where it does not tell its shape."""
    try:
        (shape,) = msgspec.json.decode(event.args.dims, type=list[tuple[int, ...]])
        (kind,) = msgspec.json.decode(event.args.types, type=list[str])
    except (msgspec.DecodeError, ValueError):
        return None
    dtype = _DTYPES.get(kind.rpartition("::")[2].lower())
    return None if dtype is None else Seen(shape, dtype, done)
