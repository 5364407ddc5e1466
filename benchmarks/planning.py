"""How long the exact planner takes: ``optimal`` on 100, 1,000 and 10,000 gradients.

    python benchmarks/planning.py            # a table
    python benchmarks/planning.py --json planning.json     # every sample too

Instances are synthetic and deterministic. Sizes alternate between small and large as biases and
weights do. Gradients are ready either spread over the time their communication takes, or all at
once, which leaves the planner no order to exploit: its worst case. Costs are one line, or the
envelope of four measured-like curves of 22 sizes each, with noise. The last kind has two dtypes,
ready over time.

Times are of one call on one core, clocked with ``perf_counter``; the garbage collector stays on.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from syncopate.artifacts.cluster import CollectiveCurve, CurvePoint, LinearFit
from syncopate.costs.model.functions import CurveCost, Envelope, LinearCost
from syncopate.output import write_output
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.problem import Problem
from syncopate.units import format_seconds

LENGTHS = (100, 1_000, 10_000)
TARGETS_S = {1_000: 0.050, 10_000: 3.0}
"""Gradients -> what a plan may take on one slow core."""


@dataclass(frozen=True)
class Result:
    """Samples of one kind of instance at one length.

    Attributes:
        kind: what it is.
        gradients: how many.
        pieces: pieces of the cost function.
        buckets: of the optimal partition.
        samples_s: duration of each call.
    """

    kind: str
    gradients: int
    pieces: int
    buckets: int
    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The figure that is compared with the target."""
        return statistics.median(self.samples_s)


def _line() -> LinearCost:
    return LinearCost(LinearFit(a_s=1e-3, b_s_per_byte=9e-9))


def _curves() -> Envelope:
    """Four noisy curves, 64 B to 128 MiB, that trade start-up time for bandwidth."""
    rng = np.random.default_rng(2)
    costs = {}
    for index in range(4):
        startup_s, byte_s = 3e-4 * (index + 1), 9e-9 / (index + 1) ** 0.5
        points = []
        for octave in range(22):
            nbytes = 64 << octave
            bend = 1 + 0.3 * np.sin(octave)
            samples = (startup_s + byte_s * nbytes * bend) * rng.lognormal(0, 0.1, 9)
            points.append(CurvePoint(nbytes=nbytes, samples_s=tuple(samples.tolist())))
        fit = LinearFit(a_s=startup_s, b_s_per_byte=byte_s)
        name = f"algorithm {index}"
        costs[name] = CurveCost(
            CollectiveCurve(collective="all_reduce", algorithm=name, points=tuple(points), fit=fit)
        )
    return Envelope(costs)


def _sizes(length: int) -> np.ndarray:
    rng = np.random.default_rng(length)
    sizes = rng.integers(1_000, 400_000, length)
    sizes[1::2] = rng.integers(100, 2_000, len(sizes[1::2]))
    return sizes * 4


def _spread(length: int) -> np.ndarray:
    rng = np.random.default_rng(length + 1)
    return np.cumsum(rng.exponential(float(_sizes(length).mean()) * 5e-9, length))


def spread_line(length: int) -> Problem:
    """Over time; one line."""
    return Problem(_spread(length), _sizes(length), _line())


def spread_curves(length: int) -> Problem:
    """Over time; four curves."""
    return Problem(_spread(length), _sizes(length), _curves())


def at_once_line(length: int) -> Problem:
    """At once; one line."""
    return Problem(np.zeros(length), _sizes(length), _line())


def at_once_curves(length: int) -> Problem:
    """At once; four curves."""
    return Problem(np.zeros(length), _sizes(length), _curves())


def two_dtypes(length: int) -> Problem:
    """Two dtypes; four curves."""
    half = np.arange(length) % 3 == 0
    sizes = _sizes(length)
    nbytes = np.stack([np.where(half, sizes, 0), np.where(half, 0, sizes // 2)])
    return Problem(_spread(length), nbytes, _curves())


KINDS: tuple[Callable[[int], Problem], ...] = (
    spread_line,
    spread_curves,
    at_once_line,
    at_once_curves,
    two_dtypes,
)


def measure(kind: Callable[[int], Problem], length: int, repeats: int) -> Result:
    """Time ``optimal`` on one instance, after one call to warm up."""
    problem = kind(length)
    partition = optimal(problem)
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        optimal(problem)
        samples.append(time.perf_counter() - start)
    return Result(
        kind=(kind.__doc__ or kind.__name__).rstrip("."),
        gradients=length,
        pieces=len(problem.cost.pieces.upper_bytes) - 1,
        buckets=len(partition),
        samples_s=tuple(samples),
    )


def show(results: Sequence[Result], console: Console) -> None:
    """Print the medians, a row per kind, a column per length."""
    table = Table(title="Time to plan exactly (median)", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("instance")
    table.add_column("pieces", justify="right")
    for length in LENGTHS:
        table.add_column(f"{length:,}", justify="right", no_wrap=True)
    for kind in dict.fromkeys(result.kind for result in results):
        row = [result for result in results if result.kind == kind]
        cells = []
        for result in row:
            target = TARGETS_S.get(result.gradients)
            style = "none" if target is None else "green" if result.median_s <= target else "red"
            cells.append(f"[{style}]{format_seconds(result.median_s)}[/]")
        table.add_row(kind, str(row[0].pieces), *cells)
    table.add_section()
    limits = (TARGETS_S.get(length) for length in LENGTHS)
    table.add_row("target", "", *("" if t is None else f"< {format_seconds(t)}" for t in limits))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="calls per instance (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="one call per instance, to see that it runs"
    )
    parser.add_argument("--json", type=Path, help="where to write every sample")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    repeats = 1 if options.quick else options.repeats
    results = [measure(kind, length, repeats) for kind in KINDS for length in LENGTHS]
    show(results, Console())
    if not options.json:
        return
    rows = [asdict(result) | {"median_s": result.median_s} for result in results]
    host = {"python": platform.python_version(), "machine": platform.machine()}
    report = {"host": host, "targets_s": TARGETS_S, "results": rows}
    write_output(options.json, json.dumps(report, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
