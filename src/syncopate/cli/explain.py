"""``syncopate explain``: why iterations take as long as they do, and what would mend it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import show
from syncopate.cli.common.machines import load_cluster
from syncopate.cli.common.options import grouped
from syncopate.cli.common.timelines import read_recorded, table_options
from syncopate.errors import InvalidValueError
from syncopate.runs.defaults import LAST, Table


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
    import syncopate

    work, machines = _known(workload, cluster)
    read = read_recorded(*files, last=last, table=table, of_timelines=True)
    found = syncopate.explain(read, workload=work, cluster=machines, last=last)
    found = replace(found, recorded=shlex.join(map(str, files)))
    if workload is not None:
        found = replace(found, files=(str(workload), str(cluster)))
    show(found, json)


def _known(
    workload: Path | None, cluster: Path | None
) -> tuple[Workload, Cluster] | tuple[None, None]:
    """Return workload and cluster; read before a run is, which may take long."""
    if workload is None and cluster is None:
        return None, None
    if workload is None or cluster is None:
        option, path = ("--workload", workload) if workload else ("--cluster", cluster)
        rule = "given with the other of --workload and --cluster, or left out"
        raise InvalidValueError(option, str(path), rule)
    return Workload.load(workload), load_cluster(cluster)
