"""Simulation at scale: what a plan, an iteration and its timeline take on many ranks.

    python benchmarks/simulation.py                      # a table
    python benchmarks/simulation.py --json simulation.json
    python benchmarks/simulation.py --quick              # little, to see that it runs

The model is ResNet-50, whose 161 gradients are ready at the times of a published profile. The
network is flat, 10 Gbit/s, or has levels: GPUs in a host, hosts in a rack, racks, whose hosts have
links of 100 Gbit/s. Racks of 12 and of 20 hosts in turn are ones of unequal size. Each row is
played in a process of its own: planned, simulated, written, read, and its phases taken, each
clocked with ``perf_counter``. Memory is the most that the process had, torch included, which the
profile loads. Ranks that do the same are kept once; with jitter every rank differs from the others,
and all of their spans are kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contest.profiles import resnet50_profile

from syncopate.analysis.phases import phases
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, Size, sizes_text
from syncopate.artifacts.timeline import Timeline
from syncopate.output import write_output
from syncopate.planning.planner import make_plan
from syncopate.simulation import Variation, simulate
from syncopate.units import format_bytes, format_seconds

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """What is played.

    Attributes:
        sizes: of the network's levels, innermost first; one level is flat, a host for each rank.
        iterations: how many.
        policy: of the plan; ``"wfbp"`` has a bucket for each gradient.
        jitter: of the ranks' computation.
    """

    sizes: tuple[Size, ...]
    iterations: int
    policy: str
    jitter: float = 0.0

    def cluster(self) -> Cluster:
        """Return the machines."""
        if len(self.sizes) == 1:
            (ranks,) = self.sizes
            return Cluster.preset("10gbe", ranks)
        levels = tuple(
            replace(level, size=size) for level, size in zip(LEVELS, self.sizes, strict=True)
        )
        return Cluster(name=sizes_text(levels), levels=levels, reduction_s_per_byte=5e-12)


LEVELS = (
    Level(name="device", size=1, latency_s=5e-6, bandwidth_bytes_per_s=12e9),
    Level(name="host", size=1, latency_s=10e-6, bandwidth_bytes_per_s=94e9 / 8),
    Level(name="rack", size=1, latency_s=15e-6, bandwidth_bytes_per_s=8 * 94e9 / 8),
)
"""Of the networks with levels; sizes are a case's own."""

THREE = (8, 16, 128)
UNEQUAL = (8, (12, 20) * 64, 128)
CASES = (
    Case((1024,), 3, "optimal"),
    Case((1024,), 3, "wfbp"),
    Case((16_384,), 1, "optimal"),
    Case((16_384,), 1, "wfbp"),
    Case((16_384,), 3, "wfbp"),
    Case(THREE, 1, "auto"),
    Case(UNEQUAL, 1, "auto"),
    Case((8, (6, 10) * 4, 8), 3, "auto"),
    Case((64,), 3, "optimal", jitter=0.05),
    Case((1024,), 1, "optimal", jitter=0.05),
)
QUICK = (
    Case((256,), 1, "optimal"),
    Case((4,), 1, "optimal", jitter=0.05),
    Case((2, (1, 3), 2), 1, "optimal"),
)

TARGETS = "16,384 ranks: plan < 3 s, < 500 MB, simulate < 1 s; 1,024 ranks' file < 2 MB"


@dataclass(frozen=True)
class Result:
    """What it took.

    Attributes:
        case: what was played.
        ranks: how many.
        plan_s: the plan.
        simulate_s: the simulation, all iterations.
        save_s: writing the timeline.
        load_s: reading it.
        phases_s: the phases of every rank.
        file_bytes: of the file.
        spans: of all ranks.
        memory_bytes: the most that the process had.
    """

    case: Case
    ranks: int
    plan_s: float
    simulate_s: float
    save_s: float
    load_s: float
    phases_s: float
    file_bytes: int
    spans: int
    memory_bytes: int


def timed(what: Callable[[], T]) -> tuple[float, T]:
    """Return how long something takes, and what it returns."""
    since_s = time.perf_counter()
    found = what()
    return time.perf_counter() - since_s, found


def played(case: Case) -> Result:
    """Play one case in this process."""
    workload, cluster = resnet50_profile(), case.cluster()
    plan_s, plan = timed(lambda: make_plan(workload, cluster, case.policy))
    varied = Variation(jitter=case.jitter)
    simulate_s, timeline = timed(
        lambda: simulate(workload, plan, cluster, iterations=case.iterations, variation=varied)
    )
    with tempfile.TemporaryDirectory() as folder:
        save_s, path = timed(lambda: timeline.save(Path(folder) / "timeline.json"))
        load_s, read = timed(lambda: Timeline.load(path))
        file_bytes = path.stat().st_size
    phases_s, found = timed(lambda: phases(read))
    assert len(found) == cluster.world_size * case.iterations
    return Result(
        case=case,
        ranks=cluster.world_size,
        plan_s=plan_s,
        simulate_s=simulate_s,
        save_s=save_s,
        load_s=load_s,
        phases_s=phases_s,
        file_bytes=file_bytes,
        spans=len(read.spans),
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def table(results: list[Result]) -> Table:
    """Return the results as a table."""
    found = Table(box=box.SIMPLE)
    heads = (
        "ranks",
        "network",
        "iterations",
        "policy",
        "jitter",
        "plan",
        "simulate",
        "save",
        "load",
    )
    for head in (*heads, "phases", "spans", "file", "memory"):
        found.add_column(head, justify="right")
    for one in results:
        case = one.case
        times_s = (one.plan_s, one.simulate_s, one.save_s, one.load_s, one.phases_s)
        found.add_row(
            f"{one.ranks:,}",
            _network(case),
            str(case.iterations),
            case.policy,
            f"{case.jitter:g}",
            *map(format_seconds, times_s),
            f"{one.spans:,}",
            format_bytes(one.file_bytes),
            format_bytes(one.memory_bytes),
        )
    return found


def _network(case: Case) -> str:
    """Return the sizes of a case's levels in a few words."""
    if len(case.sizes) == 1:
        return "flat"
    return " x ".join(
        str(size) if isinstance(size, int) else "+".join(map(str, size[:2])) + ".."
        for size in case.sizes
    )


def main() -> int:
    """Play every case, and print the table."""
    parser = argparse.ArgumentParser(description="Simulation at scale.")
    parser.add_argument("--quick", action="store_true", help="little, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    results = []
    for case in QUICK if options.quick else CASES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(played, (case,)))
    console = Console(width=150)
    console.print(table(results))
    console.print(f"wanted: {TARGETS}")
    if options.json:
        about = {"machine": platform.processor() or platform.machine(), "python": sys.version}
        rows = [asdict(one) for one in results]
        write_output(options.json, json.dumps({**about, "results": rows}, indent=1).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
