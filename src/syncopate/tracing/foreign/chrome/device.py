"""Device: what a GPU did, by its kernels.

A kernel belongs to the phase in which the host launched it. The host runs ahead, so phases on the
device are when their kernels ran. Of what the host launches behind a phase and before the next, the
loss is forward, what follows backward is update, such as clipping gradients, and what follows a
step is the next forward.

[Note: gaps between kernels] A kernel lasts microseconds, and between two the device idles for
some. A phase is written as few stretches, gaps and all; outside of phases long gaps are none's. But
where a collective is under way a gap is no computation that hides it, so there a stretch ends,
unless such gaps are a part of the communication that is too small to matter.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from syncopate.artifacts.timeline import Group
from syncopate.tracing.foreign.chrome.events import NOTHING, ON_DEVICE, Args, Event
from syncopate.tracing.foreign.chrome.names import (
    GENERIC,
    POINT_TO_POINT,
    collective_of,
    collective_of_call,
    collective_of_kernel,
)
from syncopate.tracing.foreign.ranktrace import Launch, Work, nbytes_of

LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime")
"""Categories of what launches kernels."""

KERNEL = "kernel"
ALL_WORK = "forward, backward, step"
"""What kernels are part of where no phase and no launch is known."""

UNKNOWN, BEFORE = -1, -2

_UNSEEN = 0.0001
"""Gaps under collectives up to this part of the time of these are not cut out."""

_PHASE_NS, _OTHER_NS = 10**18, 100_000
"""Gaps that are as long are between stretches, within phases and outside."""

_BEHIND = {"forward": "forward", "backward": "update", "update": "forward"}
"""Lane of a phase -> that of what the host launches behind it."""

_GUESSED = (GENERIC, POINT_TO_POINT)


class Kernel(NamedTuple):
    """One kernel.

    Attributes:
        event: it.
        launched_ns: when the host launched it; :data:`UNKNOWN`, or :data:`BEFORE` the recording.
        collective: what it is part of; None: it computes.
        said: what tells of the collective, its own ``args`` or those of the call.
    """

    event: Event
    launched_ns: int
    collective: str | None
    said: Args = NOTHING


def kernels_of(events: Sequence[Event]) -> list[Kernel]:
    """Return the kernels among the events of a rank, by start."""
    launched = {
        event.args.correlation: event.start_ns
        for event in events
        if event.cat in LAUNCHES and _is_key(event.args.correlation)
    }
    calls = _Calls(events)
    found = []
    for event in events:
        if event.cat == KERNEL:
            key = event.args.correlation
            at_ns = launched.get(key, UNKNOWN) if _is_key(key) else UNKNOWN
            found.append(_kernel(event, at_ns, calls))
    if all(kernel.launched_ns == UNKNOWN for kernel in found):
        return found
    return [
        one._replace(launched_ns=BEFORE) if one.launched_ns == UNKNOWN else one for one in found
    ]


def _is_key(value: Any) -> bool:
    return value is not None and isinstance(value, int | str)


def _kernel(event: Event, launched_ns: int, calls: _Calls) -> Kernel:
    collective = collective_of_kernel(event.name)
    said = event.args
    if said.collective is not None:
        name = str(said.collective)
        collective = collective_of(name) or collective or name
    if collective is None:
        return Kernel(event, launched_ns, None)
    if said.collective is None or collective in _GUESSED:
        called = calls.at(launched_ns)
        if called is not None:
            if collective in _GUESSED and called[0] is not None:
                collective = called[0]
            if said.collective is None and called[1].collective is not None:
                said = called[1]
    return Kernel(event, launched_ns, collective, said)


class _Calls:
    """The calls of collectives on the host, by when they were."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._found: list[tuple[int, int, str | None, Args]] = []
        for event in events:
            if event.cat in (KERNEL, ON_DEVICE):
                continue
            name = event.args.collective
            collective = (
                collective_of_call(event.name) if name is None else collective_of(str(name))
            )
            if collective is not None:
                self._found.append((event.start_ns, event.end_ns, collective, event.args))
        self._starts = [one[0] for one in self._found]

    def at(self, moment_ns: int) -> tuple[str | None, Args] | None:
        """Return the collective and the args of the innermost call around a moment."""
        place = bisect_right(self._starts, moment_ns)
        around = [one for one in self._found[max(place - 8, 0) : place] if one[1] >= moment_ns]
        if moment_ns < 0 or not around:
            return None
        told = next((one[3] for one in reversed(around) if one[3].collective is not None), NOTHING)
        return around[-1][2], told


def begun(kernels: Sequence[Kernel], moments_ns: Sequence[int]) -> list[int]:
    """Return when the device began what the host launched behind each of some moments."""
    by_launch = sorted((one.launched_ns, one.event.start_ns) for one in kernels)
    launches = [launched_ns for launched_ns, _ in by_launch]
    least = [*accumulate((start_ns for _, start_ns in reversed(by_launch)), min)][::-1]
    found = []
    for moment_ns in moments_ns:
        place = bisect_right(launches, moment_ns)
        found.append(max(least[place], moment_ns) if place < len(least) else moment_ns)
    return found


