"""BlueConnect's equations on the paper's cluster of 192 GPUs, and what a planner chooses there.

    python reproduce/blueconnect.py            # tables
    python reproduce/blueconnect.py --json     # the same as JSON
    python reproduce/blueconnect.py --quick    # the equations alone

The paper (Cho et al. 2019, Section 4) all-reduces ResNet-50's 100 MB on 48 nodes of 4 P100, 16
nodes in each of 3 racks: three levels, 4 x 16 x 3. It measures 58 ms of overhead per iteration for
GLOO's two levels and 31 ms for BlueConnect, 5 to 10 ms of which are jitter: 1.87 times less, which
is the "87%". From its text:

* w_0 = 32 GB/s (NVLink), w_1 = 100 Gbit/s (one InfiniBand port per node).
* w_2 = 16 w_1: a fat tree, whose switches match "the total uplink bandwidth from all the hanging
  nodes" (Section 2.1).

What it does not print is inferred: α = 5 us at all levels, typical of MPI between GPUs over
InfiniBand; at 100 MB the start-ups hardly count but for the flat ring's 382. Reduction is free in
its equations, and here.

By these equations a flat ring in the order of the topology is faster than BlueConnect: it crosses
each node's port once, where BlueConnect's stages leave NVLink idle while the ports work. That holds
for start-ups below 12 us; ``figures/blueconnect.py`` has the start-up, calls and copies included,
that the paper's measured overheads speak of, at which BlueConnect is far ahead. Stages
that work at the same time, on one part of the message each, turn that round (``pipelines``). What
is chosen for other sizes, as ``algorithm="auto"`` would, stands below.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from figures.comparison import Comparison, comparison_table
from formulas.blueconnect import blueconnect_s, one_level_s, stages, two_level_s
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.decide.decisions import Decision, decisions
from syncopate.costs.decide.options import best_options
from syncopate.costs.schedule.price import price
from syncopate.schedules.registry import build, candidates, fitted
from syncopate.units import format_bytes

DATA = Path(__file__).parent / "data" / "blueconnect.csv"
NBYTES = 100e6
ALPHA_S = 5e-6
NVLINK = 32e9
INFINIBAND = 100e9 / 8
SIZES = (4, 16, 3)


@dataclass(frozen=True)
class Equation:
    """One equation of the paper on its cluster.

    Attributes:
        name: number and what it is of.
        formula_s: by the equation.
        schedule_s: the price of the schedule.
    """

    name: str
    formula_s: float
    schedule_s: float


@dataclass(frozen=True)
class Choice:
    """An algorithm as a planner would run it.

    Attributes:
        algorithm: its name in the registry.
        options: those that suit the cluster and the size.
        seconds: the price.
    """

    algorithm: str
    options: dict[str, Any]
    seconds: float


def cluster(rack_rate: float = 16 * INFINIBAND) -> Cluster:
    """Return the paper's cluster.

    Args:
        rack_rate: w_2 in bytes per second, what all nodes of a rack share.
    """
    rates = (NVLINK, INFINIBAND, rack_rate)
    levels = tuple(
        Level(name=name, size=size, latency_s=ALPHA_S, bandwidth_bytes_per_s=rate)
        for name, size, rate in zip(("device", "host", "rack"), SIZES, rates, strict=True)
    )
    return Cluster(name="48 x 4 P100 in 3 racks", levels=levels)


def priced(name: str, where: Cluster, nbytes: float, options: dict[str, Any]) -> float:
    """Return the price of an all-reduce."""
    return price(build("all_reduce", name, where.world_size, 0, **options), where, nbytes)


def equations(where: Cluster, nbytes: float = NBYTES) -> list[Equation]:
    """Return Eqs. 3, 4 and 6 beside the prices of their schedules."""
    found = []
    for name, algorithm, formula in (
        ("Eq. 3, one-level ring", "ring", one_level_s),
        ("Eq. 4, two levels", "two_level", two_level_s),
        ("Eq. 6, BlueConnect", "blueconnect", blueconnect_s),
    ):
        options = fitted("all_reduce", algorithm, where)
        if algorithm == "blueconnect":
            options["stages"] = stages(where)
        found.append(
            Equation(name, formula(where, nbytes), priced(algorithm, where, nbytes, options))
        )
    return found


def choices(where: Cluster, nbytes: float = NBYTES) -> list[Choice]:
    """Return every algorithm worth considering with its best options, the cheapest first."""
    found = []
    for name in candidates("all_reduce", where):
        options = best_options(where, "all_reduce", name, nbytes)
        found.append(Choice(name, options, priced(name, where, nbytes, options)))
    return sorted(found, key=lambda choice: choice.seconds)


def compare_with_paper(rows: Sequence[Equation]) -> list[Comparison]:
    """Return the measured overheads beside the equations, with and without the jitter."""
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    printed = {row["what"]: float(row["value"]) for row in csv.DictReader(lines)}
    _, two_level, blueconnect = (row.formula_s * 1e3 for row in rows)
    gloo, measured = printed["GLOO (two levels)"], printed["BLC (BlueConnect)"]
    found = [
        Comparison("GLOO, two levels", gloo, two_level, "{:.1f} ms"),
        Comparison("BlueConnect", measured, blueconnect, "{:.1f} ms"),
        Comparison("BlueConnect over GLOO", gloo / measured, two_level / blueconnect, "{:.2f}x"),
    ]
    for bound in ("least", "most"):
        jitter = printed[f"jitter at {bound}"]
        what = f"BlueConnect without {jitter:.0f} ms of jitter"
        found.append(Comparison(what, measured - jitter, blueconnect, "{:.1f} ms"))
    return found


def show(
    rows: Sequence[Equation],
    ranked: Sequence[Choice],
    taken: Sequence[Decision],
    console: Console,
) -> None:
    """Print the equations, the paper's figures and the choices."""
    table = Table(title="100 MB on 4 x 16 x 3 GPUs, ms", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("equation")
    for column in ("formula", "schedule", "formula over schedule"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.formula_s * 1e3:.2f}",
            f"{row.schedule_s * 1e3:.2f}",
            f"{row.formula_s / row.schedule_s - 1:+.2%}",
        )
    console.print(table)
    console.print(comparison_table("Beside the paper (Fig. 3a)", compare_with_paper(rows)))
    if not ranked:
        return
    best = Table(title="What a planner chooses there", box=box.SIMPLE_HEAD, pad_edge=False)
    best.add_column("algorithm")
    best.add_column("ms", justify="right")
    best.add_column("options")
    for choice in ranked:
        style = "bold green" if choice is ranked[0] else "none"
        seconds = f"{choice.seconds * 1e3:.2f}"
        best.add_row(choice.algorithm, seconds, _options(choice.options), style=style)
    console.print(best)
    auto = Table(title="What auto takes there, by size", box=box.SIMPLE_HEAD, pad_edge=False)
    auto.add_column("from", justify="right")
    auto.add_column("algorithm")
    auto.add_column("options")
    for decision in taken:
        recipe = decision.recipe
        auto.add_row(format_bytes(decision.min_bytes), recipe.algorithm, _options(recipe.options))
    console.print(auto)


def table_of(where: Cluster) -> tuple[Decision, ...]:
    """Return what all-reduces of any size would be carried by."""
    return decisions(where, "all_reduce")


def _flat(decision: Decision) -> dict[str, Any]:
    """Return a decision as the printed JSON has it."""
    return {
        "min_bytes": decision.min_bytes,
        "max_bytes": decision.max_bytes,
        "algorithm": decision.recipe.algorithm,
        "options": decision.recipe.options,
        "basis": decision.basis,
    }


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_text(value)}" for key, value in options.items())


def _text(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the reproduction; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help="the equations alone, no choices")
    options = parser.parse_args(arguments)
    where = cluster()
    rows = equations(where)
    ranked = [] if options.quick else choices(where)
    taken = () if options.quick else table_of(where)
    if not options.json:
        show(rows, ranked, taken, Console())
        return
    report = {
        "equations": [asdict(row) for row in rows],
        "paper": [item.as_json() for item in compare_with_paper(rows)],
        "choices": [asdict(choice) for choice in ranked],
        "auto": [_flat(decision) for decision in taken],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
