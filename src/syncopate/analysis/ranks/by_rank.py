"""By rank: what the iterations of each rank take, in few figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncopate.analysis.collectives import bus_of_each
from syncopate.analysis.exposure import exposures
from syncopate.analysis.sweep import groups
from syncopate.artifacts.timeline import Timeline


@dataclass(frozen=True)
class RankFigures:
    """What the iterations of one rank take.

    Attributes:
        rank: which.
        iteration: the last one that it is known to have done.
        ended_s: when its last span ended, by the clock of the timeline.
        step_s: from the start of an iteration to that of the next, in the median; None where no
            two of them follow each other.
        waiting_s: exposed waiting for other ranks, in the mean over iterations.
        exposed_s: all exposed communication, that waiting included, likewise.
        nbytes: bytes pushed and pulled, likewise.
        bus_bytes_per_s: bus bandwidth while something was transferring; None: nothing was.
    """

    rank: int
    iteration: int
    ended_s: float
    step_s: float | None
    waiting_s: float
    exposed_s: float
    nbytes: float
    bus_bytes_per_s: float | None


def by_rank(timeline: Timeline) -> tuple[RankFigures, ...]:
    """Return the figures of every rank that has spans, by rank."""
    columns, found = timeline.columns, exposures(timeline)
    size = timeline.world_size
    waiting_s = np.bincount(found.spans.rank, found.waiting_s, size)
    moving_s = np.bincount(found.spans.rank, found.transferring_s, size)
    nbytes = np.bincount(found.spans.rank, found.spans.nbytes, size)
    rates = bus_of_each(timeline)
    figures = []
    for rank, mine in groups(columns.rank):
        numbers, of = np.unique(columns.iteration[mine], return_inverse=True)
        starts_s = np.full(len(numbers), np.inf)
        np.minimum.at(starts_s, of, columns.start_s[mine])
        follows = np.diff(numbers) == 1
        steps_s = np.diff(starts_s)[follows]
        count = len(numbers)
        figures.append(
            RankFigures(
                rank=rank,
                iteration=int(numbers[-1]),
                ended_s=float(columns.end_s[mine].max()),
                step_s=float(np.median(steps_s)) if len(steps_s) else None,
                waiting_s=float(waiting_s[rank]) / count,
                exposed_s=float(waiting_s[rank] + moving_s[rank]) / count,
                nbytes=float(nbytes[rank]) / count,
                bus_bytes_per_s=rates.get(rank) or None,
            )
        )
    return tuple(figures)
