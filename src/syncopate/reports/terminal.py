"""Terminal reports: a cluster, a workload, plans side by side and one plan, as rich renderables.

Every function takes artefacts and returns something that ``rich.console.Console.print`` shows.
Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.artifacts.cluster import Cluster, CollectiveCurve
from syncopate.artifacts.disturbed import FEWEST
from syncopate.artifacts.plan import Bucket, Plan, Prediction
from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.artifacts.sharding import Sharding, blocks
from syncopate.artifacts.workload import Workload
from syncopate.errors import one_line
from syncopate.reports.decisions import options_text
from syncopate.reports.tables import ReportTable, titled_table
from syncopate.units import format_bytes, format_count, format_rate, format_seconds


def cluster_report(cluster: Cluster) -> RenderableType:
    """Return a cluster: warnings, levels, and each measured collective's fits and curves."""
    interference = cluster.interference
    lines = Text.assemble(
        (one_line(cluster.name), "bold"),
        f": {format_count(cluster.world_size, 'rank')}\n",
        f"reduction {1 / cluster.reduction_s_per_byte / 1e9:.2f} GB/s per rank; "
        if cluster.reduction_s_per_byte
        else "reduction free; ",
        f"beside a collective computation runs at {interference.compute_rate:.0%}, "
        f"beside computation a collective takes {interference.collective_stretch:.2f}x",
    )
    warnings = [
        Text(one_line(f"warning: {warning}"), style="bold yellow") for warning in cluster.warnings
    ]
    parts: list[RenderableType] = [lines, *warnings, _levels(cluster)]
    for collective in dict.fromkeys(curve.collective for curve in cluster.curves):
        curves = [curve for curve in cluster.curves if curve.collective == collective]
        parts += [_fits(curves), _curves(curves, cluster.world_size)]
    return Group(*parts)


def workload_report(workload: Workload, top: int = 10) -> RenderableType:
    """Return a workload: its times, and its ``top`` largest gradient tensors."""
    beside = workload.interference
    lines = Text.assemble(
        (one_line(workload.model), "bold"),
        f": {len(workload.tensors)} gradient tensors, {format_bytes(workload.nbytes)}\n",
        f"computation {format_seconds(workload.compute_s)} = "
        f"forward {format_seconds(workload.forward_s)} + "
        f"backward {format_seconds(workload.backward_s)} + "
        f"update {format_seconds(workload.update_s)}",
        f"\nbeside a collective computation runs at {beside.compute_rate:.0%}, "
        f"beside computation a collective takes {beside.collective_stretch:.2f}x"
        if beside
        else "",
    )
    table = titled_table(f"largest {min(top, len(workload.tensors))} tensors")
    _columns(table, "tensor", "dtype", right=("ready #", "elements", "size", "share", "ready at"))
    ready_s = workload.ready_s
    order = sorted(range(len(ready_s)), key=lambda i: -workload.tensors[i].nbytes)[:top]
    for index in order:
        tensor = workload.tensors[index]
        share = tensor.nbytes / workload.nbytes if workload.nbytes else 0.0
        table.add_row(
            tensor.name,
            tensor.dtype,
            str(index),
            f"{tensor.numel:,}",
            format_bytes(tensor.nbytes),
            f"{share:.1%}",
            format_seconds(ready_s[index]),
        )
    return Group(lines, table)


def plans_report(
    plans: Sequence[Plan],
    *,
    measured_s: Mapping[str, float] | None = None,
    chosen: Plan | None = None,
) -> RenderableType:
    """Return plans side by side, one row each.

    Plans of several exchanges, or on several channels, say which; then there is no room for their
    algorithms. A plan that was chosen among exchanges, and says why, stands apart.

    Args:
        plans: the plans to compare.
        measured_s: median measured iteration by policy in seconds; adds the measured iteration and
            the error of the prediction in place of the algorithms, which a terminal has no room
            for beside them. A policy without a plan, such as a baseline run by something else,
            gets a row of measurements alone.
        chosen: the plan to mark.
    """
    bounds = {plan.prediction.bound_s for plan in plans if plan.prediction}
    suffix = f"; bound {format_seconds(min(bounds))}" if bounds else ""
    table = titled_table(f"plans{suffix}")
    several = len({(plan.exchange, plan.channels) for plan in plans}) > 1
    _columns(table, "policy", *(["exchange"] if several else []))
    _columns(table, right=(["channels"] if several else []))
    _columns(table, right=("buckets", "predicted", "exposed", "above\nbound"))
    if measured_s is not None:
        _columns(table, right=("measured", "error"))
    elif not several:
        _columns(table, "algorithms")
    before = plans[0].exchange if plans else ""
    for plan in plans:
        if plan.exchange != before or plan.reason:
            table.add_section()
        before = plan.exchange
        name = f"> {plan.policy}" if plan is chosen else f"  {plan.policy}"
        cells = [name, *([plan.exchange, str(plan.channels)] if several else [])]
        cells += [str(len(plan.buckets)), *_predicted(plan)]
        if measured_s is not None:
            cells += _measured(plan, measured_s.get(plan.policy))
        elif not several:
            cells.append(", ".join(algorithms_of(plan)))
        table.add_row(*cells, style="bold" if plan is chosen else None)
    planned = {plan.policy for plan in plans}
    for name, seconds in (measured_s or {}).items():
        if name not in planned:
            missing = ["-"] * (6 if several else 4)
            table.add_row(f"  {name}", *missing, format_seconds(seconds), "-")
    return table


