"""``syncopate plan``: a workload and a cluster in, a plan out, and all plans side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from syncopate.cli.console import out, require_one_writer, say_written
from syncopate.cli.machines import machines_option
from syncopate.cli.options import grouped
from syncopate.cluster import Cluster
from syncopate.errors import UnknownNameError
from syncopate.plan import EXCHANGES, Plan
from syncopate.recipe import WIRE_DTYPES
from syncopate.workload import Workload

_ALL = "all"
"""What ``--exchange`` says for every exchange."""


@dataclass(frozen=True)
class _Wanted:
    """What is planned for.

    Attributes:
        exchange: one, or None for all.
        told: the other keywords of ``make_plan``.
    """

    exchange: str | None
    told: dict[str, Any]


def _wanted(
    *,
    exchange: Annotated[
        str, typer.Option(help=f"One of {', '.join(EXCHANGES)}, or {_ALL}.")
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
) -> _Wanted:
    if exchange not in (*EXCHANGES, _ALL):
        raise UnknownNameError("exchange", exchange, (*EXCHANGES, _ALL))
    told = {"channels": channels, "algorithm": algorithm, "wire_dtype": wire_dtype}
    return _Wanted(None if exchange == _ALL else exchange, told)


@grouped(cluster=machines_option, wanted=_wanted)
def plan(
    *,
    cluster: Cluster,
    wanted: _Wanted,
    workload: Annotated[
        Path, typer.Option("--workload", "-w", help="Workload file, from `syncopate profile`.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="Policy of the plan that is written, for the best of the exchanges; "
            "the table shows all."
        ),
    ] = "auto",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the plan; - prints it.")
    ] = Path("plan.json"),
    json: Annotated[
        bool, typer.Option("--json", help="Print all plans as a JSON array instead of tables.")
    ] = False,
) -> None:
    """Predict every policy for every exchange and write the best plan. Needs no ranks and no torch.

    For example:

      syncopate plan --workload workload.json --cluster cluster.json

      syncopate plan -w workload.json --network 10gbe --nodes 64 --policy mg-wfbp -o plan.json

      syncopate plan -w workload.json -c cluster.json --exchange sharded --channels 2
    """
    from syncopate.planning.registry import require_policy

    require_policy(policy)
    require_one_writer(json, ("--output", output))
    plans = _plans(Workload.load(workload), cluster, wanted)
    chosen = min((plan for plan in plans if plan.policy == policy), key=_expected_s)
    chosen.save(output)
    _show(plans, chosen, output, json)


def _plans(workload: Workload, cluster: Cluster, wanted: _Wanted) -> tuple[Plan, ...]:
    """Return the plans of every policy for every exchange asked for, the one of ``auto`` last.

    Exchanges without the algorithm asked for are left out of all of them.
    """
    from syncopate.planning.planner import compare, make_plan

    best = make_plan(workload, cluster, "auto", exchange=wanted.exchange, **wanted.told)
    plans: list[Plan] = []
    for name in EXCHANGES if wanted.exchange is None else (wanted.exchange,):
        try:
            plans += compare(workload, cluster, exchange=name, **wanted.told)
        except UnknownNameError:
            if wanted.exchange is not None:
                raise
    return (*plans, best)


def _expected_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


def _show(plans: Sequence[Plan], chosen: Plan, output: Path, json: bool) -> None:
    if json:
        objects = ",\n".join(plan.to_json().decode().rstrip() for plan in plans)
        typer.echo(f"[\n{objects}\n]")
        return
    from syncopate.reports.terminal import plan_report, plans_report

    console = out(beside=output)
    console.print(plans_report(plans, chosen=chosen))
    console.print(plan_report(chosen))
    say_written(output)
