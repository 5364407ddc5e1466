"""``syncopate simulate``: plays a plan on a cluster, and writes the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.common import conditions
from syncopate.cli.common.console import note, out, require_outputs, say_written
from syncopate.cli.common.machines import GivenCluster, machines_option
from syncopate.cli.common.options import grouped
from syncopate.cli.common.workloads import workload_option
from syncopate.units import format_seconds

if TYPE_CHECKING:
    from syncopate.costs.model.functions import Costs
    from syncopate.simulation import Variation


@grouped(
    machines=machines_option,
    work=workload_option,
    network=conditions.network,
    varied=conditions.varied,
    fails=conditions.fails,
)
def simulate(
    *,
    machines: GivenCluster,
    network: conditions.Network,
    varied: dict[str, Any],
    fails: dict[str, Any],
    work: Workload,
    plan: Annotated[Path, typer.Option("--plan", "-p", help="Plan file, from `syncopate plan`.")],
    iterations: Annotated[
        int, typer.Option(help="How many to play; the first has no weights to wait for.")
    ] = 3,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the timeline; - prints it.")
    ] = Path("timeline.json"),
) -> None:
    """Play the first iterations of a training by a plan on a cluster. Needs no ranks and no torch.

    The timeline has the form of a measured one: spans of every rank. Ranks that do the same have
    theirs once. Where ranks differ, a collective begins when the slowest has come to it, and the
    others wait: `syncopate analyze` and `explain` show for whom.

    For example:

      syncopate simulate -w workload.json -p plan.json -c cluster.json

      syncopate simulate -w workload.json -p plan.json --network 10gbe --nodes 64 --iterations 5

      syncopate simulate -w workload.json -p plan.json -c cluster.json --slow-rank 3=1.5

      syncopate simulate -w workload.json -p plan.json -c cluster.json --jitter 0.05 --seed 1

      syncopate simulate -w workload.json -p plan.json -c cluster.json --like runs/a

      syncopate simulate -w workload.json -p plan.json -c cluster.json --background host=0.3

      syncopate simulate -w workload.json -p plan.json -c cluster.json --aggregate host

      syncopate simulate -w workload.json -p plan.json --network 100gbe --nodes 2048 --mtbf 5y
    """
    from syncopate.analysis.phases import last_iteration_s
    from syncopate.reports.phases import phases_report
    from syncopate.simulation import Failures
    from syncopate.simulation import simulate as play

    require_outputs(False, ("--output", output))
    given = Plan.load(plan)
    cluster = machines.training(work)
    failures = Failures(hosts=cluster.host_count, **fails) if fails else None
    variation = conditions.variation_of(**varied)
    there, costs = network.of(cluster, given)
    _say_stood_in(given, there, costs)
    played = play(work, given, there, costs=costs, iterations=iterations, variation=variation)
    played.save(output)
    told = out(beside=output)
    told.print(phases_report(played))
    told.print(_expected(work, given, network, cluster, variation), soft_wrap=True, highlight=False)
    if failures is not None:
        report = conditions.goodput_report(failures, last_iteration_s(played), variation.seed)
        told.print(report, soft_wrap=True, highlight=False)
    say_written(output)


def _say_stood_in(plan: Plan, cluster: Cluster, costs: Costs | None) -> None:
    from syncopate.simulation.timeline import stood_in

    for text in stood_in(plan, cluster) if costs is None else ():
        note(text)


def _expected(
    workload: Workload,
    plan: Plan,
    network: conditions.Network,
    cluster: Cluster,
    variation: Variation,
) -> str:
    """Return what is predicted of ranks that are alike, with its interval."""
    from syncopate.planning.margins import predict_surely
    from syncopate.reports.terminal import interval_text
    from syncopate.simulation import Variation

    found = predict_surely(workload, plan, cluster, lambda one: network.of(one, plan))
    unlike = "" if variation == Variation() else ", if ranks were alike"
    return f"predicted iteration {format_seconds(found.iteration_s)}{interval_text(found)}{unlike}"
