"""``syncopate choose``: which algorithm carries which sizes of every collective on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.cli.common.console import out, progress_bar, say_json
from syncopate.cli.common.machines import machines
from syncopate.cli.common.options import grouped, items


@grouped(cluster=machines)
def choose(
    *,
    cluster: Cluster,
    collective: Annotated[
        str | None, typer.Option(help="Such as all_reduce,broadcast; all of them otherwise.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON, with every runner-up.")
    ] = False,
) -> None:
    """Say which algorithm carries which sizes on a cluster, and how far the next best is behind.

    It is what `auto` goes by. Needs no ranks and no torch.

    For example:

      syncopate choose cluster.json

      syncopate choose cluster.json --collective all_reduce --json

      syncopate choose --network 10gbe --nodes 64
    """
    from syncopate.costs.decide.tabulate import decision_table

    with progress_bar("pricing") as progress:
        table = decision_table(cluster, items(collective), progress=progress)
    if json:
        say_json(table.to_json())
        return
    from syncopate.reports.decisions import decision_report

    out().print(decision_report(table))
