"""MG-WFBP's simulation of GoogLeNet on up to 64 nodes, beside the paper's figures.

    python reproduce/mg_wfbp.py            # tables
    python reproduce/mg_wfbp.py --json     # the same as JSON

The paper (Shi and Chu, INFOCOM 2019, Section V-C, Fig. 9) simulates GoogLeNet on Nvidia K80s with
10 Gbit Ethernet from measured layer times. Its authors published the log those times are from; the
table in ``data/googlenet_k80.csv`` is read from it. What the paper does not print is inferred:

* α = 45.26 us, from the start-up times of its Fig. 5b: 90.52 us on two nodes is 2 α.
* β = 1.2 / (9 Gbit/s), with 1 Gbit = 2^30 bits: what its authors' simulation scripts use for 10GbE.
* γ = 2.5 ns per byte: one addition of two floats takes 10 ns.
* t_f = t_b / 2. The log has backward times only.
* The ring cost of Table II.

Speed-ups are over one node, as in Eq. 4. ``optimal`` is not in the paper, which takes its Algorithm
1 for optimal.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from syncopate.cluster import Cluster
from syncopate.costs.model.collective import collective_costs
from syncopate.planning.planner import make_plan
from syncopate.reports.comparison import Comparison, comparison_table
from syncopate.workload import GradientTensor, Workload

DATA = Path(__file__).parent / "data" / "googlenet_k80.csv"
NODES = (2, 4, 8, 16, 32, 64)
POLICIES = ("wfbp", "single", "mg-wfbp", "optimal")
ALPHA_S = 45.26e-6
BETA_S_PER_BYTE = 1.2 / (9 * 2**30 / 8)
GAMMA_S_PER_BYTE = 2.5e-9


@dataclass(frozen=True)
class Row:
    """One cluster size.

    Attributes:
        nodes: number of nodes, one K80 each.
        startup_s: a of the all-reduce.
        byte_time_s: b of the all-reduce, per byte.
        buckets: policy -> number of buckets.
        speedup: policy -> throughput over one node.
    """

    nodes: int
    startup_s: float
    byte_time_s: float
    buckets: dict[str, int]
    speedup: dict[str, float]


def googlenet() -> Workload:
    """Return GoogLeNet's 64 learnable layers in backward order, with the times of one K80."""
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    tensors = tuple(
        GradientTensor(
            name=f"layer {row['layer']}",
            numel=int(row["parameters"]),
            backward_s=float(row["backward_us"]) * 1e-6,
        )
        for row in csv.DictReader(lines)
    )
    backward_s = sum(tensor.backward_s for tensor in tensors)
    return Workload(
        model="GoogLeNet, batch 64, K80",
        tensors=tensors,
        forward_s=backward_s / 2,
        backward_s=backward_s,
    )


def cluster(nodes: int) -> Cluster:
    """Return ``nodes`` K80s on 10 Gbit Ethernet, with the parameters in the module's text."""
    return Cluster.flat(
        nodes,
        latency_s=ALPHA_S,
        bandwidth_bytes_per_s=1 / BETA_S_PER_BYTE,
        reduction_s_per_byte=GAMMA_S_PER_BYTE,
        name=f"{nodes} x K80, 10GbE",
    )


def simulate_row(workload: Workload, nodes: int) -> Row:
    """Plan with every policy on ``nodes`` nodes and return the predicted speed-ups."""
    where = cluster(nodes)
    costs = collective_costs(where, names=("ring",))
    given = {"all_reduce": costs}
    plans = {name: make_plan(workload, where, name, costs=given) for name in POLICIES}
    iterations = {
        name: plan.prediction.iteration_s for name, plan in plans.items() if plan.prediction
    }
    return Row(
        nodes=nodes,
        startup_s=costs.startup_s,
        byte_time_s=float(costs.pieces.slope_s_per_byte[-1]),
        buckets={name: len(plan.buckets) for name, plan in plans.items()},
        speedup={
            name: nodes * workload.compute_s / seconds for name, seconds in iterations.items()
        },
    )


def compare_with_paper(rows: Sequence[Row]) -> list[Comparison]:
    """Return every figure the paper prints for this simulation beside ours."""
    by_nodes = {row.nodes: row for row in rows}
    comparisons = [
        Comparison(
            f"start-up of all-reduce, {nodes} nodes",
            us,
            by_nodes[nodes].startup_s * 1e6,
            "{:.2f} us",
        )
        for nodes, us in ((2, 90.52), (4, 271.56), (8, 633.64))
    ]
    at_64 = by_nodes[64].speedup
    for over, name, paper in (("WFBP", "wfbp", 1.78), ("SyncEASGD", "single", 1.35)):
        ours = at_64["mg-wfbp"] / at_64[name]
        comparisons.append(Comparison(f"MG-WFBP over {over}, 64 nodes", paper, ours, "{:.2f}x"))
    return comparisons


def show(workload: Workload, rows: Sequence[Row], console: Console) -> None:
    """Print both tables."""
    table = Table(
        title=f"{workload.model}, 10GbE: speed-up over one node (buckets)",
        caption="gain: optimal over MG-WFBP's Algorithm 1",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("nodes", justify="right", style="bold", no_wrap=True)
    for column in ("a ms", "b ns/B", "WFBP", "SyncEASGD", "MG-WFBP", "optimal", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        best = max(row.speedup.values())
        cells = []
        for name in POLICIES:
            style = "bold green" if row.speedup[name] > best * 0.9995 else "none"
            cells.append(f"[{style}]{row.speedup[name]:.2f}[/] [dim]({row.buckets[name]})[/]")
        gain = row.speedup["optimal"] / row.speedup["mg-wfbp"] - 1
        table.add_row(
            str(row.nodes),
            f"{row.startup_s * 1e3:.2f}",
            f"{row.byte_time_s * 1e9:.2f}",
            *cells,
            f"{gain:+.1%}",
        )
    console.print(table)
    console.print(comparison_table("Beside the paper (Figs. 5b and 9)", compare_with_paper(rows)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the reproduction; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    workload = googlenet()
    rows = [simulate_row(workload, nodes) for nodes in NODES]
    if not options.json:
        show(workload, rows, Console())
        return
    paper = [item.as_json() for item in compare_with_paper(rows)]
    print(json.dumps({"rows": [asdict(row) for row in rows], "paper": paper}, indent=1))


if __name__ == "__main__":
    main()
