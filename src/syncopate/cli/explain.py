"""``syncopate explain``: why iterations take as long as they do, and what would mend it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import out, say_json
from syncopate.cli.common.machines import load_cluster
from syncopate.cli.common.options import grouped
from syncopate.cli.common.served import trips_of
from syncopate.cli.common.timelines import (
    LAST,
    Table,
    last_of,
    of_those_there,
    read_recorded,
    table_options,
)
from syncopate.errors import InvalidValueError

TOOL = "tool"
"""What metadata call the tool that wrote the files of ranks."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from syncopate.analysis.causes.explanation import Explanation
    from syncopate.analysis.trips import Trip
    from syncopate.artifacts.timeline import Timeline


@grouped(table=table_options)
def explain(
    *,
    table: Table,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="The directory of a run that was traced, a timeline, or one file of each rank.",
        ),
    ],
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", help="Its workload: compares its plan with the best."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", "-c", help="Its cluster, with --workload.")
    ] = None,
    last: Annotated[
        int, typer.Option(help="How many iterations to play again, the last ones.")
    ] = LAST,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Say why training scales no better: what costs how much, and what would mend it.

    Each cause is a counterfactual: the recorded iterations are played again without it. Where the
    evidence is thin, it says what to record instead. Needs no ranks.

    For example:

      syncopate explain runs/a

      syncopate explain runs/a --last 50 -w workload.json -c cluster.json

      syncopate explain traces/rank-*.json --json
    """
    import msgspec

    from syncopate.cli.common.best_plan import against_the_best
    from syncopate.reports.explanation import explanation_json, explanation_report
    from syncopate.reports.journeys import journeys_json, journeys_report

    work, machines = _known(workload, cluster)
    timeline, run = read_recorded(*files, last=last, table=table)
    timeline = last_of(timeline, last)
    if _said_of_arrivals(timeline, json):
        return
    trips = trips_of(run)
    found = _explained(timeline, machines, trips)
    plan, given, recorded = None, None, shlex.join(map(str, files))
    if work is not None and machines is not None:
        given = (str(workload), str(cluster))
        found, plan = against_the_best(timeline, found, work, machines)
    if json:
        said = explanation_json(found, given, recorded)
        said |= {"journeys": journeys_json(trips)} if trips else {}
        say_json(msgspec.json.format(msgspec.json.encode(said), indent=1))
        return
    out().print(explanation_report(timeline, found, machines, plan, given, recorded=recorded))
    if trips:
        out().print(journeys_report(trips))


def _explained(timeline: Timeline, cluster: Cluster | None, trips: Sequence[Trip]) -> Explanation:
    """Return what the ranks that are there say, whose ranks are those of the job."""
    from dataclasses import replace

    from syncopate.analysis.causes.explanation import SLOW_SERVER, explanation

    if TOOL not in timeline.metadata:  # of a run that was traced every rank has to be there
        return explanation(timeline, cluster, trips)
    seen, ranks = of_those_there(timeline)
    found = explanation(seen, cluster, trips)
    causes = (
        cause
        if cause.kind == SLOW_SERVER
        else replace(cause, ranks=tuple(ranks[rank] for rank in cause.ranks))
        for cause in found.causes
    )
    return replace(found, causes=tuple(causes))


def _said_of_arrivals(timeline: Timeline, json: bool) -> bool:
    """Print who is late, where nothing but arrivals was recorded; return whether that is so."""
    import msgspec

    from syncopate.analysis.arrivals import lateness
    from syncopate.analysis.phases import COMPUTATION
    from syncopate.reports.phases import ARRIVALS_ALONE, lateness_report

    if timeline.columns.in_lanes(*COMPUTATION).any():
        return False
    late_s = lateness(timeline)
    if not late_s:
        return False
    if json:
        say_json(msgspec.json.encode({"abstains": [ARRIVALS_ALONE], "lateness_s": late_s}))
    else:
        out().print(lateness_report(timeline))
    return True


def _known(
    workload: Path | None, cluster: Path | None
) -> tuple[Workload, Cluster] | tuple[None, None]:
    """Return workload and cluster; read before a run is, which may take long.

    Raises:
        InvalidValueError: one of them without the other.
        ArtifactError: a file is something else, or damaged.
    """
    if workload is None and cluster is None:
        return None, None
    if workload is None or cluster is None:
        option, path = ("--workload", workload) if workload else ("--cluster", cluster)
        rule = "given with the other of --workload and --cluster, or left out"
        raise InvalidValueError(option, str(path), rule)
    return Workload.load(workload), load_cluster(cluster)
