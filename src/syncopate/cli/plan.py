"""``syncopate plan``: a workload and a cluster in, a plan out, and every policy side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from syncopate.cli.console import out, require_one_writer, say_written
from syncopate.cli.machines import load_cluster
from syncopate.cluster import NETWORKS
from syncopate.plan import Plan
from syncopate.workload import Workload


def plan(
    *,
    workload: Annotated[
        Path, typer.Option("--workload", "-w", help="Workload file, from `syncopate profile`.")
    ],
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", "-c", help="Cluster file, from `syncopate calibrate`."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help=f"Instead of a cluster file, a typical network: {', '.join(NETWORKS)}."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of hosts on --network.")] = None,
    policy: Annotated[
        str, typer.Option(help="Policy of the plan that is written; the table shows all.")
    ] = "optimal",
    algorithm: Annotated[
        str | None, typer.Option(help="Use this all-reduce algorithm alone; the best otherwise.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the plan; - prints it.")
    ] = Path("plan.json"),
    json: Annotated[
        bool, typer.Option("--json", help="Print all plans as a JSON array instead of tables.")
    ] = False,
) -> None:
    """Predict every policy and write the plan of one. Needs no ranks and no torch.

    For example:

      syncopate plan --workload workload.json --cluster cluster.json

      syncopate plan -w workload.json --network 10gbe --nodes 64 --policy mg-wfbp -o plan.json
    """
    from syncopate.planning.planner import compare
    from syncopate.planning.registry import require_policy

    require_policy(policy)
    require_one_writer(json, ("--output", output))
    work, where = Workload.load(workload), load_cluster("--cluster", cluster, network, nodes)
    plans = compare(work, where, algorithm=algorithm)
    chosen = next(plan for plan in plans if plan.policy == policy)
    chosen.save(output)
    _show(plans, chosen, output, json)


def _show(plans: Sequence[Plan], chosen: Plan, output: Path, json: bool) -> None:
    if json:
        objects = ",\n".join(plan.to_json().decode().rstrip() for plan in plans)
        typer.echo(f"[\n{objects}\n]")
        return
    from syncopate.reports.terminal import plan_report, plans_report

    console = out(beside=output)
    console.print(plans_report(plans, chosen=chosen.policy))
    console.print(plan_report(chosen))
    say_written(output)
