"""MG-WFBP's simulation of GoogLeNet on up to 64 nodes, beside the paper's figures.

    python reproduce/mg_wfbp.py                  # tables, and where the difference is from
    python reproduce/mg_wfbp.py --sensitivity    # and how far the figures hang on their inputs
    python reproduce/mg_wfbp.py --log tmp8comm.log tmp8ocomm.log    # for logs of one's own
    python reproduce/mg_wfbp.py --json           # the same as JSON; with --sensitivity, that too
    python reproduce/mg_wfbp.py --quick          # fewer numbers of nodes

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

``--sensitivity`` scales one input at a time: the start-up time a of an all-reduce (start-up), 1/b
of an all-reduce (bandwidth), all backward times (backward), t_f (forward), or all computation
(batch).

``--log`` takes logs that B-Caffe wrote, and shows them in place of its authors' six others. Those
are not kept here, only what they came to: ``data/mg_wfbp_logs.csv`` says where they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import mg_wfbp_inputs as inputs
from figures.comparison import Comparison, comparison_table
from mg_wfbp_inputs import INPUTS, Logged, Outcome, Setting, logged
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.collective import collective_costs
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.planning.planner import make_plan
from syncopate.reports.tables import ReportTable

DATA = Path(__file__).parent / "data" / "googlenet_k80.csv"
LOGS = Path(__file__).parent / "data" / "mg_wfbp_logs.csv"
NODES = (2, 4, 8, 16, 32, 64)
QUICK_NODES = (2, 4, 8, 64)
POLICIES = ("wfbp", "single", "mg-wfbp", "optimal")
ALPHA_S = 45.26e-6
BETA_S_PER_BYTE = 1.2 / (9 * 2**30 / 8)
GAMMA_S_PER_BYTE = 2.5e-9
PAPER = {"wfbp": 1.78, "single": 1.35}
"""MG-WFBP over these policies on 64 nodes, as printed."""

CHANGES = (-0.10, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.10)
METHODS = {"wfbp": "WFBP", "single": "SyncEASGD", "mg-wfbp": "MG-WFBP"}


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


def lines(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table by column, comments left out."""
    return list(csv.DictReader(s for s in path.read_text().splitlines() if not s.startswith("#")))


def googlenet() -> Workload:
    """Return GoogLeNet's 64 learnable layers in backward order, with the times of one K80."""
    layers = [(int(row["parameters"]), float(row["backward_us"])) for row in lines(DATA)]
    return workload_of("GoogLeNet, batch 64, K80", layers)


def workload_of(model: str, layers: Sequence[tuple[int, float]]) -> Workload:
    """Return a workload of these layers.

    Args:
        model: its name.
        layers: parameters and microseconds of backward, in backward order.
    """
    backward_s = sum(backward_us * 1e-6 for _, backward_us in layers)
    return Workload(
        model=model,
        tensors=tuple(
            GradientTensor(
                name=f"layer {len(layers) - index}",
                numel=parameters,
                backward_s=backward_us * 1e-6,
            )
            for index, (parameters, backward_us) in enumerate(layers)
        ),
        forward_s=backward_s / 2,
        backward_s=backward_s,
    )


def read_log(path: Path) -> Workload:
    """Return the layers of a log that B-Caffe wrote.

    A line ends in ``[id, parameters, microseconds of backward, ...]``; ids count in forward order
    from 0. Weight and bias of a layer follow each other and have one time. The last table counts.

    Raises:
        ArtifactError: it cannot be read, or has no such lines.
    """
    try:
        found = re.findall(r"\[(\d+), (\d+), ([\d.e+]+)(?:, [\d.]+)*\]$", path.read_text(), re.M)
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(path, f"cannot be read as text: {error}") from error
    layers: list[tuple[int, float]] = []
    for number, parameters, backward_us in found:
        if number == "0":
            layers = []
        if layers and layers[-1][1] == float(backward_us):
            layers[-1] = (layers[-1][0] + int(parameters), layers[-1][1])
        else:
            layers.append((int(parameters), float(backward_us)))
    if not any(backward_us for _, backward_us in layers):
        raise ArtifactError(path, "no lines that end in [id, parameters, backward us, ...]")
    return workload_of(path.stem, layers[::-1])


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
    for name, paper in PAPER.items():
        ours, over = at_64["mg-wfbp"] / at_64[name], METHODS[name]
        comparisons.append(Comparison(f"MG-WFBP over {over}, 64 nodes", paper, ours, "{:.2f}x"))
    return comparisons


