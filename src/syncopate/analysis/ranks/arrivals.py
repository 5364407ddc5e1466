"""Arrivals: which ranks come late to collectives, and how long these take once all are there.

Of one collective, with each rank's start and end on the clock of the timeline:

    together               = the last end - the last start
    clock-free bound       = the least, over ranks, of its own end - its own start

The rank that came last was in the collective no longer than that, so the first can never be less
than the second, which compares no clocks. Where it is, clocks are wrong by the difference at least.

A rank is late to a collective by its start - the median start of the other ranks.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from syncopate.analysis.collectives import collectives, members
from syncopate.analysis.work import steady
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.spans import Times, coded
from syncopate.errors import InvalidValueError


@dataclass(frozen=True)
class Arrivals:
    """The collectives that all ranks recorded that take part, in sum.

    Attributes:
        collectives: how many.
        together_s: from the last arrival to the last completion, by the clocks.
        bound_s: the clock-free bound on that.
        clocks_off_s: by how much clocks are wrong at least; 0: nothing says they are.
    """

    collectives: int
    together_s: float
    bound_s: float
    clocks_off_s: float


def arrivals(timeline: Timeline) -> Arrivals:
    """Return how long the collectives of a timeline took once all ranks were there."""
    found = collectives(timeline)
    spans = found.spans
    whole = (found.sizes > 1) & (found.sizes == members(timeline))
    took_s = (found.most(spans.end_s) - found.arrived_s)[whole]
    least_s = found.least(spans.end_s - spans.start_s)[whole]
    off_s = (least_s - took_s).max(initial=0.0)
    return Arrivals(int(whole.sum()), float(took_s.sum()), float(least_s.sum()), float(off_s))


def clock_error_s(timeline: Timeline) -> float:
    """Return by how much clocks of hosts may be off, as the recording says; 0: it says nothing.

    Infinite where they could not be compared.

    Raises:
        InvalidValueError: its metadata are damaged.
    """
    text = timeline.metadata.get("clock_error_s", "0")
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not found >= 0:
        raise InvalidValueError("metadata 'clock_error_s'", text, "a number of seconds >= 0")
    return found


def lateness(timeline: Timeline) -> dict[int, dict[str, float]]:
    """Return rank -> message, such as ``"bucket 3"`` -> by how many seconds it is usually late.

    Negative where the rank is early. Messages that not every rank of theirs recorded do not count,
    and those that most iterations do not have.
    """
    found = collectives(timeline)
    if timeline.world_size < 2 or not found:
        return {}
    spans, one = found.spans, found.rows[found.first]
    counted = steady(np.unique(spans.iteration[one]).tolist())
    whole = (found.sizes > 1) & (found.sizes == members(timeline))
    whole &= np.isin(spans.iteration[one], counted)
    late_s: dict[tuple[int, int], list[float]] = defaultdict(list)
    for size in np.unique(found.sizes[whole]).tolist():
        alike = (whole & (found.sizes == size))[found.of]
        rows = found.rows[alike]
        by_s = of_others(spans.start_s[rows].reshape(-1, size))
        columns = (spans.rank[rows], spans.name[rows], spans.start_s[rows] - by_s.ravel())
        for rank, name, each_s in zip(*(column.tolist() for column in columns), strict=True):
            late_s[rank, name].append(each_s)
    usual_s: dict[int, dict[str, float]] = {rank: {} for rank in range(timeline.world_size)}
    for (rank, name), times in late_s.items():
        if len(times) > len(counted) / 2:
            usual_s[rank][spans.texts[name]] = statistics.median(times)
    return usual_s


def handing_over_s(timeline: Timeline) -> tuple[float, float]:
    """Return what a rank's computation spends on handing one push to its channel, and an iteration.

    That is from when a bucket is ready until it is handed over, in the mean, of the buckets that
    were before the next was ready: others may be copied by another thread. Of an iteration: times
    its pushes, in the mean over ranks and iterations. 0 where a timeline does not say it.
    """
    spans = timeline.columns
    pushes = spans.take(spans.in_lanes("push") & np.isfinite(spans.launched_s - spans.ready_s))
    pushes = pushes.take(np.lexsort((pushes.ready_s, pushes.iteration, pushes.rank)))
    turn = coded([pushes.rank, pushes.iteration])
    same = turn[1:] == turn[:-1]
    took_s = (pushes.launched_s - pushes.ready_s)[:-1]
    took_s = took_s[same & (pushes.launched_s[:-1] <= pushes.ready_s[1:]) & (took_s >= 0)]
    if not len(took_s):
        return 0.0, 0.0
    each_s = float(took_s.mean())
    return each_s, each_s * len(turn) / (len(turn) - int(same.sum()))


def of_others(values: Times) -> Times:
    """Return for each value the median of the others in its row."""
    count = values.shape[1]
    order = np.argsort(values, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(count)[None], axis=1)
    rows = np.take_along_axis(values, order, axis=1)
    low, high = (count - 2) // 2, (count - 1) // 2
    # Without the value itself, those behind it move up by one.
    middle = (np.take_along_axis(rows, at + (at >= place), axis=1) for at in (low, high))
    return sum(middle, start=np.zeros_like(values)) / 2
