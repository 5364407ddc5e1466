"""Gradients: when autograd had each, as torch.profiler saw it with ``record_shapes=True``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest

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
    found: list[list[Seen]] = []
    for before_ns, back in _last_backwards(phases):
        found.append([])
        whole_ns = before_ns + back.end_ns - back.start_ns
        begin = bisect_left(accumulated, back.start_ns, key=lambda event: event.end_ns)
        for event in islice(accumulated, begin, None):
            if event.start_ns > back.end_ns:
                break
            if event.start_ns < back.start_ns:
                continue
            done = (before_ns + event.end_ns - back.start_ns) / whole_ns
            seen = _seen(event, min(done, 1.0))
            if seen is None:
                return ()
            found[-1].append(seen)
    return usual(found)


def _last_backwards(phases: Sequence[Work]) -> Iterator[tuple[int, Work]]:
    """Yield the last backward before each step, and how long those before it took.

    Where gradients accumulate over several, that is the one after which they travel. Where no step
    follows, each counts by itself.
    """
    own = [work for work in phases if work.lane == "update" or work.end_ns > work.start_ns]
    own = [work for work in own if work.lane in ("update", "backward")]
    stepping = any(work.lane == "update" for work in own)
    before_ns = 0
    for work, after in zip_longest(own, own[1:]):
        if work.lane == "update":
            continue
        if not stepping or (after is not None and after.lane == "update"):
            yield before_ns, work
            before_ns = 0
        else:
            before_ns += work.end_ns - work.start_ns


def _seen(event: Event, done: float) -> Seen | None:
    """Return the gradient of an event; None where it does not tell its shape."""
    try:
        (shape,) = msgspec.json.decode(event.args.dims, type=list[tuple[int, ...]])
        (kind,) = msgspec.json.decode(event.args.types, type=list[str])
    except (msgspec.DecodeError, ValueError):
        return None
    dtype = _DTYPES.get(kind.rpartition("::")[2].lower())
    return None if dtype is None else Seen(shape, dtype, done)
