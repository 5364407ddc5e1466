"""Fitted: when collectives ended of which no tool says it, as the steps of the training tell.

torch's flight recorder does not note when Gloo's collectives end. No rank begins its step before
all gradients are there, so the last collective of an iteration is over when the first rank begins
its step. Those before it go one behind the other, at the same rate. What ranks do between their
last collective and their step, such as clipping, counts as transfer: nothing tells the two apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from syncopate.tracing.foreign.iterations import iteration_of
from syncopate.tracing.foreign.ranktrace import OF_ALL_RANKS, Launch, RankTrace

_Step = tuple[int, int]
"""A step of a rank: its iteration, and which of it."""


def fitted_ends(
    traces: Sequence[RankTrace], numbered: Sequence[list[int]], arrived: Mapping[Hashable, int]
) -> dict[Hashable, int]:
    """Return when collectives ended whose end no rank's tool says.

    Args:
        traces: the ranks, by one clock.
        numbered: the iteration of each launch of each.
        arrived: when the last rank came to each collective.

    Returns:
        The ends in nanoseconds, by key; nothing of collectives that no step of all ranks follows.
    """
    steps: dict[Hashable, dict[int, tuple[_Step, int]]] = defaultdict(dict)
    nbytes: dict[Hashable, int] = {}
    for which, (trace, numbers) in enumerate(zip(traces, numbered, strict=True)):
        for launch, step, begin_ns in _before_steps(trace, numbers):
            steps[launch.key][which] = step, begin_ns
            nbytes[launch.key] = launch.nbytes
    together: dict[_Step, list[Hashable]] = defaultdict(list)
    over_ns: dict[_Step, int] = {}
    for key, found in steps.items():
        if len(found) < len(traces) or len({step for step, _ in found.values()}) > 1:
            continue
        step = found[0][0]
        together[step].append(key)
        over_ns[step] = min(begin_ns for _, begin_ns in found.values())
    ends: dict[Hashable, int] = {}
    for step, keys in together.items():
        keys.sort(key=lambda key: arrived[key])
        messages = [(key, arrived[key], nbytes[key]) for key in keys]
        ends |= _one_behind_the_other(messages, over_ns[step])
    return ends


def _before_steps(trace: RankTrace, numbers: Sequence[int]) -> Iterator[tuple[Launch, _Step, int]]:
    """Yield the collectives of all ranks without an end, each with the step after it."""
    seen: Counter[int] = Counter()
    steps: list[_Step] = []
    begins_ns: list[int] = []
    updates = [work for work in trace.work if work.lane == "update"]
    for work in sorted(updates, key=lambda work: work.start_ns):
        number = iteration_of(trace, work)
        steps.append((number, seen[number]))
        begins_ns.append(work.start_ns)
        seen[number] += 1
    for launch, number in zip(trace.launches, numbers, strict=True):
        known = launch.end_ns is not None or launch.took_ns is not None or launch.key is None
        whole = len(launch.group.ranks) in (0, trace.world_size)
        if known or not whole or launch.collective not in OF_ALL_RANKS:
            continue
        place = bisect_left(begins_ns, launch.start_ns)
        if place < len(steps) and steps[place][0] == number:
            yield launch, steps[place], begins_ns[place]


def _one_behind_the_other(
    messages: Sequence[tuple[Hashable, int, int]], over_ns: int
) -> Iterator[tuple[Hashable, int]]:
    """Yield the ends of collectives at one rate, with which the last is over at ``over_ns``.

    From each of them on, what is left travels in the time that is left: that bounds the rate, and
    the tightest bound is the rate.
    """
    left, times = 0, []
    for _, begin_ns, own in reversed(messages):
        left += own
        if left:
            times.append(max(over_ns - begin_ns, 0) / left)
    each_ns, end_ns = min(times, default=0.0), 0
    for key, begin_ns, own in messages:
        end_ns = max(begin_ns, end_ns) + int(own * each_ns)
        yield key, end_ns
