"""Arrivals: who comes late to collectives, and how long these take once all ranks are there.

Of one collective, with each rank's start and end on the clock of the timeline:

    together               = the last end - the last start
    clock-free bound       = the least, over ranks, of its own end - its own start

The rank that came last was in the collective no longer than that, so the first can never be less
than the second, which compares no clocks. Where it is, clocks are wrong by the difference at least.

A rank is late to a collective by its start - the median start of the other ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from syncopate.analysis.collectives import collectives
from syncopate.analysis.work import steady
from syncopate.spans import Times, coded
from syncopate.timeline import Timeline


@dataclass(frozen=True)
class Arrivals:
    """The collectives that every rank recorded, in sum.

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
    whole = found.sizes >= max(timeline.world_size, 2)
    took_s = (found.most(spans.end_s) - found.arrived_s)[whole]
    least_s = found.least(spans.end_s - spans.start_s)[whole]
    off_s = (least_s - took_s).max(initial=0.0)
    return Arrivals(int(whole.sum()), float(took_s.sum()), float(least_s.sum()), float(off_s))


def lateness(timeline: Timeline) -> dict[int, dict[str, float]]:
    """Return rank -> message, such as ``"bucket 3"`` -> by how many seconds it is usually late.

    Negative where the rank is early. Messages that not every rank recorded do not count, and those
    that most iterations do not have.
    """
    found, ranks = collectives(timeline), timeline.world_size
    if ranks < 2 or not found:
        return {}
    spans, one = found.spans, found.rows[found.first]
    counted = steady(np.unique(spans.iteration[one]).tolist())
    whole = (found.sizes == ranks) & np.isin(spans.iteration[one], counted)
    starts_s = spans.start_s[found.rows[whole[found.of]]].reshape(-1, ranks)
    late_s = starts_s - of_others(starts_s)
    names = spans.name[one[whole]]
    usual_s = {
        spans.texts[name]: np.median(late_s[names == name], axis=0)
        for name, times in Counter(names.tolist()).items()
        if times > len(counted) / 2
    }
    return {rank: {name: float(of[rank]) for name, of in usual_s.items()} for rank in range(ranks)}


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
