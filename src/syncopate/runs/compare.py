"""Compare: two runs side by side, and what changed between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from syncopate.analysis.difference import BYTES, RATE, Difference
from syncopate.analysis.difference import difference as difference_of
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.output import Progress
from syncopate.reports.difference import difference_report
from syncopate.reports.round_trips import round_trips_difference, round_trips_json
from syncopate.runs.defaults import LAST
from syncopate.runs.reading import Source, read
from syncopate.shown import Row, Shown

_UNITS = {BYTES: "bytes", RATE: "bytes/s"}
"""Units of the figures that are no seconds."""


@dataclass(frozen=True, repr=False)
class Changed(Shown):
    """What changed from one run to another.

    Attributes:
        before: the first.
        after: the second.
        found: every figure of both.
        trips: of both, ways of slices to parameter servers and back.
        remarks: what cannot be known of either, a sentence each.
    """

    before: Timeline
    after: Timeline
    found: Difference
    trips: tuple[list[RoundTrip], list[RoundTrip]] = ([], [])
    remarks: tuple[str, ...] = ()

    def summary(self) -> tuple[str, ...]:
        """Return the change in one sentence."""
        return (f"{self.before.name} and {self.after.name}: {self.found.verdict}", *self.remarks)

    def rows(self) -> list[Row]:
        """Return the figures of an iteration, the means of both."""
        return [
            {
                "what": change.what,
                "unit": _UNITS.get(change.what, "s"),
                "before": change.before.mean,
                "after": change.after.mean,
                "ratio": change.ratio,
                "differs": change.differs,
            }
            for change in self.found.changes
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as ``syncopate compare --json`` prints it."""
        said = dict(msgspec.to_builtins(self.found))
        if all(self.trips):
            said["journeys"] = [round_trips_json(one) for one in self.trips]
        return said

    def report(self) -> RenderableType:
        """Return everything for a terminal, to be printed by rich."""
        text = difference_report(self.found, self.before, self.after)
        return Group(text, round_trips_difference(*self.trips)) if all(self.trips) else text


def difference(
    before: Source, after: Source, *, last: int = LAST, progress: Progress | None = None
) -> Changed:
    """Say what changed from one run to another, beyond the spread over iterations.

    Args:
        before: the directory of a run, or a timeline.
        after: the same.
        last: how many iterations of a run to look at, the last ones.
        progress: called with what is read and the fraction done.

    Raises:
        ArtifactError: a file that holds no timeline.
        InvalidValueError: one of them has no iteration with computation.
    """
    first = read(before, last=last, progress=progress).of_ranks()
    second = read(after, last=last, progress=progress).of_ranks()
    return Changed(
        first.timeline,
        second.timeline,
        difference_of(first.timeline, second.timeline),
        (first.trips, second.trips),
        (*first.remarks, *second.remarks),
    )
