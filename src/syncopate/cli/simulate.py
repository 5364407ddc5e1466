"""``syncopate simulate``: plays a plan on a cluster, and writes the timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import out, say_written
from syncopate.cli.common.machines import machines_option, say_unlike
from syncopate.cli.common.options import grouped, items
from syncopate.errors import InvalidValueError
from syncopate.simulation.failures import Failures, play_failures
from syncopate.simulation.network import Aggregation, aggregated_costs, busy
from syncopate.simulation.ranks import Variation
from syncopate.units import (
    format_count,
    format_duration,
    format_seconds,
    parse_rate,
    parse_seconds,
)

Key = TypeVar("Key", int, str)


class _Network(NamedTuple):
    """What else the network does.

    Attributes:
        shares: level -> what other traffic takes of it.
        aggregation: which switches make sums; None: none.
    """

    shares: Mapping[str, float]
    aggregation: Aggregation | None = None


def _varies(
    *,
    slow_rank: Annotated[
        list[str] | None,
        typer.Option(
            help="RANK=FACTOR: this rank computes for so many times as long; may be repeated.",
        ),
    ] = None,
    slow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="HOST=FACTOR: the ranks of this host do, by its name or its number; may be "
            "repeated.",
        ),
    ] = None,
    jitter: Annotated[
        float,
        typer.Option(
            help="Let computation differ at random from rank to rank and iteration to iteration: "
            "standard deviation as a share, such as 0.05."
        ),
    ] = 0.0,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Draw how ranks and their iterations differ from this timeline or directory of a "
            "run."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn: equal seeds, equal times.")] = 0,
) -> Variation:
    """Return how the ranks differ that the options describe."""
    variation = Variation(
        slow_ranks=_factors("--slow-rank", slow_rank, int),
        slow_hosts=_factors("--slow-host", slow_host, str),
        jitter=jitter,
        seed=seed,
    )
    if like is None:
        return variation
    from syncopate.analysis.variation import spread
    from syncopate.cli.common.timelines import read_timeline

    found = spread(read_timeline(like))
    return replace(variation, rank_factors=found.ranks, step_factors=found.steps)


def _network(
    *,
    background: Annotated[
        list[str] | None,
        typer.Option(
            help="LEVEL=SHARE: other traffic takes this share of the links of a level, such as "
            "host=0.3; may be repeated."
        ),
    ] = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated levels whose switches make the sums of gradients, such as "
            "host,rack; switches of other levels pass all on. For plans of allreduce and served."
        ),
    ] = None,
    switch_rate: Annotated[
        str | None,
        typer.Option(
            help="How fast such a switch makes a sum, such as 100gbit; else as fast as its links."
        ),
    ] = None,
) -> _Network:
    """Return what else the links and switches do that the options describe."""
    shares = _factors("--background", background, str)
    if aggregate is None:
        if switch_rate is not None:
            rule = "left out without --aggregate: other switches make no sums"
            raise InvalidValueError("--switch-rate", switch_rate, rule)
        return _Network(shares)
    rate = math.inf if switch_rate is None else parse_rate(switch_rate)
    return _Network(shares, Aggregation(tuple(items(aggregate)), rate))


def _failures(
    *,
    mtbf: Annotated[
        str | None,
        typer.Option(
            help="Mean time between failures of one host, such as 5y: the goodput is predicted, by "
            "formula and by simulation."
        ),
    ] = None,
    checkpoint_cost: Annotated[
        str, typer.Option(help="For how long a checkpoint holds training up; with --mtbf.")
    ] = "30s",
    checkpoint_every: Annotated[
        str | None,
        typer.Option(help="Training between two checkpoints, such as 30min; the best otherwise."),
    ] = None,
    restart: Annotated[
        str, typer.Option(help="From a failure until training goes on; with --mtbf.")
    ] = "5min",
) -> Callable[[Cluster], Failures | None]:
    """Return what makes of a cluster how it fails, as the options describe it."""
    if mtbf is None and checkpoint_every is not None:
        rule = "left out without --mtbf: nothing fails"
        raise InvalidValueError("--checkpoint-every", checkpoint_every, rule)

    def made(cluster: Cluster) -> Failures | None:
        if mtbf is None:
            return None
        return Failures(
            host_mtbf_s=parse_seconds(mtbf),
            hosts=cluster.host_count,
            checkpoint_s=parse_seconds(checkpoint_cost),
            restart_s=parse_seconds(restart),
            interval_s=None if checkpoint_every is None else parse_seconds(checkpoint_every),
        )

    return made


def _goodput_report(failures: Failures, iteration_s: float, seed: int) -> str:
    """Return what failures leave of a training, in lines."""
    played, goodput = play_failures(failures, seed=seed), failures.goodput()
    chosen = "the best" if failures.interval_s is None else "as given"
    best_s, young_s = failures.daly_s, failures.young_s
    return "\n".join(
        (
            f"failures: one of {format_count(failures.hosts, 'host')} in "
            f"{format_duration(failures.mtbf_s)}; a checkpoint of "
            f"{format_duration(failures.checkpoint_s)} after {format_duration(failures.trained_s)} "
            f"of training ({chosen}), a restart of {format_duration(failures.restart_s)}",
            f"goodput {goodput:.1%}: an iteration takes {format_seconds(iteration_s / goodput)} in "
            f"the mean; simulated {played.goodput:.1%}, give or take {played.error:.1%} "
            f"({format_count(played.failures, 'failure')}, seed {seed})",
            f"the best interval is {format_duration(best_s)} by Daly (goodput "
            f"{failures.goodput(best_s):.1%}), {format_duration(young_s)} by Young "
            f"({failures.goodput(young_s):.1%})",
        )
    )


def _factors(option: str, given: list[str] | None, of: Callable[[str], Key]) -> dict[Key, float]:
    """Return what an option says that is repeated: name -> number."""
    found: dict[Key, float] = {}
    for text in given or ():
        name, equals, factor = text.rpartition("=")
        try:
            key, value = of(name.strip()), float(factor)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise InvalidValueError(option, text, "a name, '=' and a number, such as 3=1.5")
        if key in found:
            raise InvalidValueError(option, text, f"given once for {key}")
        found[key] = value
    return found


@grouped(cluster=machines_option, network=_network, variation=_varies, fails=_failures)
def simulate(
    *,
    cluster: Cluster,
    network: _Network,
    variation: Variation,
    fails: Callable[[Cluster], Failures | None],
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

    The timeline has the form of a measured one: spans of every rank. Ranks that do the
    same have theirs once. Where ranks differ, a collective begins when the slowest has
    come to it, and the others wait: `syncopate analyze` and `explain` show for whom.

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
    from syncopate.reports.phases import phases_report
    from syncopate.simulation import simulate as play

    work = Workload.load(workload)
    say_unlike(work, cluster)
    given, failures = Plan.load(plan), fails(cluster)
    if network.shares:
        cluster = busy(cluster, network.shares)
    costs = None
    if network.aggregation is not None:
        costs = aggregated_costs(cluster, given, network.aggregation)
    played = play(work, given, cluster, costs=costs, iterations=iterations, variation=variation)
    played.save(output)
    told = out(beside=output)
    told.print(phases_report(played))
    if failures is not None:
        last = played.kept.iteration == iterations - 1
        begins_s, ends_s = played.kept.start_s[last].min(), played.kept.end_s[last].max()
        lasts_s = float(ends_s - begins_s)
        told.print(_goodput_report(failures, lasts_s, variation.seed), soft_wrap=True)
    say_written(output)
