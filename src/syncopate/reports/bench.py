"""Bench report: a benchmark as nccl-tests prints it, with percentiles and a comparison.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncopate.artifacts.results.benchmark import (
    BARRIER,
    REDUCING,
    Benchmark,
    Point,
    Series,
    Timing,
)
from syncopate.recipe import NATIVE
from syncopate.reports.tables import ReportTable, titled_table
from syncopate.units import format_bytes, format_count, format_seconds

PERCENTILES = (50, 95, 99)
WIDTH = 122
"""Columns of the widest table, so that narrow terminals wrap lines instead of cutting them."""

ENDED = "ended"
"""In ``metadata`` of a benchmark that was ended: after how many of its sizes."""


def bench_summary(benchmark: Benchmark) -> RenderableType:
    """Return a benchmark in short: how it was taken, and the fastest contender at each size."""
    parts: list[RenderableType] = [_head(benchmark), _fastest(benchmark)]
    parts += [_against(benchmark, peer) for peer in benchmark.series if peer.peer]
    return Group(*parts, _foot(benchmark))


def bench_report(benchmark: Benchmark) -> RenderableType:
    """Return a benchmark's summary, two tables per contender, and the contenders' times."""
    parts: list[RenderableType] = [bench_summary(benchmark)]
    for series in benchmark.series:
        parts += [_bandwidths(benchmark, series), _percentiles(series)]
    if len(benchmark.series) > 1:
        parts.append(_times(benchmark))
    parts += [_ratios(benchmark, peer) for peer in benchmark.series if peer.peer]
    return Group(*parts)


def size_line(benchmark: Benchmark) -> str:
    """Return the largest size measured in a line: as the table of the fastest has it.

    Example:
        ``all_reduce 1.0 MiB: ring 1.80 ms, 0.874 GB/s; next gloo, 2.00x``
    """
    size, first, time, busbw, *others = _fastest_row(benchmark, -1)
    then = f"; next {', '.join(others)}" if others else ""
    return f"{benchmark.collective} {size}: {first} {time}, {busbw} GB/s{then}"


def topology_line(hosts: Sequence[str]) -> str:
    """Return where the ranks are: ``"8 ranks on 2 hosts, 4 on each"``."""
    counts = [hosts.count(host) for host in dict.fromkeys(hosts)]
    ranks = format_count(len(hosts), "rank")
    if len(counts) == 1:
        return f"{ranks} on 1 host"
    spread = f"{counts[0]} on each" if len(set(counts)) == 1 else f"{counts} on them"
    return f"{ranks} on {len(counts)} hosts, {spread}"


def algorithm_text(contender: str, point: Point) -> str:
    """Return what ran at a point as far as the contender's name does not say it; may be empty."""
    named = contender.split(":")
    parts = [] if point.algorithm in ("", named[0]) else [point.algorithm]
    for name, value in sorted(point.options.items()):
        text = value if isinstance(value, int) else "x".join(str(part) for part in value)
        # The order of the ranks is the same at all sizes, and as long as there are ranks.
        if name != "order" and f"{name}={text}" not in named:
            parts.append(f"{name}={text}")
    return ":".join(parts)


def _head(benchmark: Benchmark) -> Text:
    calls = "separated by barriers" if benchmark.mode == BARRIER else "back to back"
    timing = benchmark.series[0].points[0].in_place
    meta = benchmark.metadata
    versions = ", ".join(
        f"{name} {meta[name]}" for name in ("syncopate", "torch", "mpi") if name in meta
    )
    return Text.assemble(
        (benchmark.collective, "bold"),
        f": {topology_line(benchmark.hosts)}{'; ' + versions if versions else ''}\n"
        f"{len(timing.samples_s)} calls after {benchmark.warmup} to warm up, {calls}; each call's "
        "time is the maximum over ranks\n"
        "size is the total buffer; out of place is a copy of the input and the collective there",
    )


def _fastest(benchmark: Benchmark) -> Table:
    """Return the contender with the least in-place p50 at each size, its busbw, and the next."""
    table = _table(f"{benchmark.collective}: the fastest in place, by p50")
    table.add_figures("size")
    table.add_column("fastest", overflow="fold")
    table.add_figures("p50", "busbw\nGB/s")
    if len(benchmark.series) > 1:
        table.add_column("next", overflow="fold")
        table.add_figures("takes")
    for index in range(len(benchmark.series[0].points)):
        table.add_row(*_fastest_row(benchmark, index))
    return table


def _fastest_row(benchmark: Benchmark, index: int) -> list[str]:
    """Return the cells of one size in the table of the fastest."""
    nbytes = benchmark.series[0].points[index].nbytes
    times_s = {s.contender: s.points[index].in_place.percentile_s(50) for s in benchmark.series}
    first, *others = sorted(times_s, key=times_s.__getitem__)
    best_s = times_s[first]
    cells = [
        format_bytes(nbytes),
        first,
        format_seconds(best_s),
        f"{benchmark.busbw_bytes_per_s(nbytes, best_s) / 1e9:.3f}",
    ]
    if others:
        ratio = f"{times_s[others[0]] / best_s:.2f}x" if best_s > 0 else "-"
        cells += [others[0], ratio]
    return cells


