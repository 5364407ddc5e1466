"""Analyze: what iterations spend their time on, of any files that a training left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from syncopate.analysis.collectives import collectives
from syncopate.analysis.exposure import exposures
from syncopate.analysis.phases import mean, phases
from syncopate.analysis.serving import Message, Overhead, served_phases
from syncopate.analysis.work import works
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.output import Progress, part, say
from syncopate.reports.attribution import timeline_json, timeline_report
from syncopate.reports.round_trips import round_trips_json, round_trips_report
from syncopate.reports.serving import serving_json, serving_report
from syncopate.runs.defaults import LAST, NO_TABLE, Table
from syncopate.runs.reading import Source, read
from syncopate.runs.served import computed_of, messages_in, messages_of
from syncopate.shown import Row, Shown
from syncopate.tracing import dlc

_READ = 0.5
"""About which share of the time reading takes."""


@dataclass(frozen=True)
class Served:
    """The messages and work of a parameter server's nodes.

    Attributes:
        messages: of all nodes.
        computed: what servers noted of their updates and searches.
        synchronous: whether servers answer a push when all workers pushed.
        trips: ways of slices to servers and back.
    """

    messages: Sequence[Message]
    computed: tuple[Overhead, ...] = ()
    synchronous: bool = True
    trips: tuple[RoundTrip, ...] = ()


@dataclass(frozen=True, repr=False)
class Analyzed(Shown):
    """What iterations spent their time on.

    Attributes:
        timeline: of ranks or workers; None where nodes of a parameter server alone were recorded.
        served: what these nodes did; None: there were none.
        remarks: what cannot be known, a sentence each.
    """

    timeline: Timeline | None
    served: Served | None = None
    remarks: tuple[str, ...] = ()

    def summary(self) -> tuple[str, ...]:
        """Return the name of the training and its ranks."""
        if self.timeline is not None:
            return (*self.timeline.summary(), *self.remarks)
        nodes = {one.node for one in self.served.messages} if self.served else set()
        return (f"messages of {len(nodes)} nodes of a parameter server", *self.remarks)

    def rows(self) -> list[Row]:
        """Return the phases of each iteration, the mean over ranks, or over workers."""
        found = (
            phases(self.timeline)
            if self.timeline is not None
            else served_phases(self.served.messages if self.served else ())
        )
        iteration = attrgetter("iteration")
        by_iteration = groupby(sorted(found, key=iteration), iteration)
        means = [(number, mean(list(ranks))) for number, ranks in by_iteration]
        return [
            {
                "iteration": number,
                "lasts_s": one.duration_s,
                "computation_s": one.computation_s,
                "communication_s": one.communication_s,
                "overlapped_s": one.overlapped_s,
                "exposed_s": one.exposed_communication_s,
                "idle_s": one.idle_s,
            }
            for number, one in means
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as ``syncopate analyze --json`` prints it."""
        said = {} if self.timeline is None else timeline_json(self.timeline)
        if (served := self.served) is None:
            return said
        of_nodes = serving_json(served.messages, served.computed, synchronous=served.synchronous)
        if self.timeline is None and not served.trips:
            return of_nodes
        said["served"] = of_nodes
        return said | ({"journeys": round_trips_json(served.trips)} if served.trips else {})

    def report(self) -> RenderableType:
        """Return everything for a terminal, to be printed by rich."""
        parts = [] if self.timeline is None else [timeline_report(self.timeline)]
        if (served := self.served) is not None:
            parts.append(
                serving_report(served.messages, served.computed, synchronous=served.synchronous)
            )
            parts += [round_trips_report(served.trips)] if served.trips else []
        return Group(*parts)


def analyze(
    *sources: Source,
    last: int = LAST,
    table: Table = NO_TABLE,
    progress: Progress | None = None,
) -> Analyzed:
    """Say what iterations spend their time on: computation, communication, and waiting.

    Args:
        sources: the directory of a run, a timeline, or one file of each rank.
        last: how many iterations of a run to look at, the last ones.
        table: headings and kinds of tables, such as ``("rank=gpu,start=t0:us", "push=SYNC")``.
        progress: called with what is done and the fraction done.

    Raises:
        ArtifactError: a file that holds no timeline, and no part of one.
        InvalidValueError: sources that do not fit together.

    Example:
        >>> print(syncopate.analyze("runs/a"))  # doctest: +SKIP
    """
    found = read(*sources, last=last, table=table, progress=part(progress, 0.0, _READ))
    _look(found.timeline, part(progress, _READ, 1.0))
    run = found.run
    if run is None or run.served is None:
        return Analyzed(found.timeline, None, found.remarks)
    served = run.served
    if run.first:  # versions are no iterations where servers wait for no worker
        shown = (work for work in served.work if work.start_s >= run.origin_s)
        served = served._replace(work=tuple(shown))
    beside = Served(
        messages=messages_in(run),
        computed=tuple(computed_of(served)),
        synchronous=served.synchronous,
        trips=tuple(found.trips),
    )
    return Analyzed(found.timeline if run.timeline.spans else None, beside, found.remarks)


def of_nodes(
    *files: Path, synchronous: bool = True, repair: bool = False, progress: Progress | None = None
) -> Analyzed:
    """Say the same of DLC traces: what each node of a parameter server sent and received.

    Args:
        files: one of each node.
        synchronous: whether servers answer a push when all workers pushed.
        repair: whether to put records in the order of their times.
        progress: called with what is read and the fraction done.

    Raises:
        ArtifactError: a file that is no DLC trace.
    """
    traces = {}
    remarks: list[str] = []
    for path in files:
        trace = dlc.read(path, partial(say, progress, path.name))
        remarks += map(str, trace.damage)
        mended = "; mended" if repair else ""
        remarks += [f"{path}: {odd}{mended}" for odd in dlc.findings(trace.records)]
        records = dlc.repaired(trace.records) if repair else trace.records
        traces[str(path)] = (trace.header, records)
    served = Served(messages_of(traces), synchronous=synchronous)
    return Analyzed(None, served, tuple(remarks))


def _look(timeline: Timeline, progress: Progress) -> None:
    """Compute the slow figures of a timeline now; they are kept for its report."""
    figures: tuple[Callable[[Timeline], object], ...] = (phases, collectives, exposures, works)
    for place, figure in enumerate(figures):
        say(progress, figure.__name__, place / len(figures))
        figure(timeline)
