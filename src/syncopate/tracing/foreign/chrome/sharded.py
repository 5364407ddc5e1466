"""Sharded: what torch.profiler says of FSDP2's units, by the names that torch gives its steps.

    FSDP::all_gather (blocks.0)                 the weights of a unit are asked for
    FSDP::pre_backward (blocks.0)               its backward begins
    FSDP::post_backward_accumulate (blocks.0)   all its gradients are there
    FSDP::post_backward_reduce (blocks.0)       they are reduce-scattered

The root unit, which ``fully_shard(model)`` made, has no name in brackets. Where one call was given
several modules, there are several names.

[Note: standing still] On a CPU torch ends each gather and each reduce-scatter before it goes on, in
the middle of forward and backward. That time is no computation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from syncopate.artifacts.timelines.gradients import ROOT_UNIT, Seen
from syncopate.tracing.foreign.chrome.events import ON_DEVICE, Event
from syncopate.tracing.foreign.chrome.gradients import ACCUMULATED
from syncopate.tracing.foreign.ranktrace import Launch, Work

PREFIX = "FSDP::"

_GATHER, _REDUCE = "FSDP::all_gather", "FSDP::post_backward_reduce"
_BEGIN, _READY = "FSDP::pre_backward", "FSDP::post_backward_accumulate"


def is_sharded(events: Iterable[Event]) -> bool:
    """Say whether a trace is of FSDP2."""
    return any(event.name.startswith(PREFIX) for event in events)


def with_units(launches: Iterable[Launch], events: Sequence[Event]) -> Iterator[Launch]:
    """Yield collectives of a CPU that say in their detail which unit they are of."""
    steps = sorted(
        (event for event in events if _is(event, _GATHER) or _is(event, _REDUCE)),
        key=lambda event: event.start_ns,
    )
    begins_ns = [event.start_ns for event in steps]
    for launch in launches:
        place = bisect_right(begins_ns, launch.start_ns) - 1
        if place >= 0 and launch.start_ns <= steps[place].end_ns:
            yield launch._replace(detail=f"{launch.detail} ({unit_of(steps[place].name)})")
        else:
            yield launch


def computing(phases: Iterable[Work], launches: Iterable[Launch]) -> Iterator[Work]:
    """Yield computation without the collectives it stood still for; see [Note: standing still]."""
    stood = sorted((one.start_ns, one.end_ns) for one in launches if one.end_ns is not None)
    for work in phases:
        since_ns = work.start_ns
        for start_ns, end_ns in stood:
            if end_ns <= since_ns or start_ns >= work.end_ns:
                continue
            if start_ns > since_ns:
                yield work._replace(start_ns=since_ns, end_ns=start_ns)
            since_ns = end_ns
        if since_ns < work.end_ns or work.start_ns == work.end_ns:
            yield work._replace(start_ns=since_ns)


def of_units(
    gradients: Sequence[Seen], events: Sequence[Event], phases: Sequence[Work], cut: Sequence[Work]
) -> tuple[Seen, ...]:
    """Return gradients that know their unit, and when they are ready in what is computed.

    A gradient belongs to the unit whose backward has begun and is not over.

    Args:
        gradients: of a backward, in ready order.
        events: of the rank.
        phases: its computation.
        cut: the same without what stood still.
    """
    backwards = [work for work in phases if work.lane == "backward"]
    if not (gradients and backwards):
        return tuple(gradients)
    back = backwards[-1]
    inside = [e for e in events if back.start_ns <= e.start_ns]
    begins = sorted((e.start_ns, unit_of(e.name)) for e in inside if _is(e, _BEGIN))
    ready_ns = {unit_of(e.name): e.start_ns for e in reversed(inside) if _is(e, _READY)}
    moments_ns = sorted(e.end_ns for e in inside if e.name == ACCUMULATED)
    found = []
    for number, gradient in enumerate(gradients):
        at_ns = back.start_ns + gradient.done * (back.end_ns - back.start_ns)
        done = _share(cut, back, at_ns)
        if len(moments_ns) == len(gradients):
            at_ns = moments_ns[number]
        place = bisect_right(begins, (at_ns,)) - 1
        unit = begins[place][1] if place >= 0 else ROOT_UNIT
        # Between two units there are gradients of what belongs to none, which is the root's.
        if at_ns > ready_ns.get(unit, math.inf):
            unit = ROOT_UNIT
        found.append(gradient._replace(unit=unit, done=done))
    return tuple(found)


def _share(cut: Sequence[Work], back: Work, at_ns: float) -> float:
    """Return which share of what a backward computes is over at a moment."""
    own = [one for one in cut if one.lane == "backward" and one.start_ns >= back.start_ns]
    whole_ns = sum(one.end_ns - one.start_ns for one in own)
    over_ns = sum(max(min(one.end_ns, at_ns) - one.start_ns, 0.0) for one in own)
    return min(over_ns / whole_ns, 1.0) if whole_ns else 1.0


def unit_of(name: str) -> str:
    """Return the modules of the unit that a step is of.

    Example:
        >>> unit_of("FSDP::all_gather (blocks.0, blocks.1)"), unit_of("FSDP::all_gather")
        ('blocks.0+blocks.1', 'root')
    """
    _, bracket, rest = name.partition(" (")
    return rest.partition(")")[0].replace(", ", "+") if bracket else ROOT_UNIT


def _is(event: Event, step: str) -> bool:
    # A name that goes on is another step's.
    own = event.name.startswith(step) and not event.name.startswith(f"{step}_")
    return own and event.cat != ON_DEVICE