def _against(benchmark: Benchmark, peer: Series) -> Text:
    """At how many sizes one of ours is faster than a peer, and by how much.

    The backend's own is none of ours.
    """
    own = [one for one in benchmark.series if not one.peer and one.contender != NATIVE]
    ratios = []
    for theirs, *row in zip(peer.points, *(series.points for series in own), strict=True):
        best_s = min((point.in_place.percentile_s(50) for point in row), default=0.0)
        if best_s > 0:
            ratios.append(theirs.in_place.percentile_s(50) / best_s)
    if not ratios:
        return Text(f"nothing of ours to compare with {peer.contender}")
    ahead = sum(ratio > 1 for ratio in ratios)
    sizes = format_count(len(ratios), "size")
    median = statistics.median(ratios)
    return Text(
        f"the best of ours is faster than {peer.contender} at {ahead} of {sizes}: "
        f"{min(ratios):.2f}x to {max(ratios):.2f}x its speed, median {median:.2f}x"
    )


def _bandwidths(benchmark: Benchmark, series: Series) -> Table:
    table = _table(f"{benchmark.collective} ({series.contender})")
    table.add_figures("size\nB", "count")
    table.add_column("dtype", no_wrap=True)
    table.add_column("redop", no_wrap=True)
    table.add_figures("root")
    for place in ("out of place\n", "in place\n"):
        table.add_figures(f"{place}time us", "algbw\nGB/s", "busbw\nGB/s", "#wrong")
    for point in series.points:
        table.add_row(
            str(point.nbytes),
            str(point.count),
            benchmark.dtype,
            "sum" if benchmark.collective in REDUCING else "none",
            str(benchmark.root),
            *_cells(benchmark, point.nbytes, point.out_of_place),
            *_cells(benchmark, point.nbytes, point.in_place),
        )
    table.caption = f"average busbw {benchmark.average_busbw_bytes_per_s(series) / 1e9:.3f} GB/s"
    return table


def _cells(benchmark: Benchmark, nbytes: int, timing: Timing) -> list[str | Text]:
    wrong: str | Text = "N/A" if timing.wrong < 0 else str(timing.wrong)
    return [
        f"{timing.time_s * 1e6:.2f}",
        f"{benchmark.algbw_bytes_per_s(nbytes, timing.time_s) / 1e9:.3f}",
        f"{benchmark.busbw_bytes_per_s(nbytes, timing.time_s) / 1e9:.3f}",
        Text(str(wrong), style="bold red") if timing.wrong > 0 else wrong,
    ]


def _percentiles(series: Series) -> Table:
    table = _table(f"{series.contender}: percentiles in us")
    table.add_figures("size\nB")
    runs = [algorithm_text(series.contender, point) for point in series.points]
    if any(runs):
        table.add_column("runs", no_wrap=True)
    for place in ("out of place\n", "in place\n"):
        for percent in PERCENTILES:
            head = place if percent == PERCENTILES[0] else "\n"
            table.add_figures(f"{head}p{percent}")
    table.add_figures("samples")
    for point, ran in zip(series.points, runs, strict=True):
        table.add_row(
            str(point.nbytes),
            *([ran] if any(runs) else []),
            *(
                f"{timing.percentile_s(percent) * 1e6:.2f}"
                for timing in (point.out_of_place, point.in_place)
                for percent in PERCENTILES
            ),
            str(len(point.in_place.samples_s)),
        )
    return table


def _times(benchmark: Benchmark) -> Table:
    """In-place p50 by size and contender; a star marks the fastest of each size."""
    table = _by_contender(f"{benchmark.collective}: in-place p50, * the fastest", benchmark.series)
    for row in zip(*(series.points for series in benchmark.series), strict=True):
        times_s = [point.in_place.percentile_s(50) for point in row]
        fastest = times_s.index(min(times_s))
        cells = [
            Text(f"*{format_seconds(time_s)}", style="bold green")
            if index == fastest
            else Text(format_seconds(time_s))
            for index, time_s in enumerate(times_s)
        ]
        table.add_row(str(row[0].nbytes), *cells)
    return table


def _ratios(benchmark: Benchmark, peer: Series) -> Table:
    own = [series for series in benchmark.series if not series.peer]
    table = _by_contender(f"times {peer.contender}'s speed", own)
    for theirs, *row in zip(peer.points, *(series.points for series in own), strict=True):
        their_s = theirs.in_place.percentile_s(50)
        times_s = [point.in_place.percentile_s(50) for point in row]
        cells = [f"{their_s / time_s:.2f}x" if time_s > 0 else "-" for time_s in times_s]
        table.add_row(str(theirs.nbytes), *cells)
    return table


def _by_contender(title: str, series: Sequence[Series]) -> ReportTable:
    table = _table(title)
    narrow = (one.contender.replace("_", "\n").replace(":", "\n") for one in series)
    table.add_figures("size\nB", *narrow)
    return table


def _foot(benchmark: Benchmark) -> Text:
    verified = _verified(benchmark)
    if ENDED not in benchmark.metadata:
        return verified
    return Text(f"ended {benchmark.metadata[ENDED]}\n", style="yellow").append_text(verified)


def _verified(benchmark: Benchmark) -> Text:
    points = [p for series in benchmark.series for p in series.points]
    if all(p.in_place.wrong < 0 for p in points):
        return Text("results were not verified", style="dim")
    if benchmark.wrong:
        return Text(f"{benchmark.wrong} wrong elements: {benchmark.culprits}", style="bold red")
    return Text("every result verified, none wrong", style="dim")


def _table(title: str) -> ReportTable:
    table = titled_table(title)
    table.min_width = len(title) + 1  # a title is folded to its table's width
    return table