def launches_of(
    kernels: Iterable[Kernel], groups: Mapping[str, Group], marks: Sequence[tuple[int, int]]
) -> Iterator[Launch]:
    """Yield the collectives of a GPU.

    Args:
        kernels: all.
        groups: those that the file describes, by name.
        marks: when iterations began on the host, and their numbers. The device may run one of an
            iteration when others of the next have begun.
    """
    moments_ns = [moment_ns for moment_ns, _ in marks]
    streams: dict[Any, int] = {}
    for kernel in kernels:
        if kernel.collective is None:
            continue
        event, said = kernel.event, kernel.said
        stream = streams.setdefault(str(event.args.stream), len(streams))
        nbytes = said.nbytes if isinstance(said.nbytes, int) else 0
        if isinstance(said.elements, int):
            nbytes = nbytes_of([said.elements], str(said.dtype))
        yield Launch(
            None,
            kernel.collective,
            group_of(said, stream, groups),
            event.start_ns,
            event.end_ns,
            max(nbytes, 0),
            event.end_ns - event.start_ns,
            event.name,
            _iteration(marks, moments_ns, kernel.launched_ns),
        )


def _iteration(
    marks: Sequence[tuple[int, int]], moments_ns: Sequence[int], launched_ns: int
) -> int:
    """Return the iteration of what the host launched at a moment; -1: not known."""
    if launched_ns == UNKNOWN or not marks:
        return -1
    place = bisect_left(moments_ns, launched_ns) - 1
    return marks[place][1] if place >= 0 else max(marks[0][1] - 1, 0)


def group_of(said: Args, stream: int, groups: Mapping[str, Group]) -> Group:
    """Return the group of a collective; where none is named, each stream is one's."""
    if said.group is None:
        return Group(name=f"stream {stream}" if stream else "")
    name = str(said.group)
    known = groups.get(name, Group(name=name))
    ranks = ranks_of(said.group_ranks) or known.ranks
    kind = str(said.group_kind or known.description)
    return Group(name=name, ranks=ranks, description=kind)


def ranks_of(text: Any) -> tuple[int, ...]:
    """Return the ranks of a group as PyTorch writes them: ``"[0, 1]"``; none where it has not."""
    if isinstance(text, str):
        return _parsed(text)
    if isinstance(text, list) and all(type(one) is int and one >= 0 for one in text):
        return tuple(text)
    return ()


@lru_cache(maxsize=1024)  # every kernel repeats it
def _parsed(text: str) -> tuple[int, ...]:
    try:
        found = ast.literal_eval(text)  # which reads the dots of a list that was cut, too
    except (ValueError, SyntaxError):
        return ()
    return () if isinstance(found, str) else ranks_of(found)


def on_kernels(
    phases: Sequence[Work], kernels: Iterable[Kernel], marks: Sequence[tuple[int, int]]
) -> list[Work]:
    """Return phases of the host as what their kernels did; a phase without any is left out.

    Args:
        phases: by start.
        kernels: all.
        marks: as of :func:`launches_of`.
    """
    moments_ns = [moment_ns for moment_ns, _ in marks]
    within: dict[int, list[tuple[int, int]]] = defaultdict(list)
    behind: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    collectives = []
    starts = [work.start_ns for work in phases]
    for event, launched_ns, collective, _ in kernels:
        stretch = (event.start_ns, event.end_ns)
        if collective is not None:
            collectives.append(stretch)
            continue
        if launched_ns == BEFORE:
            continue
        place = bisect_right(starts, launched_ns) - 1
        if place >= 0 and launched_ns <= phases[place].end_ns:
            within[place].append(stretch)
        else:  # which may be in the next iteration
            behind[place, _iteration(marks, moments_ns, launched_ns)].append(stretch)
    waiting = _union(collectives)
    found = []
    for place, own in within.items():
        for start_ns, end_ns in _stretches(_union(own), waiting, _PHASE_NS):
            number = _iteration(marks, moments_ns, phases[place].start_ns)
            work = Work(phases[place].name, phases[place].lane, start_ns, end_ns, number)
            found.append(work)
    for (place, number), own in behind.items():
        lane = _BEHIND[phases[place].lane] if place >= 0 else "forward"
        lane, name = (lane, lane) if phases else ("backward", ALL_WORK)
        for start_ns, end_ns in _stretches(_union(own), waiting, _OTHER_NS):
            found.append(Work(name, lane, start_ns, end_ns, number))
    return sorted(found, key=lambda work: (work.start_ns, work.end_ns))


def _union(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(stretches):
        if joined and start_ns <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_ns))
        else:
            joined.append((start_ns, end_ns))
    return joined


def _stretches(
    busy: Sequence[tuple[int, int]], waiting: Sequence[tuple[int, int]], longest_ns: int
) -> Iterator[tuple[int, int]]:
    """Yield stretches of kernels that are one, by [Note: gaps between kernels]."""
    starts = [start_ns for start_ns, _ in waiting]
    under = [_shared(waiting, starts, a[1], b[0]) for a, b in pairwise(busy)]
    spare_ns = _UNSEEN * _shared(waiting, starts, busy[0][0], busy[-1][1])
    gaps = [after[0] - before[1] for before, after in pairwise(busy)]
    bridged = {at for at, gap_ns in enumerate(gaps) if not under[at] and gap_ns < longest_ns}
    for place in sorted((at for at, ns in enumerate(under) if ns), key=under.__getitem__):
        spare_ns -= under[place]
        if spare_ns < 0:
            break
        bridged.add(place)
    begin_ns = busy[0][0]
    for place, (before, after) in enumerate(pairwise(busy)):
        if place not in bridged:
            yield begin_ns, before[1]
            begin_ns = after[0]
    yield begin_ns, busy[-1][1]


def _shared(
    stretches: Sequence[tuple[int, int]], starts: Sequence[int], begin_ns: int, end_ns: int
) -> int:
    """Return how much of a stretch others cover, which are sorted and apart."""
    shared = 0
    for place in range(max(bisect_right(starts, begin_ns) - 1, 0), len(stretches)):
        start_ns, other_ns = stretches[place]
        if start_ns >= end_ns:
            break
        shared += max(min(other_ns, end_ns) - max(start_ns, begin_ns), 0)
    return shared
