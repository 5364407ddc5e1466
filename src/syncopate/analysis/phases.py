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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from syncopate.analysis.intervals import Interval, intersection, length_s, union, without
from syncopate.errors import InvalidValueError
from syncopate.timeline import PAUSES, Span, Timeline

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


def phases(timeline: Timeline) -> tuple[Phases, ...]:
    """Return the phases of every rank in every iteration, by iteration, then rank."""
    groups: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        groups[span.iteration, span.rank].append(span)
    return tuple(
        _phases(rank, iteration, groups[iteration, rank]) for iteration, rank in sorted(groups)
    )


def computing(spans: Sequence[Span]) -> list[Interval]:
    """Return when one rank computed, by its spans: not while it waited for messages meanwhile."""
    busy = union((span.start_s, span.end_s) for span in spans if span.lane in COMPUTATION)
    return without(busy, union(stalled(spans)))


def stalled(spans: Iterable[Span]) -> Iterator[Interval]:
    """Yield when one rank waited for messages; a named pause is no such wait."""
    for span in spans:
        if span.lane == "wait" and span.name not in PAUSES:
            yield span.start_s, span.end_s


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


def _phases(rank: int, iteration: int, spans: Sequence[Span]) -> Phases:
    computation = computing(spans)
    communication = union((s.start_s, s.end_s) for s in spans if s.lane in COMMUNICATION)
    return Phases(
        rank=rank,
        iteration=iteration,
        duration_s=max(s.end_s for s in spans) - min(s.start_s for s in spans),
        computation_s=length_s(computation),
        communication_s=length_s(communication),
        overlapped_s=length_s(intersection(computation, communication)),
    )