def delays_report(plans: Sequence[Plan], chosen: Plan, limits: str) -> RenderableType:
    """Return a row for each plan: what it is expected to take with weights pulled with a delay.

    Args:
        plans: all alike but for their delays; the synchronous one has none.
        chosen: the plan to mark, by its delay.
        limits: what no delay can hide; empty where there is nothing of the kind.
    """
    table = titled_table("weights pulled every k-th step, in the mean over k iterations")
    table.add_column("k", no_wrap=True)
    table.add_figures("predicted", "exposed", "above\nbound")
    for plan in plans:
        marked = plan.delay == chosen.delay
        name = f"{'>' if marked else ' '} {plan.pull_period if plan.delay else 'synchronous'}"
        table.add_row(name, *_predicted(plan), style="bold" if marked else None)
    return Group(table, Text(f"{limits}\n")) if limits else table


def interval_text(prediction: Prediction) -> str:
    """Return the interval of a prediction in words; empty where it has none."""
    if prediction.low_s is None or prediction.high_s is None:
        return ""
    low, high = format_seconds(prediction.low_s), format_seconds(prediction.high_s)
    return f" ({low} to {high} in nine of ten)"


def plan_report(plan: Plan, most: int = 40) -> RenderableType:
    """Return one plan: what it expects and its first ``most`` buckets in launch order."""
    lines = Text.assemble(
        (one_line(f"{plan.policy} plan"), "bold"),
        one_line(f" for {plan.model} on {plan.cluster or 'an unnamed cluster'}: ")
        + f"{format_count(plan.world_size, 'rank')}, {format_count(len(plan.buckets), 'bucket')}, "
        f"exchange {plan.exchange}, channels {plan.channels}",
    )
    if plan.wire_dtype:
        lines.append(f", gradients as {plan.wire_dtype}")
    if plan.delay is not None:
        lines.append(f", pull period {plan.pull_period} ({plan.delay.local_update})")
    if plan.local_sgd is not None:
        lines.append(f", weights averaged every {plan.local_sgd.period} steps")
    if plan.sharding is not None:
        lines.append(_units_text(plan, plan.sharding))
    if plan.reason:
        lines.append(f"\n{one_line(plan.reason)}")
    prediction = plan.prediction
    if prediction is not None:
        lines.append(
            f"\npredicted iteration {format_seconds(prediction.iteration_s)}"
            f"{interval_text(prediction)}: computation {format_seconds(prediction.compute_s)}, "
            f"communication {format_seconds(prediction.communication_s)}, "
            f"of which {format_seconds(prediction.exposed_s)} exposed; "
            f"{prediction.above_bound:.1%} above the bound of {format_seconds(prediction.bound_s)}"
        )
    units = plan.sharding is not None
    table = titled_table("units, the last of forward first" if units else "buckets")
    shown = plan.buckets[:most]
    told = any(recipe.options for bucket in shown for _, recipe in bucket.recipes)
    phases = list(dict.fromkeys(phase for bucket in plan.buckets for phase, _ in bucket.recipes))
    _columns(table, *(phases if len(phases) > 1 else ["algorithm"]))
    _columns(table, *(["options"] if told else []), "modules" if units else "tensors")
    _columns(table, right=("#", "size", "channel"))
    for index, bucket in enumerate(shown):
        recipes = [recipe for _, recipe in bucket.recipes]
        channels = dict.fromkeys(str(recipe.channel) for recipe in recipes)
        options = dict.fromkeys(options_text(recipe.options) for recipe in recipes)
        table.add_row(
            *(recipe.algorithm for recipe in recipes),
            *[""] * (len(phases) - len(recipes)),
            *([" / ".join(options)] if told else []),
            _modules(plan, index) if units else _tensors(bucket),
            str(index),
            format_bytes(bucket.nbytes),
            " / ".join(channels),
        )
    if len(plan.buckets) > most:
        table.caption = f"  and {len(plan.buckets) - most} more"
    return Group(lines, table)


def algorithms_of(plan: Plan) -> tuple[str, ...]:
    """Return the algorithms a plan uses, in the order of first use."""
    recipes = (recipe for bucket in plan.buckets for _, recipe in bucket.recipes)
    return tuple(dict.fromkeys(recipe.algorithm for recipe in recipes))


def fit_error(curve: CollectiveCurve) -> float:
    """Return the median over sizes of ``|fit - measured| / measured``, by expected durations."""
    errors = []
    for point in curve.points:
        measured_s = point.expected_s
        if measured_s > 0:
            fitted_s = curve.fit.a_s + curve.fit.b_s_per_byte * point.nbytes
            errors.append(abs(fitted_s - measured_s) / measured_s)
    return statistics.median(errors) if errors else 0.0


