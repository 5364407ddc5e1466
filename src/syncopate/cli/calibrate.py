"""``syncopate calibrate``: measures links and collectives between ranks, writes a cluster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.cli.common import ranks
from syncopate.cli.common.console import (
    is_leader,
    progress_bar,
    require_outputs,
    save_and_show,
    warn,
)
from syncopate.cli.common.options import grouped, items
from syncopate.errors import InvalidValueError
from syncopate.units import parse_bytes


@grouped(where=ranks.where_option)
def calibrate(
    *,
    where: ranks.Where,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where rank 0 writes the cluster; - prints it.")
    ] = Path("cluster.json"),
    budget: Annotated[float, typer.Option(help="Seconds to spend on measuring.")] = 10.0,
    sizes: Annotated[
        str | None,
        typer.Option(help="Message sizes, such as 4KiB,256KiB,16MiB; chosen by itself otherwise."),
    ] = None,
    collectives: Annotated[
        str, typer.Option(help="Whose algorithms to measure, such as all_reduce,broadcast; or all.")
    ] = "all_reduce",
    algorithms: Annotated[
        str | None,
        typer.Option(help="Their names, such as native,ring; those that suit the ranks otherwise."),
    ] = None,
    racks: Annotated[
        Path | None, typer.Option(help="File of `host rack` lines; racks are found out otherwise.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the cluster as JSON instead of tables.")
    ] = False,
) -> None:
    """Measure links and collectives between the ranks and write the cluster.

    For example:

      syncopate calibrate --local 4

      torchrun --nproc-per-node 8 --no-python syncopate calibrate --device cuda --budget 30

      syncopate calibrate --local 4 --collectives all --budget 40

      mpirun -n 16 --hostfile hosts.txt syncopate calibrate --racks racks.txt
    """
    if not 0 < budget < math.inf:
        raise InvalidValueError("--budget", budget, "a finite number of seconds > 0")
    require_outputs(json, ("--output", output))
    size_list = [parse_bytes(size) for size in items(sizes)] or None
    names = _collectives(collectives)
    ranks.start_if_asked(where.local)
    ranks.require_ranks("calibrate")
    bar = progress_bar("calibrating")
    with ranks.joined(device=where.device) as communicator, bar as progress:
        cluster = syncopate.calibrate(
            communicator,
            collectives=names,
            sizes=size_list,
            algorithms=items(algorithms) or None,
            racks=racks,
            budget_s=budget,
            progress=progress,
        )
    if is_leader():
        _show(cluster, output, json)


def _collectives(text: str) -> tuple[str, ...]:
    """Return the collectives that ``--collectives`` names; refused here, before any rank starts."""
    from syncopate.schedules import registry
    from syncopate.schedules.conditions import conditions

    if text == "all":
        return registry.collectives()
    names = tuple(items(text))
    if not names:
        rule = f"all, or some of {', '.join(registry.collectives())}"
        raise InvalidValueError("--collectives", text, rule)
    for name in names:
        conditions(name)
    return names


def _show(cluster: Cluster, output: Path, json: bool) -> None:
    from syncopate.reports.terminal import cluster_report

    save_and_show(cluster, output, json, lambda: cluster_report(cluster))
    for warning in cluster.warnings if json else ():  # the report has them
        warn(warning)
