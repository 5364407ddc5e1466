"""The options of what a simulated training meets: ranks that differ, a busy network, failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from syncopate.cli.common.options import items
from syncopate.errors import InvalidValueError
from syncopate.units import (
    format_count,
    format_duration,
    format_seconds,
    parse_rate,
    parse_seconds,
)

if TYPE_CHECKING:
    from syncopate.artifacts.cluster import Cluster
    from syncopate.artifacts.plan import Plan
    from syncopate.costs.model.functions import Costs
    from syncopate.simulation import Failures, Variation

Key = TypeVar("Key", int, str)

_CHECKPOINT, _RESTART = "30s", "5min"
"""What a checkpoint and a restart take unless it is said."""


def variation_of(*, like: Path | None, **told: Any) -> Variation:
    """Return how ranks differ, for a simulation.

    Args:
        like: the timeline, or directory of a run, that factors are drawn from; None: none.
        told: what else :class:`~syncopate.simulation.Variation` is told.

    Raises:
        InvalidValueError: a value that is none.
        ArtifactError: a file that holds no timeline.
    """
    from syncopate.analysis.ranks.variation import Spread, spread
    from syncopate.cli.common.timelines import read_recorded
    from syncopate.simulation import Variation

    found = Spread((), ()) if like is None else spread(read_recorded(like).of_ranks().timeline)
    return Variation(rank_factors=found.ranks, step_factors=found.steps, **told)


def varied(
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
) -> dict[str, Any]:
    """Return the arguments of :func:`variation_of` that the options describe."""
    return {
        "slow_ranks": factors("--slow-rank", slow_rank, int),
        "slow_hosts": factors("--slow-host", slow_host, str),
        "jitter": jitter,
        "like": like,
        "seed": seed,
    }


class Network(NamedTuple):
    """Other traffic on links, and sums in switches.

    Attributes:
        shares: level -> what other traffic takes of it.
        aggregate: the levels whose switches make sums; None: none do.
        rate_bytes_per_s: how fast such a switch makes a sum.
    """

    shares: Mapping[str, float]
    aggregate: tuple[str, ...] | None = None
    rate_bytes_per_s: float = math.inf

    def of(self, cluster: Cluster, plan: Plan) -> tuple[Cluster, Costs | None]:
        """Return a cluster with this network, and what a plan's messages cost; None: as priced.

        Raises:
            UnknownNameError: a level that there is not.
            InvalidValueError: a value that is none, or a plan that has no sums of gradients.
        """
        from syncopate.simulation import Aggregation, aggregated_costs, busy

        if self.shares:
            cluster = busy(cluster, self.shares)
        if self.aggregate is None:
            return cluster, None
        able = Aggregation(self.aggregate, self.rate_bytes_per_s)
        return cluster, aggregated_costs(cluster, plan, able)


def network(
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
) -> Network:
    """Return what else the links and switches do that the options describe."""
    shares = factors("--background", background, str)
    if aggregate is None:
        if switch_rate is not None:
            rule = "left out without --aggregate: other switches make no sums"
            raise InvalidValueError("--switch-rate", switch_rate, rule)
        return Network(shares)
    rate = math.inf if switch_rate is None else parse_rate(switch_rate)
    return Network(shares, tuple(items(aggregate)), rate)


def fails(
    *,
    mtbf: Annotated[
        str | None,
        typer.Option(
            help="Mean time between failures of one host, such as 5y: the goodput is predicted, by "
            "formula and by simulation."
        ),
    ] = None,
    checkpoint_cost: Annotated[
        str | None,
        typer.Option(
            help=f"How long a checkpoint holds training up, with --mtbf; {_CHECKPOINT} otherwise."
        ),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(help="Training between two checkpoints, such as 30min; the best otherwise."),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(
            help=f"From a failure until training goes on, with --mtbf; {_RESTART} otherwise."
        ),
    ] = None,
) -> dict[str, float | None]:
    """Return the arguments of :class:`~syncopate.simulation.Failures` but hosts; none: no failures.

    Raises:
        InvalidValueError: a time that is none, or checkpoints or a restart without failures.
    """
    if mtbf is None:
        told = {
            "--checkpoint-cost": checkpoint_cost,
            "--checkpoint-every": checkpoint_every,
            "--restart": restart,
        }
        for option, value in told.items():
            if value is not None:
                raise InvalidValueError(option, value, "left out without --mtbf: nothing fails")
        return {}
    return {
        "host_mtbf_s": parse_seconds(mtbf),
        "checkpoint_s": parse_seconds(_CHECKPOINT if checkpoint_cost is None else checkpoint_cost),
        "interval_s": None if checkpoint_every is None else parse_seconds(checkpoint_every),
        "restart_s": parse_seconds(_RESTART if restart is None else restart),
    }


def goodput_report(failures: Failures, iteration_s: float, seed: int) -> str:
    """Return what failures leave of a training, in lines.

    Args:
        failures: how its hosts fail.
        iteration_s: how long an iteration takes without failures.
        seed: of what is drawn.
    """
    from syncopate.simulation import play_failures

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


def factors(option: str, given: list[str] | None, of: Callable[[str], Key]) -> dict[Key, float]:
    """Return what a repeated option says: name -> number.

    Raises:
        InvalidValueError: it is not a name, '=' and a number, or has a name twice.
    """
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