def _levels(cluster: Cluster) -> Table:
    table = titled_table("levels, innermost first")
    _columns(table, "level", right=("size", "latency", "bandwidth"))
    for level in cluster.levels:
        table.add_row(
            level.name,
            level.size_text,
            format_seconds(level.latency_s),
            format_rate(level.bandwidth_bytes_per_s),
        )
    return table


def _fits(curves: Sequence[CollectiveCurve]) -> Table:
    table = titled_table(f"{curves[0].collective}: linear fits T(n) = a + b n")
    _columns(table, "algorithm", right=("a", "1/b", "fit error"))
    for curve in curves:
        slope = curve.fit.b_s_per_byte
        table.add_row(
            curve.algorithm,
            format_seconds(curve.fit.a_s),
            f"{1 / slope / 1e9:.3f} GB/s" if slope else "-",
            f"{fit_error(curve):.1%}" if len(curve.points) >= FEWEST else "-",
        )
    return table


def _curves(curves: Sequence[CollectiveCurve], world_size: int) -> Table:
    """Expected time by size and algorithm; a star marks the fastest of each size."""
    expected_s = {
        curve.algorithm: {point.nbytes: point.expected_s for point in curve.points}
        for curve in curves
    }
    collective = curves[0].collective
    factor = BUS_FACTORS[collective](world_size) if collective in BUS_FACTORS else 1.0
    by_nbytes = {
        nbytes: {name: sizes[nbytes] for name, sizes in expected_s.items() if nbytes in sizes}
        for nbytes in sorted({size for sizes in expected_s.values() for size in sizes})
    }
    fastest = {nbytes: min(here, key=here.__getitem__) for nbytes, here in by_nbytes.items()}
    shown = [name for name in expected_s if name in fastest.values() or name == "native"]
    table = titled_table(f"{collective}: measured, * the fastest")
    _columns(table, right=("size", *(name.replace("_", "\n") for name in shown)))
    _columns(table, right=("busbw\nGB/s",))
    if len(shown) < len(expected_s):
        slower = ", ".join(name for name in expected_s if name not in shown)
        table.caption = f"nowhere the fastest: {slower}"
    for nbytes, here in by_nbytes.items():
        best = fastest[nbytes]
        times = [
            Text(f"*{format_seconds(here[name])}", style="bold green")
            if name == best
            else Text(format_seconds(here[name]) if name in here else "-")
            for name in shown
        ]
        busbw = factor * nbytes / here[best] / 1e9 if here[best] > 0 else 0.0
        table.add_row(format_bytes(nbytes), *times, f"{busbw:.3f}")
    return table


def _predicted(plan: Plan) -> list[str]:
    prediction = plan.prediction
    if prediction is None:
        return ["-"] * 3
    return [
        format_seconds(prediction.iteration_s),
        format_seconds(prediction.exposed_s),
        f"{prediction.above_bound:.1%}",
    ]


def _measured(plan: Plan, seconds: float | None) -> list[str]:
    if seconds is None:
        return ["-", "-"]
    if plan.prediction is None or seconds <= 0:
        return [format_seconds(seconds), "-"]
    return [format_seconds(seconds), f"{plan.prediction.iteration_s / seconds - 1:+.1%}"]


def _tensors(bucket: Bucket) -> str:
    first, count = bucket.tensors[0], len(bucket.tensors)
    if bucket.elements is not None:
        return "{} [{}:{}]".format(first, *bucket.elements)
    return first if count == 1 else f"{first} ... {bucket.tensors[-1]} ({count})"


def _units_text(plan: Plan, sharding: Sharding) -> str:
    """Say what fully_shard is told of all units."""
    count = len(plan.buckets)
    held = format_bytes(sharding.held_bytes([bucket.nbytes for bucket in plan.buckets]))
    among = f"groups of {sharding.ranks} ranks" if sharding.ranks else "all ranks"
    ahead = format_count(sharding.prefetch, "unit")
    again = len(sharding.again(count))
    return (
        f"\nshared by {among}; gathered {ahead} ahead, and {again} of {count} again for backward; "
        f"at most {held} of weights gathered at once"
    )


def _modules(plan: Plan, index: int) -> str:
    """Return the modules of a unit in the order of forward."""
    assert plan.sharding is not None
    named = blocks(name for bucket in plan.buckets for name in bucket.tensors)
    found = [*dict.fromkeys(named[name] for name in reversed(plan.buckets[index].tensors))]
    root = index == len(plan.buckets) - 1
    inside = [one for one in found if one]
    text = "".join(inside) if len(inside) < 2 else f"{inside[0]} ... {inside[-1]} ({len(inside)})"
    told = f"the model itself, with {text}" if text else "the model itself"
    kept = ", kept" if index in plan.sharding.kept else ""
    return f"{told if root else text}{kept}"


def _columns(table: ReportTable, *left: str, right: Sequence[str] = ()) -> None:
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name == "policy")
    table.add_figures(*right)
