"""The page of a run: what it needs beside a timeline, worked out and put together."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from syncopate.analysis.causes.explanation import Explanation, explanation
from syncopate.analysis.collectives import EXCHANGE
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import SERVED, Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.training import training_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import Progress, write_output
from syncopate.reports.pages.evidence import Evidence, Price, messages
from syncopate.reports.pages.page import require_html
from syncopate.reports.pages.run import run_page as page_of
from syncopate.runs.best_plan import against_the_best, at_pace
from syncopate.runs.defaults import LAST
from syncopate.runs.reading import Source, latest, read
from syncopate.simulation import simulate
from syncopate.simulation.timeline import stood_in

_FRAME_PIXELS = 700
"""How high a page is in a notebook."""

_SIZES = 25
"""Sizes at which the expected bandwidth is drawn, beside those that were sent."""


class Page(str):
    """A page of HTML, which a notebook shows and :meth:`save` writes."""

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {_FRAME_PIXELS}px; border: 0"
        return f'<iframe srcdoc="{escape(self)}" style="{style}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it, and return the path.

        Raises:
            ArtifactError: the path cannot be written.
        """
        return write_output(path, self.encode())


def report(
    *sources: Source,
    workload: Workload | None = None,
    cluster: Cluster | None = None,
    plan: Plan | None = None,
    against: Sequence[Source] = (),
    files: tuple[str, str] | None = None,
    last: int = LAST,
    progress: Progress | None = None,
) -> Page:
    """Return one page that says why a training scales no better, with a picture and a sentence.

    Args:
        sources: the directory of a run, a timeline, or one file of each rank.
        workload: what it trained; with the cluster, what the best plan would take is said.
        cluster: what it ran on: what messages were expected to take.
        plan: by which it ran: predicted against recorded.
        against: runs before, to say what changed since.
        files: of workload and cluster, for the commands that are proposed.
        last: how many iterations to look at, the last ones.
        progress: called with what is done and the fraction done.

    Raises:
        InvalidValueError: no spans; a cluster or plan of other ranks; the workload of another
            training; sources that do not fit together.
        ArtifactError: a file that holds no timeline.
        PlanError: the plan is not for the workload.
        SyncopateError: the packages that make pages are not installed.

    Example:
        >>> syncopate.report("runs/a").save("report.html")  # doctest: +SKIP
    """
    require_html()
    found = latest(read(*sources, last=last, progress=progress).of_ranks(), last)
    before = [latest(read(one, last=last).of_ranks(), last) for one in against]
    remarks = list(found.remarks)
    for theirs in before:
        remarks += [f"{theirs.name}, before: {text}" for text in theirs.remarks]
    return Page(
        run_page(
            found.timeline,
            remarks=tuple(remarks),
            workload=workload,
            cluster=cluster,
            plan=plan,
            against=[theirs.timeline for theirs in before],
            files=files,
            trips=found.trips,
        )
    )


def run_page(
    timeline: Timeline,
    *,
    remarks: tuple[str, ...] = (),
    workload: Workload | None = None,
    cluster: Cluster | None = None,
    plan: Plan | None = None,
    against: Sequence[Timeline] = (),
    files: tuple[str, str] | None = None,
    trips: Sequence[RoundTrip] = (),
) -> str:
    """Return one HTML file that says why a training scales as it does.

    Args:
        timeline: measured or simulated.
        remarks: what is missing, damaged or uncertain, a sentence each.
        workload: what it trained; with the cluster, what the best plan would take is said.
        cluster: what it ran on.
        plan: by which it ran.
        against: the runs before, to say what changed since.
        files: of workload and cluster, for the commands that are proposed.
        trips: ways of slices to parameter servers and back.

    Raises:
        InvalidValueError: the timeline has no spans; a cluster or plan of other ranks; the workload
            of another training.
        PlanError: the plan is not for the workload.
        SyncopateError: the packages that make pages are not installed.
    """
    _require_fit(timeline, cluster, plan)
    found, why, best, expected = None, "", None, None
    told: tuple[str, ...] = ()
    try:
        found = explanation(timeline, cluster, trips)
    except InvalidValueError as error:
        why = str(error)
    if found is not None and workload is not None and cluster is not None:
        if plan is not None:
            expected, told = _played(timeline, found, workload, cluster, plan)
        found, best = against_the_best(timeline, found, workload, cluster)
    return page_of(
        Evidence(
            timeline=timeline,
            explanation=found,
            unexplained=why,
            remarks=(*remarks, *told),
            cluster=cluster,
            plan=plan,
            best=best,
            expected=expected,
            prices={} if cluster is None else _prices(timeline, cluster),
            against=tuple(against),
            files=files,
            trips=tuple(trips),
        )
    )


def _require_fit(timeline: Timeline, cluster: Cluster | None, plan: Plan | None) -> None:
    if not len(timeline.spans):
        raise InvalidValueError("timeline", timeline.name, "one with at least one span")
    for option, given in (("--cluster", cluster), ("--plan", plan)):
        if given is not None and given.world_size != timeline.world_size:
            rule = f"of as many ranks as the training, {timeline.world_size}"
            raise InvalidValueError(option, f"{given.world_size} ranks", rule)


def _played(
    timeline: Timeline, found: Explanation, workload: Workload, cluster: Cluster, plan: Plan
) -> tuple[Timeline | None, tuple[str, ...]]:
    """Return the plan, played at the pace of the training for a period and the one before.

    Beside it what else has to be said; of a plan with an algorithm that there is not, that alone.
    """
    trained = at_pace(timeline, found, workload)
    try:
        told = stood_in(plan, cluster)
    except UnknownNameError as error:
        return None, (f"the plan is not compared with what came: {error}",)
    return simulate(trained, plan, cluster, iterations=1 + max(2, 2 * plan.pull_period)), told


def _prices(timeline: Timeline, cluster: Cluster) -> dict[tuple[str, str], tuple[Price, ...]]:
    """Return what messages of the sizes that were sent, and between them, take on a cluster."""
    if timeline.metadata.get(EXCHANGE) == SERVED:
        return {}  # what servers take depends on all workers at once
    sizes: dict[tuple[str, str], set[int]] = defaultdict(set)
    in_iteration: dict[tuple[str, int], int] = defaultdict(int)
    for one in messages(timeline):
        if one.nbytes > 0:
            sizes[one.collective, one.algorithm].add(one.nbytes)
            in_iteration[one.collective, one.iteration] += one.nbytes
    found: dict[tuple[str, str], tuple[Price, ...]] = {}
    for (collective, algorithm), sent in sizes.items():
        most = max(nbytes for (name, _), nbytes in in_iteration.items() if name == collective)
        try:
            cost = training_costs(cluster, most, (algorithm,), collective).of(algorithm)
        except UnknownNameError:
            continue  # what other tools recorded names no algorithm, or one of their own
        between = np.geomspace(max(min(sent) / 1.4, 4), 1.4 * max(sent), _SIZES)
        wanted = sorted(sent | {round(nbytes) for nbytes in between})
        prices = np.asarray(cost(wanted)).tolist()
        found[collective, algorithm] = tuple(map(Price, wanted, prices))
    return found
