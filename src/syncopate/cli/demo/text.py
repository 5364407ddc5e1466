"""Text: a few lines of each chapter, for people who see all of this the first time.

The tables behind them are those of the commands, and stand in the artefacts; ``--full`` prints
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.demo.result import DemoResult, Pace, PolicyResult, ScalePrediction
from syncopate.reports.tables import titled_table
from syncopate.reports.terminal import algorithms_of
from syncopate.units import format_bytes, format_count, format_rate, format_seconds

BEST = "optimal"
"""The policy that trains, and that is held against the baseline."""

HALVED = "decoupled"
"""The plan whose second halves hide behind the next forward."""

BASELINE = "ddp"

_SIZES = 5
"""Sizes of all-reduces that are shown, of the measured ones."""

_MEANS = {
    "wfbp": "a message per gradient",
    "single": "one message at the end",
    "threshold": "DDP's 25 MiB",
    "mg-wfbp": "as its paper merges",
    BEST: "merged by dynamic programming",
    HALVED: "half behind the next forward",
    BASELINE: "DistributedDataParallel",
}


def calibrated(cluster: Cluster) -> Text:
    """Return what the links cost, and the fastest all-reduce of a few sizes."""
    level = cluster.levels[-1]
    hosts = format_count(cluster.host_count, "host")
    lines = [
        f"{format_count(cluster.world_size, 'rank')} on {hosts}; "
        f"a message takes {format_seconds(level.latency_s)} to arrive, and then "
        f"{format_rate(level.bandwidth_bytes_per_s)}",
    ]
    curves = [curve for curve in cluster.curves if curve.collective == "all_reduce"]
    measured = {point.nbytes for curve in curves for point in curve.points}
    if measured:
        lines.append(f"the fastest of {len(curves)} all-reduce algorithms, at")
    for nbytes in _spread(sorted(measured)):
        here = {
            curve.algorithm: point.expected_s
            for curve in curves
            for point in curve.points
            if point.nbytes == nbytes
        }
        name = min(here, key=here.__getitem__)
        lines.append(f"  {format_bytes(nbytes):>9}  {name:18}  {format_seconds(here[name]):>9}")
    return _indented(lines)


def profiled(workload: Workload) -> Text:
    """Return how long computation takes, and when gradients are ready."""
    ready_s = workload.ready_s
    return _indented(
        [
            f"{workload.model}: {len(workload.tensors)} gradients, {format_bytes(workload.nbytes)}",
            f"computation {format_seconds(workload.compute_s)} = forward "
            f"{format_seconds(workload.forward_s)} + backward "
            f"{format_seconds(workload.backward_s)} + update {format_seconds(workload.update_s)}",
            f"the first gradient is ready {format_seconds(min(ready_s))} after the iteration "
            f"began, the last {format_seconds(max(ready_s))} after",
        ]
    )


def planned(plans: Mapping[str, Plan]) -> Text:
    """Return what the best plan merges, and what others are expected to take."""
    best = plans[BEST]
    assert best.prediction is not None
    others = ", ".join(
        f"{name} {format_seconds(plan.expected_s)}" for name, plan in plans.items() if name != BEST
    )
    tensors = sum(len(bucket.tensors) for bucket in best.buckets)
    expected = best.prediction
    return _indented(
        [
            f"{BEST}: {tensors} gradients in {format_count(len(best.buckets), 'message')}, by "
            f"{', '.join(algorithms_of(best))}",
            f"predicted {format_seconds(expected.iteration_s)} per iteration, "
            f"{format_seconds(expected.exposed_s)} of it waiting for messages; the bound is "
            f"{format_seconds(expected.bound_s)}",
            f"predicted for the others: {others}",
        ]
    )


def compared(policies: Sequence[PolicyResult], pace: Pace) -> RenderableType:
    """Return every way of training: predicted at the pace of the turns, measured, against DDP."""
    (ddp,) = (policy for policy in policies if policy.name == BASELINE)
    table = titled_table("an iteration, medians over turns")
    for name in ("training", "which is"):
        table.add_column(name, no_wrap=name == "training", overflow="fold")
    table.add_figures("messages", "predicted", "measured", "error", "DDP's\nspeed")
    for policy in policies:
        predicted_s, error = policy.paced_s, policy.error
        table.add_row(
            policy.name,
            _MEANS.get(policy.name, ""),
            str(policy.buckets) if policy.buckets else "-",
            "-" if predicted_s is None else format_seconds(predicted_s),
            format_seconds(policy.measured_s),
            "-" if error is None else f"{error:+.1%}",
            f"{policy.gain_over(ddp).ratio:.2f}x",
            style="bold" if policy.name == BEST else None,
        )
    note = _indented(
        [
            f"computation alone took {format_seconds(pace.measured_s)} in its turns and "
            f"{format_seconds(pace.profiled_s)} when profiled,",
            f"a change of pace by {pace.change:+.1%}; these predictions are for the pace of the "
            "turns",
        ]
    )
    return Group(table, note)


def trained(accuracies: Sequence[float], seconds: float) -> Text:
    """Return what the training reached."""
    epochs = format_count(len(accuracies), "epoch")
    return _indented(
        [f"test accuracy {accuracies[-1]:.2%} after {epochs} in {format_seconds(seconds)}"]
    )


def scaled(scale: ScalePrediction, buckets: int) -> Text:
    """Return the prediction for one cluster, on a line."""
    others = ", ".join(
        f"{name} {format_seconds(seconds)}"
        for name, seconds in scale.iteration_s.items()
        if name in ("wfbp", "single")
    )
    return _indented(
        [
            f"{scale.nodes:2d} nodes of 10GbE: {format_seconds(scale.iteration_s[BEST])} in "
            f"{buckets} messages, efficiency {scale.efficiency(BEST):.1%} ({others})"
        ]
    )


def concluded(result: DemoResult) -> Text:
    """Return the findings in short."""
    by_name = {policy.name: policy for policy in result.policies}
    ddp = by_name[BASELINE]
    best = min((by_name[n] for n in (BEST, HALVED) if n in by_name), key=lambda p: p.measured_s)
    gain = best.gain_over(ddp)
    said = f"{gain.ratio:.2f}x DDP's speed"
    if len(best.samples_s) > 1:
        said += f" in the median turn, {gain.low:.2f}x to {gain.high:.2f}x in half of them"
    if not gain.is_real:
        said = f"no gain beyond noise ({said})"
    return _indented(
        [
            f"the {best.name} plan takes {format_seconds(best.measured_s)} per iteration, DDP "
            f"{format_seconds(ddp.measured_s)}: {said}",
            f"predictions were off by {result.median_error:.1%} at the pace of the comparison, by "
            f"{result.median_planned_error:.1%} as planned (medians)",
            f"{result.accuracies[-1]:.2%} test accuracy after {len(result.accuracies)} epochs; the "
            f"demo took {format_seconds(result.wall_s)}",
        ]
    )


def what_next(folder: Path, page: Path | None) -> Text:
    """Return what to do next, and last the page to open.

    Args:
        folder: of the artefacts.
        page: of the recorded iterations; None where it could not be written.
    """
    lines = [
        "in your training script  model, optimizer = syncopate.distribute(model, optimizer)",
        "your cluster             torchrun ... --no-python syncopate calibrate",
        "your model               syncopate profile mymodels:build --local 4",
        f"another network          syncopate plan -w {folder}/workload.json --network 1gbe "
        "--nodes 32",
        f"why it takes so long     syncopate explain {folder}/timeline.json",
        f"every table above        syncopate demo --full; all figures are in {folder}/demo.json,",
        f"                         iterations in {folder}/trace.json (https://ui.perfetto.dev)",
    ]
    if page is None:
        last = f"a page of this run: syncopate report {folder}/timeline.json"
    else:
        last = f"open {page} to see the iterations that were recorded"
    return Text.assemble(_indented(lines), "\n\n", (last, "bold"))


def _spread(sizes: Sequence[int]) -> list[int]:
    """Return a few of ``sizes``, evenly spread, the first and the last among them."""
    if len(sizes) <= _SIZES:
        return list(sizes)
    return [sizes[round(i * (len(sizes) - 1) / (_SIZES - 1))] for i in range(_SIZES)]


def _indented(lines: Sequence[str]) -> Text:
    return Text("\n".join(f"  {line}" for line in lines))
