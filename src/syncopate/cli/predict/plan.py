"""``syncopate plan``: a workload and a cluster in, a plan out, and all plans side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, FSDP, SERVED, SERVERLESS, SHARDED, Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import (
    note,
    out,
    progress_bar,
    require_outputs,
    say_json,
    say_written,
)
from syncopate.cli.common.ending import code_of, ended_once
from syncopate.cli.common.machines import GivenCluster, machines_option
from syncopate.cli.common.options import grouped
from syncopate.cli.common.workloads import workload_option
from syncopate.delay import Delay
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import Progress
from syncopate.recipe import WIRE_DTYPES
from syncopate.units import parse_bytes

_ALL = "all"
"""What ``--exchange`` says for every exchange."""

_BEST = "auto"
"""The policy whose plan is written unless told otherwise."""

_DEFAULT = "plan.json"
"""The file that the best plan is written to unless told otherwise."""

_PAYS = "auto"
"""What ``--pull-period`` says for the smallest that pays."""


@dataclass(frozen=True)
class _Wanted:
    """The workload, cluster and options that are planned for.

    Attributes:
        exchange: one, or None for all.
        told: the other keywords of ``make_plan``.
        pull_period: pull weights every so many steps; 0 for what pays; None for none.
        servers: how many there are; None for as many as hosts.
        units: the other keywords of ``make_fsdp_plan``, with that exchange.
    """

    exchange: str | None
    told: dict[str, Any]
    pull_period: int | None = None
    servers: int | None = None
    units: dict[str, Any] = field(default_factory=dict)


def _wanted(
    *,
    exchange: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(EXCHANGES)}, or {_ALL} that need no servers."),
    ] = _ALL,
    channels: Annotated[
        int | None,
        typer.Option(help="Concurrent collectives; otherwise 1, for `auto` 1 or 2."),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Use this algorithm alone; the best otherwise.")
    ] = None,
    wire_dtype: Annotated[
        str, typer.Option(help=f"Send wider gradients as one of {', '.join(WIRE_DTYPES)}.")
    ] = "",
    pull_period: Annotated[
        str | None,
        typer.Option(
            help="Pull weights every so many steps, with GLU between (docs/ssd_sgd.md); "
            f"{_PAYS} takes the smallest that pays. Plans the {SHARDED} exchange, or {SERVED}."
        ),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(help="Parameter servers of the served exchange; as many as hosts otherwise."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help=f"Of {FSDP}: most gathered weights at once, such as 2GB (docs/fsdp.md)."),
    ] = None,
    shard_ranks: Annotated[
        int | None,
        typer.Option(help=f"Of {FSDP}: ranks that share all weights (HSDP); all otherwise."),
    ] = None,
) -> _Wanted:
    if exchange not in (*EXCHANGES, _ALL):
        raise UnknownNameError("exchange", exchange, (*EXCHANGES, _ALL))
    _require_only(SERVED, exchange, {"--servers": servers})
    _require_only(FSDP, exchange, {"--memory": memory, "--shard-ranks": shard_ranks})
    period = _period_of(pull_period)
    if period is not None:
        if exchange not in (*Delay.EXCHANGES, _ALL):
            late = " and ".join(Delay.EXCHANGES)
            rule = f"left out with --exchange {exchange}; only {late} pull weights late"
            raise InvalidValueError("--pull-period", pull_period, rule)
        exchange = SHARDED if exchange == _ALL else exchange
    told = {"channels": channels, "algorithm": algorithm, "wire_dtype": wire_dtype}
    units: dict[str, Any] = {}
    if exchange == FSDP:
        units["memory_bytes"] = None if memory is None else parse_bytes(memory)
        units["shard_ranks"] = shard_ranks or 0
    return _Wanted(None if exchange == _ALL else exchange, told, period, servers, units)


def _require_only(owner: str, exchange: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and exchange != owner:
            raise InvalidValueError(name, value, f"left out without --exchange {owner}")


def _period_of(given: str | None) -> int | None:
    if given is None:
        return None
    if given == _PAYS:
        return 0
    if not given.isdecimal() or int(given) < 1:
        raise InvalidValueError("--pull-period", given, f"an integer >= 1, or {_PAYS}")
    return int(given)


_Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help=f"Where to write the plan; - prints it. Otherwise {_DEFAULT}, but for one of a "
        "--policy or --algorithm that was named: that is a comparison, and not written.",
    ),
]


@grouped(machines=machines_option, wanted=_wanted, work=workload_option)
def plan(
    *,
    work: Workload,
    machines: GivenCluster,
    wanted: _Wanted,
    policy: Annotated[
        str,
        typer.Option(
            help="Policy of the plan that is shown, for the best of the exchanges; "
            "the table shows all."
        ),
    ] = _BEST,
    output: _Output = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print all plans as a JSON array instead of tables.")
    ] = False,
) -> None:
    """Predict every policy for every exchange and write the best plan. Needs no ranks and no torch.

    For example:

      syncopate plan --workload workload.json --cluster cluster.json

      syncopate plan -w workload.json --network 10gbe --nodes 64 --policy mg-wfbp -o plan.json

      syncopate plan --model bert-large --device h100 --network 100gbe --nodes 8 --gpus-per-node 8

      syncopate plan -w workload.json -c cluster.json --exchange sharded --channels 2

      syncopate plan -w workload.json -c cluster.json --pull-period 4

      syncopate plan -w workload.json -c cluster.json --exchange served --servers 4 --pull-period 4

      syncopate plan -w workload.json -c cluster.json --exchange fsdp --memory 2GB
    """
    from syncopate.planning.margins import sure
    from syncopate.planning.registry import require_policy

    require_policy(policy)
    compares = policy != _BEST or wanted.told["algorithm"] is not None
    if output is None and not compares:
        output = Path(_DEFAULT)
    require_outputs(json, ("--output", output))
    cluster = machines.training(work)
    plans = _all_or_ended(work, cluster, wanted, json)
    chosen = _chosen(plans, policy, wanted)
    beside: list[RenderableType] = []
    if wanted.pull_period is not None:
        chosen, beside = _delayed(chosen, wanted.pull_period, work, cluster)
        plans = (*plans, chosen) if chosen.delay else plans
    certain = sure(chosen, work, cluster)
    plans = tuple(certain if plan is chosen else plan for plan in plans)
    chosen = certain
    if output is not None:
        chosen.save(output)
    _show(plans, chosen, output, json, beside)


def _all_or_ended(
    workload: Workload, cluster: Cluster, wanted: _Wanted, json: bool
) -> tuple[Plan, ...]:
    """Return all plans; those that there are when planning is ended are shown."""
    made: list[Plan] = []
    with ended_once():
        try:
            with progress_bar("planning") as progress:
                return _plans(workload, cluster, wanted, progress, made)
        except KeyboardInterrupt as interrupt:
            _show_ended(made, json)
            raise typer.Exit(code_of(interrupt)) from None


def _chosen(plans: Sequence[Plan], policy: str, wanted: _Wanted) -> Plan:
    named = [plan for plan in plans if plan.policy == policy]
    if not named:
        rule = f"enough for what the units of {policy} gather at once"
        raise InvalidValueError("--memory", wanted.units["memory_bytes"], rule)
    return min(named, key=lambda plan: plan.expected_s)


def _delayed(
    plan: Plan, period: int, workload: Workload, cluster: Cluster
) -> tuple[Plan, list[RenderableType]]:
    """Return a plan with the delay asked for, and what is to be shown of all delays."""
    from syncopate.reports.terminal import delays_report
    from syncopate.simulation.delay import delays, gains, limits, proposed, with_delay

    plans = delays(plan, workload, cluster)
    said = [gains(plan, plans), limits(plan, workload, cluster)]
    chosen = (
        with_delay(plan, Delay(k=period), workload, cluster) if period else proposed((plan, *plans))
    )
    if period > len(plans):
        plans = (*plans, chosen)
    return chosen, [delays_report([plan, *plans], chosen, "\n".join(filter(None, said)))]


def _plans(
    workload: Workload,
    cluster: Cluster,
    wanted: _Wanted,
    progress: Progress,
    made: list[Plan],
) -> tuple[Plan, ...]:
    """Return the plans of every policy for every exchange asked for, the one of ``auto`` last.

    Exchanges without the algorithm asked for are left out of all of them. Each plan is added to
    ``made`` as it comes.
    """
    from syncopate.planning.planner import choosing, compared, make_plan

    if wanted.exchange == FSDP:
        return _unit_plans(workload, cluster, wanted, progress, made)
    if wanted.servers is not None:
        from syncopate.costs.model.served import served_costs

        wanted.told["costs"] = served_costs(cluster, wanted.servers)
    exchanges = tuple(SERVERLESS) if wanted.exchange is None else (wanted.exchange,)
    pairs = [(exchange, policy) for exchange in exchanges for policy in compared()]
    for index, (exchange, policy) in enumerate(pairs):
        progress(f"{policy}, {exchange}", index / (1 + len(pairs)))
        try:
            made.append(make_plan(workload, cluster, policy, exchange=exchange, **wanted.told))
        except UnknownNameError:
            if wanted.exchange is not None:
                raise
    for policy in (*(name for name in choosing() if name != _BEST), _BEST):
        progress(policy, len(pairs) / (1 + len(pairs)))
        made.append(make_plan(workload, cluster, policy, exchange=wanted.exchange, **wanted.told))
    return tuple(made)


def _unit_plans(
    workload: Workload,
    cluster: Cluster,
    wanted: _Wanted,
    progress: Progress,
    made: list[Plan],
) -> tuple[Plan, ...]:
    """Return the plans of units of every policy that has room, the one of ``auto`` last.

    Each plan is added to ``made`` as it comes.
    """
    from syncopate.planning.fsdp.planner import make_fsdp_plan
    from syncopate.planning.planner import require_units
    from syncopate.planning.registry import POLICIES
    from syncopate.simulation.fsdp.traffic import unit_costs

    require_units(wanted.told["channels"], wanted.told["wire_dtype"])
    algorithm = wanted.told["algorithm"]
    algorithms = None if algorithm is None else (algorithm,)
    costs = unit_costs(cluster, workload.nbytes, wanted.units["shard_ranks"], algorithms)
    names = [name for name, row in POLICIES.items() if row.plans is None]
    for index, name in enumerate(names):
        progress(name, index / (1 + len(names)))
        with suppress(InvalidValueError) if wanted.units["memory_bytes"] else nullcontext():
            made.append(make_fsdp_plan(workload, cluster, name, costs=costs, **wanted.units))
    progress(_BEST, len(names) / (1 + len(names)))
    best = make_fsdp_plan(workload, cluster, _BEST, costs=costs, **wanted.units)
    alike = [name for name in POLICIES if name not in (*names, _BEST)]  # they search as `auto` does
    made += [*(replace(best, policy=name) for name in alike), best]
    return tuple(made)


def _show_ended(made: Sequence[Plan], json: bool) -> None:
    """Show the plans that were made before planning was ended; none of them is written."""
    if not made:
        note("ended before the first plan was made")
        return
    if json:
        _say_json(made)
    else:
        from syncopate.reports.terminal import plans_report

        out().print(plans_report(made))
    note("ended: these are not all plans, and none is written")


def _show(
    plans: Sequence[Plan],
    chosen: Plan,
    output: Path | None,
    json: bool,
    beside: Sequence[RenderableType] = (),
) -> None:
    if json:
        _say_json(plans)
        _say_written(output)
        return
    from syncopate.reports.terminal import plan_report, plans_report

    console = out(beside=output)
    console.print(plans_report([plan for plan in plans if plan.delay is None], chosen=chosen))
    for shown in beside:
        console.print(shown)
    console.print(plan_report(chosen))
    _say_written(output)


def _say_json(plans: Sequence[Plan]) -> None:
    objects = ",\n".join(plan.to_json().decode().rstrip() for plan in plans)
    say_json(f"[\n{objects}\n]".encode())


def _say_written(output: Path | None) -> None:
    if output is None:
        note("compared, and not written: --output FILE writes this plan")
    say_written(output)
