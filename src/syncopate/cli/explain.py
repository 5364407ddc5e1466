"""``syncopate explain``: why iterations take as long as they do, and what would mend it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import out
from syncopate.cli.common.served import trips_of
from syncopate.cli.common.timelines import read_recorded
from syncopate.cluster import Cluster
from syncopate.errors import InvalidValueError
from syncopate.workload import Workload

if TYPE_CHECKING:
    from syncopate.analysis.causes import Explanation
    from syncopate.plan import Plan
    from syncopate.timeline import Timeline

_PACE = 3.0
"""A workload that computes this many times as long as the training, or as short, is another's."""


def explain(
    *,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="A timeline, or one file of each rank.")
    ],
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", help="Its workload: compares its plan with the best."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", "-c", help="Its cluster, with --workload.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Say why training scales no better: what costs how much, and what would mend it.

    Each cause is a counterfactual: the recorded iterations are played again without it. Where the
    evidence is thin, it says what to record instead. Needs no ranks.

    For example:

      syncopate explain timeline.json

      syncopate explain timeline.json -w workload.json -c cluster.json

      syncopate explain traces/rank-*.json --json
    """
    import msgspec

    from syncopate.analysis.causes import explanation
    from syncopate.reports.explanation import explanation_json, explanation_report
    from syncopate.reports.journeys import journeys_json, journeys_report

    if (workload is None) != (cluster is None):
        option, path = ("--workload", workload) if workload else ("--cluster", cluster)
        rule = "given with the other of --workload and --cluster, or left out"
        raise InvalidValueError(option, str(path), rule)
    timeline, run = read_recorded(*files)
    trips = trips_of(run)
    found = explanation(timeline)
    machines, plan, given = None, None, None
    if workload is not None and cluster is not None:
        machines, given = Cluster.load(cluster), (str(workload), str(cluster))
        found, plan = _against_the_best(timeline, found, Workload.load(workload), machines)
    if json:
        said = explanation_json(found, given)
        said |= {"journeys": journeys_json(trips)} if trips else {}
        values = msgspec.json.encode(said)
        typer.echo(msgspec.json.format(values, indent=1).decode())
        return
    out().print(explanation_report(timeline, found, machines, plan, given))
    if trips:
        out().print(journeys_report(trips))


def _against_the_best(
    timeline: Timeline, found: Explanation, workload: Workload, cluster: Cluster
) -> tuple[Explanation, Plan]:
    """Return an explanation that says what the best plan would save, and that plan.

    It is made for the workload at the pace of the training, and compared with the iterations
    played again without stragglers, pauses and congestion, which no plan has.
    """
    from dataclasses import replace

    from syncopate.analysis.causes import PLAN, TRANSFERS, WORTH, Cause
    from syncopate.analysis.stragglers import SERVER
    from syncopate.planning.planner import make_plan

    if cluster.world_size != timeline.world_size:
        rule = f"of as many ranks as the training, {timeline.world_size}"
        raise InvalidValueError("--cluster", f"{cluster.name}: {cluster.world_size} ranks", rule)
    trained = timeline.metadata.get("model", workload.model)
    pace = found.compute_s / workload.compute_s if workload.compute_s > 0 else 0.0
    if trained != workload.model or not 1 / _PACE <= pace <= _PACE:
        said = f"{workload.model}, which computes for {workload.compute_s:.3g} s"
        rule = f"that of the training: {trained}, which computed for {found.compute_s:.3g} s"
        raise InvalidValueError("--workload", said, rule)
    plan = make_plan(workload.scaled(pace), cluster, "auto")
    assert plan.prediction is not None
    found = replace(found, bound_s=max(found.bound_s, plan.prediction.bound_s))
    gain_s = found.even_s - plan.prediction.iteration_s
    least_s = WORTH * found.iteration_s
    if found.abstains or gain_s < least_s:
        return found, plan
    rest = [
        replace(one, gain_s=one.gain_s - gain_s) if one.kind in (TRANSFERS, SERVER) else one
        for one in found.causes
    ]
    causes = sorted((*rest, Cause(PLAN, (), gain_s)), key=lambda cause: -cause.gain_s)
    return replace(found, causes=tuple(one for one in causes if one.gain_s > least_s)), plan