def show(workload: Workload, rows: Sequence[Row], console: Console) -> None:
    """Print both tables."""
    table = Table(
        title=f"{workload.model}, 10GbE: speed-up over one node (buckets)",
        caption="gain: optimal over MG-WFBP's Algorithm 1",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
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


def setting_of(workload: Workload, row: Row) -> Setting:
    """Return what a row is computed from."""
    return Setting(
        forward_s=workload.forward_s,
        backward_s=tuple(tensor.backward_s for tensor in workload.tensors),
        nbytes=tuple(tensor.nbytes for tensor in workload.tensors),
        startup_s=row.startup_s,
        byte_time_s=row.byte_time_s,
    )


def recorded() -> list[Logged]:
    """Return what the logs came to that are not kept here."""
    return [
        Logged(
            log=row["log"],
            backward_ms=float(row["backward_ms"]),
            buckets=int(row["buckets"]),
            over_wfbp=float(row["over_wfbp"]),
            over_single=float(row["over_single"]),
            optimal_over_wfbp=float(row["optimal_over_wfbp"]),
            startup_change=float(row["startup_change"]),
        )
        for row in lines(LOGS)
    ]


def sentences(setting: Setting, logs: Sequence[Logged]) -> list[str]:
    """Return why the speed-up over WFBP is not the paper's, and how far it hangs on the inputs."""
    here, found = inputs.outcome(setting), inputs.cause(setting, *PAPER.values())
    wfbp, single = PAPER.values()
    layers = len(setting.nbytes)
    return [
        f"MG-WFBP over SyncEASGD agrees ({here.over_single / single - 1:+.1%}), so WFBP alone may "
        f"make the {here.over_wfbp / wfbp - 1:+.1%}: an iteration of WFBP takes "
        f"{found.wfbp_s * 1e3:.0f} ms here, and {found.wfbp_needed_s * 1e3:.0f} ms would give "
        f"{wfbp:.2f}x. The difference is {found.startups:.1f} start-ups of "
        f"{setting.startup_s * 1e3:.2f} ms, as if WFBP sent {layers + found.startups:.1f} tensors "
        f"instead of {layers}.",
        " ".join(_scaled(found)),
        *_edge(setting),
        f"With the layer times of each log in turn ({len(logs)}) MG-WFBP is "
        f"{_span([row.over_wfbp for row in logs])} over WFBP and "
        f"{_span([row.over_single for row in logs])} over SyncEASGD. The best partition is "
        f"{_span([row.optimal_over_wfbp for row in logs])} over WFBP.",
    ]


def _scaled(found: inputs.Cause) -> list[str]:
    """Return which inputs would have to be how much larger for the paper's speed-ups."""
    wfbp, single = PAPER.values()
    alone = [
        f"{name} {change:+.0%} ({found.over_single[name]:.2f}x over SyncEASGD)"
        for name, change in found.alone.items()
        if change is not None
    ]
    never = [name for name, change in found.alone.items() if change is None]
    told = []
    if alone:
        told.append(f"One input scaled alone gives {wfbp:.2f}x at {', '.join(alone)}.")
    if never:
        told.append(f"Between half and twice, {' or '.join(never)} never gives it.")
    if found.together is not None:
        changes = zip(inputs.FREE, found.together, strict=True)
        both = " and ".join(f"{name} {change:+.0%}" for name, change in changes)
        told.append(
            f"Or two inputs make it: {both} together give {wfbp:.2f}x and {single:.2f}x. The paper "
            "prints neither."
        )
    return told


def _span(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2f}x" for value in (min(values), max(values))))


def _edge(setting: Setting) -> list[str]:
    """Return how near the start-up time is to another choice of Algorithm 1."""
    here, turns = inputs.outcome(setting), inputs.turns(setting, "start-up", "merged")
    more, nodes = [turn for turn in turns if turn.change > 0], NODES[-1]
    if not more:
        return []
    theirs = nodes / (nodes - 1)
    return [
        f"The figures are near an edge: from start-up {more[0].change:+.2%} on, Algorithm 1 makes "
        f"{len(more[0].beyond.merged)} buckets instead of {len(here.merged)}: "
        f"{_pair(more[0].beyond)}. The script that the authors published counts 2 N α, where "
        f"Table II has 2 (N - 1) α, which is start-up {theirs - 1:+.2%}: "
        f"{_pair(inputs.outcome(INPUTS['start-up'](setting, theirs)))}."
    ]


def _pair(found: Outcome) -> str:
    return f"{found.over_wfbp:.2f}x over WFBP and {found.over_single:.2f}x over SyncEASGD"


def swept(setting: Setting, name: str) -> list[Outcome]:
    """Return the outcome for each of ``CHANGES`` of an input."""
    return [inputs.outcome(INPUTS[name](setting, 1 + change)) for change in CHANGES]


def sweep_table(setting: Setting) -> ReportTable:
    """Return the speed-ups with each input changed a little."""
    here = inputs.outcome(setting).merged
    settings = [scaled(setting, 1 + change) for scaled in INPUTS.values() for change in CHANGES]
    best = [inputs.outcome(each).iteration_s["wfbp"] / inputs.best_s(each) for each in settings]
    table = ReportTable(
        title="MG-WFBP over WFBP and over SyncEASGD, 64 nodes, one input changed",
        caption="* Algorithm 1 merges otherwise than without a change. The best partition is "
        f"{min(best):.2f}x to {max(best):.2f}x over WFBP in all of these.",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("change", justify="right")
    for name in INPUTS:
        table.add_column(name, justify="right")
    columns = [swept(setting, name) for name in INPUTS]
    for change, *found in zip(CHANGES, *columns, strict=True):
        cells = (
            f"{each.over_wfbp:.2f} {each.over_single:.2f}{' ' if each.merged == here else '*'}"
            for each in found
        )
        table.add_row(f"{change:+.0%}", *cells)
    return table


def turns_table(setting: Setting) -> ReportTable:
    """Return where Algorithm 1 merges otherwise, and where the order of the methods turns."""
    table = ReportTable(
        title="Nearest change, from half to twice, at which it turns",
        caption="beyond it: over WFBP and over SyncEASGD; the methods, fastest first",
        box=box.SIMPLE_HEAD,
    )
    for column in ("input", "Algorithm 1 merges otherwise", "the order turns"):
        table.add_column(column)
    for name in INPUTS:
        merged = [
            f"{turn.change:+.1%}: {turn.beyond.over_wfbp:.2f} {turn.beyond.over_single:.2f}"
            for turn in inputs.turns(setting, name, "merged")
        ]
        order = [
            f"{turn.change:+.0%}: {', '.join(METHODS[one] for one in turn.beyond.order)}"
            for turn in inputs.turns(setting, name, "order")
        ]
        table.add_row(name, "; ".join(merged) or "nowhere", "; ".join(order) or "nowhere")
    return table


def logs_table(logs: Sequence[Logged]) -> ReportTable:
    """Return what the layer times of several logs come to."""
    table = ReportTable(title="Layer times of several logs, 64 nodes", box=box.SIMPLE_HEAD)
    table.add_column("log")
    for column in ("backward", "buckets", "over WFBP", "over SyncEASGD", "start-up turns it"):
        table.add_column(column, justify="right")
    table.add_column("optimal over WFBP", justify="right")
    for row in logs:
        change = "nowhere" if row.startup_change is None else f"{row.startup_change:+.1%}"
        table.add_row(
            row.log,
            f"{row.backward_ms:.1f} ms",
            str(row.buckets),
            f"{row.over_wfbp:.2f}x",
            f"{row.over_single:.2f}x",
            change,
            f"{row.optimal_over_wfbp:.2f}x",
        )
    return table


def as_json(setting: Setting, logs: Sequence[Logged]) -> dict[str, Any]:
    """Return the sensitivity as the report in JSON has it."""
    return {
        "changes": {
            name: [
                {"change": change, **_flat(found)}
                for change, found in zip(CHANGES, swept(setting, name), strict=True)
            ]
            for name in INPUTS
        },
        "turns": [
            {"input": name, "what": what, "change": turn.change, "beyond": _flat(turn.beyond)}
            for name in INPUTS
            for what in inputs.TURNING
            for turn in inputs.turns(setting, name, what)
        ],
        "logs": [asdict(row) for row in logs],
    }


def _flat(found: Outcome) -> dict[str, Any]:
    return {
        "buckets": len(found.merged),
        "over_wfbp": found.over_wfbp,
        "over_single": found.over_single,
        "order": found.order,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the reproduction; see the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sensitivity", action="store_true", help="vary each input, and show other logs")
    add("--log", nargs="+", type=Path, metavar="FILE", help="as --sensitivity, of these logs")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--quick", action="store_true", help="fewer numbers of nodes")
    options = parser.parse_args(arguments)
    workload = googlenet()
    rows = [simulate_row(workload, nodes) for nodes in (QUICK_NODES if options.quick else NODES)]
    setting = setting_of(workload, rows[-1])
    try:
        logs = [
            logged(path.stem, setting_of(read_log(path), rows[-1])) for path in options.log or ()
        ]
    except SyncopateError as error:
        parser.error(str(error))
    sensitivity = options.sensitivity or bool(logs)
    logs = logs or recorded()
    if options.json:
        report = {
            "rows": [asdict(row) for row in rows],
            "paper": [item.as_json() for item in compare_with_paper(rows)],
            "cause": asdict(inputs.cause(setting, *PAPER.values())),
        }
        if sensitivity:
            report["sensitivity"] = as_json(setting, logs)
        print(json.dumps(report, indent=1))
        return
    console = Console()
    show(workload, rows, console)
    for sentence in sentences(setting, logs):
        console.print(escape(sentence), highlight=False)
        console.print()
    if sensitivity:
        for table in (sweep_table(setting), turns_table(setting), logs_table(logs)):
            console.print(table)


if __name__ == "__main__":
    main()
