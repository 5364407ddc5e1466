"""Phases: how one rank spent one iteration, and how much communication was hidden.

With X the union of a rank's forward, backward and update spans, without the waits for messages in
their midst, Y that of its push and pull spans, and |.| the length of a set of time:

    computation            = |X|
    communication          = |Y|
    overlapped             = |X and Y|
    computation only       = |X| - |X and Y|
    exposed communication  = |Y| - |X and Y|
    idle                   = duration - |X or Y|
    overlap ratio          = |X and Y| / |Y|
    phase overlap ratio    = |X and Y| / |X or Y|

The overlap ratio is the hidden share of communication. The last one is what SketchDLC calls the
overlap ratio: its phase 1 is computation only, its phase 2 is overlapped, its phase 3 is all
communication, and it divides phase 2 by phases 1 and 3 (Sections 3.2.4 and 5.3.1).

Other spans of the wait lane are a rank's own view of exposed communication and enter no formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.memoized import memoized
from syncopate.analysis.sweep import Pieces, lengths_s, pieces
from syncopate.artifacts.timeline import PAUSES, Spans, Timeline
from syncopate.artifacts.timelines.spans import Mask, Numbers, coded
from syncopate.errors import InvalidValueError

COMPUTATION: tuple[str, ...] = ("forward", "backward", "update")
"""Lanes that count as computation."""

COMMUNICATION: tuple[str, ...] = ("push", "pull")
"""Lanes that count as communication."""


@dataclass(frozen=True)
class Phases:
    """One rank's iteration, or a mean over several; see the module for the formulas.

    Attributes:
        rank: whose; -1 in a mean over ranks.
        iteration: which; -1 in a mean over iterations.
        duration_s: first start to last end.
        computation_s: time in computation.
        communication_s: time in communication.
        overlapped_s: time in both.
    """

    rank: int
    iteration: int
    duration_s: float
    computation_s: float
    communication_s: float
    overlapped_s: float

    @property
    def computation_only_s(self) -> float:
        """Computation beside which nothing was communicated."""
        return self.computation_s - self.overlapped_s

    @property
    def exposed_communication_s(self) -> float:
        """Communication that no computation hid."""
        return self.communication_s - self.overlapped_s

    @property
    def idle_s(self) -> float:
        """Time in neither."""
        busy = self.computation_s + self.communication_s - self.overlapped_s
        return max(self.duration_s - busy, 0.0)

    @property
    def overlap_ratio(self) -> float:
        """The hidden share of communication, in [0, 1]; 1 when there was none."""
        return self.overlapped_s / self.communication_s if self.communication_s > 0 else 1.0

    @property
    def phase_overlap_ratio(self) -> float:
        """SketchDLC's overlap ratio, phase 2 over phases 1 and 3, in [0, 1]; 0: nothing ran."""
        both = self.computation_only_s + self.communication_s
        return self.overlapped_s / both if both > 0 else 0.0


@memoized
def phases(timeline: Timeline) -> tuple[Phases, ...]:
    """Return the phases of every rank in every iteration, by iteration, then rank."""
    found = (
        phase if rank == phase.rank else replace(phase, rank=rank)
        for phase in _phases(timeline.kept)
        for rank in timeline.ranks_like(phase.rank)
    )
    return tuple(sorted(found, key=lambda phase: (phase.iteration, phase.rank)))


def _phases(spans: Spans) -> Iterator[Phases]:
    """Yield the phases of each rank that has spans of its own, in every iteration."""
    if not len(spans):
        return
    code = coded([spans.iteration, spans.rank])
    _, one, group = np.unique(code, return_index=True, return_inverse=True)
    starts_s, ends_s = np.full(len(one), np.inf), np.full(len(one), -np.inf)
    np.minimum.at(starts_s, group, spans.start_s)
    np.maximum.at(ends_s, group, spans.end_s)
    found, computing, messages = cut(spans, group)
    communicating = messages > 0
    columns = (
        spans.rank[one],
        spans.iteration[one],
        ends_s - starts_s,
        *(
            lengths_s(found, chosen, len(one))
            for chosen in (computing, communicating, computing & communicating)
        ),
    )
    yield from map(Phases, *(column.tolist() for column in columns))


def cut(spans: Spans, group: NDArray[Any]) -> tuple[Pieces, Mask, Numbers]:
    """Return the pieces of the time of groups of spans.

    Returns:
        The pieces; whether a rank computes in each; how many messages are under way in each.
    """
    kinds = (spans.in_lanes(*COMPUTATION), stalling(spans), spans.in_lanes(*COMMUNICATION))
    counted = np.logical_or.reduce(kinds)
    found = pieces(
        group[counted],
        spans.start_s[counted],
        spans.end_s[counted],
        [kind[counted] for kind in kinds],
    )
    busy, stalls, messages = found.counts
    return found, (busy > 0) & (stalls == 0), messages


def last_iteration_s(timeline: Timeline) -> float:
    """Return how long the last iteration took, in s: first start to last end, mean over ranks.

    Where it began before the messages of the one before had ended, it is counted from the end of
    that one to its own: when the last rank has computed and waited.

    Raises:
        InvalidValueError: the timeline has no spans.
    """
    found = phases(timeline)
    last = found[-1].iteration if found else -1
    spans = timeline.kept
    own = spans.in_lanes(*COMPUTATION, "wait")
    before, this = (spans.iteration == number for number in (last - 1, last))
    both = (own & before).any() and (own & this).any()
    if both and spans.end_s[before].max() > spans.start_s[this].min():
        return float(spans.end_s[own & this].max() - spans.end_s[own & before].max())
    return mean([phase for phase in found if phase.iteration == last]).duration_s


def stalling(spans: Spans) -> Mask:
    """Return which spans are waits for messages; a named pause is no such wait."""
    return spans.in_lanes("wait") & ~spans.named(PAUSES)


def mean(found: Sequence[Phases]) -> Phases:
    """Return the mean over several phases; its ratios are those of the mean times.

    Rank and iteration are kept where all agree, and are -1 otherwise.

    Raises:
        InvalidValueError: nothing to take the mean of.
    """
    if not found:
        raise InvalidValueError("phases", found, "at least one (the timeline has no spans)")
    times = [field.name for field in fields(Phases) if field.name.endswith("_s")]
    return Phases(
        rank=_agreed(phase.rank for phase in found),
        iteration=_agreed(phase.iteration for phase in found),
        **{name: sum(getattr(phase, name) for phase in found) / len(found) for name in times},
    )


def _agreed(values: Iterable[int]) -> int:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else -1
