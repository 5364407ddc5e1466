"""The page of a run: what it needs beside a timeline, worked out and put together."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np

from syncopate.analysis.causes.explanation import Explanation
from syncopate.analysis.collectives import is_served
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.training import training_costs
from syncopate.errors import InvalidValueError, UnknownNameError, encodable
from syncopate.output import Progress, write_output
from syncopate.reports.pages.evidence import Evidence, messages
from syncopate.reports.pages.page import require_html
from syncopate.reports.pages.run import run_page
from syncopate.runs.best_plan import against_the_best, at_pace
from syncopate.runs.defaults import LAST
from syncopate.runs.explain import explained
from syncopate.runs.reading import Recorded, Source, latest, opened, read
from syncopate.simulation import simulate
from syncopate.simulation.timeline import stood_in
from syncopate.units import format_bytes

_FRAME_PIXELS = 700
"""How high a page is in a notebook."""

_SIZES = 25
"""Sizes at which the expected bandwidth is drawn, beside those that were sent."""


class Page(str):
    """A page of HTML, which a notebook shows and :meth:`save` writes."""

    def __repr__(self) -> str:
        return f"<Page of {format_bytes(len(self))}; save(path) writes it>"

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {_FRAME_PIXELS}px; border: 0"
        return f'<iframe srcdoc="{escape(self)}" style="{style}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it, and return the path.

        Raises:
            ArtifactError: the path cannot be written.
        """
        return write_output(path, encodable(self).encode())


def report(
    *sources: Source,
    workload: Workload | str | os.PathLike[str] | None = None,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    against: Sequence[Source] = (),
    files: tuple[str, str] | None = None,
    last: int = LAST,
    progress: Progress | None = None,
) -> Page:
    """Return one page that says why a training scales no better, with a picture and a sentence.

    Args:
        sources: the directory of a run, a timeline, or one file of each rank.
        workload: what it trained, an artefact or its file; with the cluster, what the best plan
            would take is said.
        cluster: what it ran on, likewise: what messages were expected to take.
        plan: by which it ran, likewise: predicted against recorded.
        against: runs before, to say what changed since.
        files: of workload and cluster, for the commands that are proposed.
        last: how many iterations to look at, the last ones.
        progress: called with what is done and the fraction done.

    Raises:
        InvalidValueError: no spans; a cluster or plan of other ranks; the workload of another
            training; sources that do not fit together.
        ArtifactError: a file that holds no timeline, workload, cluster or plan.
        PlanError: the plan is not for the workload.
        SyncopateError: the packages that make pages are not installed.

    Example:
        >>> syncopate.report("runs/a").save("report.html")  # doctest: +SKIP
    """
    require_html()
    found = latest(read(*sources, last=last, progress=progress).of_ranks(), last)
    before = [latest(read(one, last=last).of_ranks(), last) for one in against]
    told = [f"{one.name}, before: {text}" for one in before for text in one.remarks]
    known = opened(Workload, workload), opened(Cluster, cluster), opened(Plan, plan)
    own = _evidence(found, *known)
    evidence = replace(
        own,
        remarks=(*found.remarks, *told, *own.remarks),
        against=tuple(one.timeline for one in before),
        files=files,
    )
    return Page(run_page(evidence))


def _evidence(
    recorded: Recorded, workload: Workload | None, cluster: Cluster | None, plan: Plan | None
) -> Evidence:
    """Return explanation, best plan and prices of a run; its remarks are on the plan alone."""
    timeline, trips = recorded.timeline, recorded.trips
    _require_fit(timeline, cluster, plan)
    found, why, best, expected = None, "", None, None
    told: tuple[str, ...] = ()
    try:
        found = explained(timeline, cluster, trips)
    except InvalidValueError as error:
        why = str(error)
    if found is not None and workload is not None and cluster is not None:
        if plan is not None:
            expected, told = _played(timeline, found, workload, cluster, plan)
        found, best = against_the_best(timeline, found, workload, cluster)
    return Evidence(
        timeline=timeline,
        explanation=found,
        unexplained=why,
        remarks=told,
        cluster=cluster,
        plan=plan,
        best=best,
        expected=expected,
        prices={} if cluster is None else _prices(timeline, cluster),
        trips=tuple(trips),
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


def _prices(timeline: Timeline, cluster: Cluster) -> dict[tuple[str, str], dict[int, float]]:
    """Return what messages take on a cluster, at the sizes that were sent and between them."""
    if is_served(timeline):
        return {}  # what servers take depends on all workers at once
    sizes: dict[tuple[str, str], set[int]] = defaultdict(set)
    in_iteration: dict[tuple[str, int], int] = defaultdict(int)
    for one in messages(timeline):
        if one.nbytes > 0:
            sizes[one.collective, one.algorithm].add(one.nbytes)
            in_iteration[one.collective, one.iteration] += one.nbytes
    found: dict[tuple[str, str], dict[int, float]] = {}
    for (collective, algorithm), sent in sizes.items():
        most = max(nbytes for (name, _), nbytes in in_iteration.items() if name == collective)
        try:
            cost = training_costs(cluster, most, (algorithm,), collective).of(algorithm)
        except UnknownNameError:
            continue  # what other tools recorded names no algorithm, or one of their own
        between = np.geomspace(max(min(sent) / 1.4, 4), 1.4 * max(sent), _SIZES)
        wanted = sorted(sent | {round(nbytes) for nbytes in between})
        prices = np.asarray(cost(wanted)).tolist()
        found[collective, algorithm] = dict(zip(wanted, prices, strict=True))
    return found
