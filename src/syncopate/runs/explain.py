"""Explain: why a training's iterations take as long as they do, and what would mend it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from syncopate.analysis.causes.explanation import Explanation, explanation
from syncopate.analysis.causes.trial import Cause
from syncopate.analysis.phases import COMPUTATION
from syncopate.analysis.ranks.arrivals import lateness
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError
from syncopate.output import Progress
from syncopate.reports.explanation import explanation_json, explanation_report, told, verdict
from syncopate.reports.phases import ARRIVALS_ALONE, lateness_report
from syncopate.reports.round_trips import round_trips_json, round_trips_report
from syncopate.runs.best_plan import against_the_best
from syncopate.runs.defaults import LAST, NO_TABLE, Table
from syncopate.runs.reading import Source, latest, of_those_there, opened, read
from syncopate.shown import Row, Shown

TOOL = "tool"
"""What metadata call the tool that wrote the files of ranks."""


@dataclass(frozen=True, repr=False)
class Explained(Shown):
    """What iterations lose time to.

    Attributes:
        timeline: that was looked at.
        found: the causes, or why there are none; None where nothing but arrivals was recorded.
        remarks: what cannot be known, a sentence each.
        cluster: that bandwidths are compared with; None: it is not known.
        best: the best plan, where workload and cluster are known.
        files: of the workload and the cluster, for the commands that are proposed.
        recorded: the files of the recording, for the same.
        trips: ways of slices to parameter servers and back.
    """

    timeline: Timeline
    found: Explanation | None
    remarks: tuple[str, ...] = ()
    cluster: Cluster | None = None
    best: Plan | None = None
    files: tuple[str, str] | None = None
    recorded: str = "FILE"
    trips: tuple[RoundTrip, ...] = ()

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes, the greatest gain first; none where the evidence is thin."""
        return () if self.found is None else self.found.causes

    @property
    def abstains(self) -> tuple[str, ...]:
        """Why nothing is explained, and what to record instead; empty where it is."""
        return (ARRIVALS_ALONE,) if self.found is None else self.found.abstains

    def summary(self) -> tuple[str, ...]:
        """Return the verdict, and where the evidence is thin what is missing."""
        said = "no explanation" if self.found is None else verdict(self.found)
        return (f"{self.timeline.name}: {said}", *self.abstains, *self.remarks)

    def rows(self) -> list[Row]:
        """Return the causes: what an iteration would be shorter by, and a share of it."""
        if self.found is None:
            return []
        return [
            {
                "cause": told(cause, self.found, self.files)["what"],
                "kind": cause.kind,
                "ranks": cause.ranks,
                "gain_s": cause.gain_s,
                "share": cause.gain_s / self.found.iteration_s,
            }
            for cause in self.causes
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as ``syncopate explain --json`` prints it."""
        if self.found is None:
            return {"abstains": [ARRIVALS_ALONE], "lateness_s": lateness(self.timeline)}
        said = explanation_json(self.found, self.files, self.recorded)
        return said | ({"journeys": round_trips_json(self.trips)} if self.trips else {})

    def report(self) -> RenderableType:
        """Return everything for a terminal, to be printed by rich."""
        if self.found is None:
            return lateness_report(self.timeline)
        text = explanation_report(
            self.timeline,
            self.found,
            self.cluster,
            self.best,
            self.files,
            recorded=self.recorded,
        )
        return Group(text, round_trips_report(self.trips)) if self.trips else text


def explain(
    *sources: Source,
    workload: Workload | str | os.PathLike[str] | None = None,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    last: int = LAST,
    table: Table = NO_TABLE,
    progress: Progress | None = None,
) -> Explained:
    """Say what a training loses time to: its iterations are played again without each cause.

    Args:
        sources: the directory of a run, a timeline, or one file of each rank.
        workload: what it trained, an artefact or its file; with the cluster, its plan is compared
            with the best one.
        cluster: what it ran on, an artefact or its file.
        last: how many iterations to play again, the last ones.
        table: headings and kinds of tables, such as ``("rank=gpu,start=t0:us", "push=SYNC")``.
        progress: called with what is read and the fraction done.

    Raises:
        InvalidValueError: workload without cluster, or one of another training; times that
            contradict each other; sources that do not fit together.
        ArtifactError: a file that holds no timeline, workload or cluster.

    Example:
        >>> found = syncopate.explain("runs/a")  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
        >>> found.to_pandas()  # doctest: +SKIP
    """
    files = _files(workload, cluster)
    work, machines = opened(Workload, workload), opened(Cluster, cluster)
    recorded = latest(read(*sources, last=last, table=table, progress=progress).of_ranks(), last)
    timeline, trips = recorded.timeline, tuple(recorded.trips)
    computed = timeline.columns.in_lanes(*COMPUTATION).any()
    arrivals_alone = not computed and lateness(timeline)
    found = None if arrivals_alone else explained(timeline, machines, trips)
    best = None
    if found is not None and work is not None and machines is not None:
        found, best = against_the_best(timeline, found, work, machines)
    return Explained(
        timeline=timeline,
        found=found,
        remarks=recorded.remarks,
        cluster=machines,
        best=best,
        files=files,
        recorded=shlex.quote(recorded.name),
        trips=trips,
    )


def _files(workload: object, cluster: object) -> tuple[str, str] | None:
    """Return what the files of workload and cluster are called in proposed commands.

    Raises:
        InvalidValueError: one of them without the other.
    """
    if workload is None and cluster is None:
        return None
    if workload is None or cluster is None:
        option, given = ("--workload", workload) if cluster is None else ("--cluster", cluster)
        rule = "given with the other of --workload and --cluster, or left out"
        raise InvalidValueError(option, str(given), rule)
    names = (workload, "workload.json"), (cluster, "cluster.json")
    first, second = (
        str(given) if isinstance(given, str | os.PathLike) else usual for given, usual in names
    )
    return first, second


def explained(
    timeline: Timeline, cluster: Cluster | None, trips: Sequence[RoundTrip]
) -> Explanation:
    """Explain a timeline by the ranks that were recorded, under their numbers in the job.

    Raises:
        InvalidValueError: as :func:`~syncopate.analysis.causes.explanation.explanation` does.
    """
    if TOOL not in timeline.metadata:  # of a run that was traced every rank has to be there
        return explanation(timeline, cluster, trips)
    seen, ranks = of_those_there(timeline)
    return explanation(seen, cluster, trips, ranks)
