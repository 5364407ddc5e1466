"""Arrivals: how long collectives take once all ranks are there, by clocks and without them.

Of one collective, with each rank's start and end on the clock of the timeline:

    together               = the last end - the last start
    clock-free bound       = the least, over ranks, of its own end - its own start

The rank that came last was in the collective no longer than that, so the first can never be less
than the second, which compares no clocks. Where it is, clocks are wrong by the difference at least.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncopate.analysis.collectives import collectives
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
