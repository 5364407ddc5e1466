"""Bench page: a benchmark as one HTML file with plots that can be looked into.

Time and bus bandwidth against the size, in and out of place, a line for the median and a band for
most of the samples; below, every number and everything needed to measure it again. Each number has
its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from syncopate.artifacts.results.benchmark import (
    BARRIER,
    BUS_FACTORS,
    Benchmark,
    Point,
    Series,
    Timing,
)
from syncopate.recipe import NATIVE
from syncopate.reports.bench import algorithm_text, topology_line
from syncopate.reports.pages.page import render_page
from syncopate.units import format_bytes, format_seconds

BANDS = {"half": (25, 75), "most": (5, 95)}
"""What a band of a plot may hold of the samples -> the percentiles between which it lies."""

_COLOURS = (
    "#2f6fde",
    "#d9480f",
    "#12866f",
    "#9c36b5",
    "#c2820a",
    "#c2255c",
    "#0b7285",
    "#5f7a0f",
    "#7048e8",
    "#8d5524",
)
_PEER_COLOURS = ("#6b7280", "#a0763a", "#4b5563")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star")
_PEER_DASHES = ("dash", "dot", "dashdot")


def bench_page(benchmark: Benchmark) -> str:
    """Return the page of a benchmark.

    Raises:
        SyncopateError: the packages that make pages are not installed.
    """
    return render_page(
        "bench.html",
        _data(benchmark),
        title=f"{benchmark.collective} on {benchmark.world_size} ranks",
        benchmark=benchmark,
        topology=topology_line(benchmark.hosts),
        calls="separated by barriers" if benchmark.mode == BARRIER else "back to back",
        samples=len(benchmark.series[0].points[0].in_place.samples_s),
        bus_factor=BUS_FACTORS[benchmark.collective](benchmark.world_size),
        verdict=_verdict(benchmark),
        highlights=_highlights(benchmark),
        tables=[_table(benchmark, series) for series in benchmark.series],
        bands=BANDS,
        facts=dict(sorted(benchmark.metadata.items())),
        date=benchmark.metadata.get("date", "")[:10],
        command=benchmark.metadata.get("command", ""),
    )


def _data(benchmark: Benchmark) -> dict[str, Any]:
    sizes = [point.nbytes for point in benchmark.series[0].points]
    return {
        "sizes": sizes,
        "labels": [format_bytes(size) for size in sizes],
        "factor": BUS_FACTORS[benchmark.collective](benchmark.world_size),
        "bands": BANDS,
        "series": [_line(series, *_look(benchmark, series)) for series in benchmark.series],
    }


def _look(benchmark: Benchmark, series: Series) -> tuple[str, str, str]:
    """Return colour, dash and symbol of a contender."""
    index = [one for one in benchmark.series if one.peer == series.peer].index(series)
    if series.peer:
        dash = _PEER_DASHES[index % len(_PEER_DASHES)]
        return _PEER_COLOURS[index % len(_PEER_COLOURS)], dash, "x"
    symbol = _SYMBOLS[index % len(_SYMBOLS)]
    return _COLOURS[index % len(_COLOURS)], "solid", symbol


def _line(series: Series, colour: str, dash: str, symbol: str) -> dict[str, Any]:
    return {
        "name": series.contender,
        "peer": series.peer,
        "colour": colour,
        "dash": dash,
        "symbol": symbol,
        "runs": [algorithm_text(series.contender, point) for point in series.points],
        "in": _quantiles(point.in_place for point in series.points),
        "out": _quantiles(point.out_of_place for point in series.points),
    }


def _quantiles(timings: Iterable[Timing]) -> dict[str, list[float]]:
    found = list(timings)
    wanted = {"p50": 50, "p95": 95}
    for name, (low, high) in BANDS.items():
        wanted |= {f"{name} low": low, f"{name} high": high}
    return {
        name: [timing.percentile_s(percent) for timing in found] for name, percent in wanted.items()
    }


def _verdict(benchmark: Benchmark) -> tuple[str, str]:
    """Return a word for the style and a sentence about the results."""
    timings = [p.in_place for s in benchmark.series for p in s.points]
    if all(timing.wrong < 0 for timing in timings):
        return "unknown", "results were not verified"
    if benchmark.wrong:
        return "bad", f"{benchmark.wrong} wrong elements"
    return "good", "every result verified, none wrong"


def _highlights(benchmark: Benchmark) -> list[tuple[str, str, str]]:
    """Return what to look at first: a figure, what it is, and where; in place, by p50."""
    own = [series for series in benchmark.series if not series.peer] or list(benchmark.series)
    cells = [(series, point) for series in own for point in series.points]
    quick, least = min(cells, key=lambda cell: _p50(cell[1]))
    found = [
        (
            format_seconds(_p50(least)),
            "lowest time",
            f"{quick.contender} at {format_bytes(least.nbytes)}",
        )
    ]
    if benchmark.world_size > 1:
        wide, most = max(cells, key=lambda cell: _busbw(benchmark, cell[1]))
        rate = f"{_busbw(benchmark, most) / 1e9:.2f} GB/s"
        where = f"{wide.contender} at {format_bytes(most.nbytes)}"
        found.append((rate, "highest bus bandwidth", where))
    ours = [series for series in own if not series.peer and series.contender != NATIVE]
    return found + [_against(ours, peer) for peer in benchmark.series if peer.peer and ours]


def _against(own: Sequence[Series], peer: Series) -> tuple[str, str, str]:
    """Return how often the best of our own is at least as fast as a peer, and by how much."""
    ratios = []
    for index, theirs in enumerate(peer.points):
        best_s = min(_p50(series.points[index]) for series in own)
        ratios.append(_p50(theirs) / best_s if best_s > 0 else 1.0)
    wins = sum(ratio >= 1 for ratio in ratios)
    spread = f"{min(ratios):.2f}x to {max(ratios):.2f}x its speed, the best of ours at each size"
    return f"{wins} of {len(ratios)} sizes", f"at least as fast as {peer.contender}", spread


def _p50(point: Point) -> float:
    return point.in_place.percentile_s(50)


def _busbw(benchmark: Benchmark, point: Point) -> float:
    return benchmark.busbw_bytes_per_s(point.nbytes, _p50(point))


def _table(benchmark: Benchmark, series: Series) -> dict[str, Any]:
    """Return one contender's rows as nccl-tests prints them."""
    return {
        "name": series.contender,
        "peer": series.peer,
        "rows": [
            [
                format_bytes(point.nbytes),
                str(point.count),
                algorithm_text(series.contender, point) or "-",
                *_cells(benchmark, point.nbytes, point.out_of_place),
                *_cells(benchmark, point.nbytes, point.in_place),
                str(len(point.in_place.samples_s)),
            ]
            for point in series.points
        ],
    }


def _cells(benchmark: Benchmark, nbytes: int, timing: Timing) -> list[str]:
    return [
        f"{timing.time_s * 1e6:.2f}",
        f"{benchmark.algbw_bytes_per_s(nbytes, timing.time_s) / 1e9:.3f}",
        f"{benchmark.busbw_bytes_per_s(nbytes, timing.time_s) / 1e9:.3f}",
        *(f"{timing.percentile_s(percent) * 1e6:.2f}" for percent in (50, 95, 99)),
        "-" if timing.wrong < 0 else str(timing.wrong),
    ]
