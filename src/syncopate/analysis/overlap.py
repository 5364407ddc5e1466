"""Overlap: what a recorded training tells of collectives beside computation, from its own messages.

A recorded computation already lasted as long as it does beside communication, so its rate there is
1. While ranks compute backward, collectives may move fewer bytes a second than after it. Both rates
are those that explain the messages best: ``nbytes = inside_s * rate + outside_s * other rate``,
where a message's time begins when the last rank has started it, and counts in part where other
messages of the rank are under way. Where iterations disagree, nothing is known.
"""

from __future__ import annotations

import numpy as np

from syncopate.analysis import sweep
from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.timelines.spans import Numbers, Spans, Times, coded
from syncopate.units import KIB

LEAST_BYTES = 256 * KIB
"""What is shorter takes its latency, which does not tell a rate."""

LEAST_SHARE = 0.05
"""Of the time of messages, that inside of backward and that outside must each have so much."""

MOST_ITERATIONS = 32
"""So many tell it; the last ones count."""

NOISE = 0.03
"""A rate that is lower by less than this share is taken for the same."""

FEWEST, SCATTER = 3, 2.0
"""Iterations that tell it, at least, and by how much what they tell may differ."""


def recorded_overlap(spans: Spans) -> Interference:
    """Return what overlap costs beside what was recorded.

    Args:
        spans: of a data-parallel training, of the iterations that count; its last ones are enough.
    """
    last = np.unique(spans.iteration)[-MOST_ITERATIONS:]
    spans = spans.take(np.isin(spans.iteration, last))
    pushes = spans.take(spans.in_lanes("push") & (spans.nbytes >= LEAST_BYTES))
    if not len(pushes):
        return Interference()
    inside_s, outside_s = _times_s(pushes, spans.take(spans.in_lanes("backward")))
    shares = np.array([inside_s.sum(), outside_s.sum()])
    if not (shares > LEAST_SHARE * shares.sum()).all():
        return Interference()
    by_iteration = [mine for _, mine in sweep.groups(pushes.iteration)]
    stretch = _stretch(pushes, inside_s, outside_s, slice(None))
    each = [_stretch(pushes, inside_s, outside_s, mine) for mine in by_iteration]
    if stretch <= 1 + NOISE or len(each) < FEWEST or max(each) > SCATTER * min(each):
        return Interference()
    return Interference(collective_stretch=stretch)


def _stretch(pushes: Spans, inside_s: Times, outside_s: Times, those: Numbers | slice) -> float:
    """Return by how much longer messages take beside backward; 1 where they do not."""
    times_s = np.stack([inside_s[those], outside_s[those]], axis=1)
    rates, *_ = np.linalg.lstsq(times_s, pushes.nbytes[those].astype(float), rcond=None)
    inside, outside = rates.tolist()
    return max(outside / inside, 1.0) if inside > 0 else 1.0


def _times_s(pushes: Spans, backward: Spans) -> tuple[Times, Times]:
    """Return the seconds that each push had for itself, inside of its rank's backward and not."""
    start_s = np.minimum(_met_s(pushes), pushes.end_s)
    found = np.zeros((2, len(pushes)))
    width = int(max(pushes.rank.max(), backward.rank.max(initial=0))) + 1
    rows = dict(sweep.groups(backward.iteration * width + backward.rank))
    for turn, mine in sweep.groups(pushes.iteration * width + pushes.rank):
        own = backward.take(rows.get(turn, np.zeros(0, np.int64)))
        begins_s, ends_s = start_s[mine], pushes.end_s[mine]
        cuts = np.unique(np.concatenate([begins_s, ends_s, own.start_s, own.end_s]))
        for low_s, high_s in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            under_way = mine[(begins_s <= low_s) & (ends_s >= high_s)]
            if len(under_way):
                beside = bool(((own.start_s <= low_s) & (own.end_s >= high_s)).any())
                found[0 if beside else 1, under_way] += (high_s - low_s) / len(under_way)
    return found[0], found[1]


def _met_s(pushes: Spans) -> Times:
    """Return when the last rank had started each push: the same one of every rank."""
    of = coded(pushes.numbered("iteration", "name"))
    last_s = np.full(int(of.max()) + 1, -np.inf)
    np.maximum.at(last_s, of, pushes.start_s)
    return last_s[of]
