"""``syncopate simulate``: plays a plan on a cluster, and writes the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import out, say_written
from syncopate.cli.common.machines import machines_option, say_unlike
from syncopate.cli.common.options import grouped


@grouped(cluster=machines_option)
def simulate(
    *,
    cluster: Cluster,
    workload: Annotated[
        Path, typer.Option("--workload", "-w", help="Workload file, from `syncopate profile`.")
    ],
    plan: Annotated[Path, typer.Option("--plan", "-p", help="Plan file, from `syncopate plan`.")],
    iterations: Annotated[
        int, typer.Option(help="How many to play; the first has no weights to wait for.")
    ] = 3,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the timeline; - prints it.")
    ] = Path("timeline.json"),
) -> None:
    """Play the first iterations of a training by a plan on a cluster. Needs no ranks and no torch.

    The timeline has the form of a measured one: spans of every rank.

    For example:

      syncopate simulate -w workload.json -p plan.json -c cluster.json

      syncopate simulate -w workload.json -p plan.json --network 10gbe --nodes 64 --iterations 5
    """
    from syncopate.reports.phases import phases_report
    from syncopate.simulation import simulate as play

    work = Workload.load(workload)
    say_unlike(work, cluster)
    played = play(work, Plan.load(plan), cluster, iterations=iterations)
    played.save(output)
    out(beside=output).print(phases_report(played))
    say_written(output)
