"""A ring's all-reduce, played by us and by the network library of ASTRA-sim, beside each other.

    git clone https://github.com/astra-sim/astra-network-analytical
    python benchmarks/astra_network.py astra-network-analytical
    python benchmarks/astra_network.py astra-network-analytical --ranks 64 256 --json astra.json
    python benchmarks/astra_network.py --quick          # to see that it runs, without the library

The library's part that knows contention is compiled with `astra/ring.cpp` by the C++ compiler of
this machine ($CXX, or g++). It plays every chunk of every link as an event. Ours is the flow kernel
(`simulation/flows.py`), which plays every message too, and the price (`costs/schedule`), which is
what planning and `syncopate simulate` take. Simulated times should be the same. What it takes to
find them is clocked in turns: of the whole program there, of the call here.

A buffer of 100 MiB goes over links of 10 Gbit/s and 10 us.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level
from syncopate.costs.model.collective import fixed_cost
from syncopate.output import write_output
from syncopate.schedules.registry import build
from syncopate.simulation.flows import Case, flow_seconds
from syncopate.units import GIB, MIB, format_seconds

PROGRAM = Path(__file__).parent / "astra" / "ring.cpp"
PARTS = (
    "common/NetworkFunction.cpp",
    "common/event-queue/*.cpp",
    "congestion_aware/network/*.cpp",
    "congestion_aware/basic-topology/*.cpp",
    "congestion_aware/topology/Topology.cpp",
)
"""What is compiled of the library: its reader of YAML is left out."""

RANKS = (16, 64, 256, 1024)
NBYTES = 100 * MIB
BYTES_PER_S, LATENCY_NS = 10e9 / 8, 10_000


@dataclass(frozen=True)
class Found:
    """One size of ring.

    Attributes:
        ranks: how many.
        theirs_s: the time that the library simulates; None: it was not given.
        kernel_s: the time that our kernel simulates.
        price_s: our price.
        their_runs_s: what it takes to find each, one for each turn.
        kernel_runs_s: likewise.
        price_runs_s: likewise.
    """

    ranks: int
    theirs_s: float | None
    kernel_s: float
    price_s: float
    their_runs_s: list[float]
    kernel_runs_s: list[float]
    price_runs_s: list[float]


def compiled(library: Path, folder: Path) -> Path:
    """Return the program.

    Raises:
        SystemExit: the folder holds no such library, or the compiler refused.
    """
    sources = [str(path) for part in PARTS for path in sorted(library.glob(part))]
    if not (library / PARTS[0]).exists():
        sys.exit(f"error: {library}: a checkout of astra-network-analytical is needed here")
    own = library / "include" / "astra-network-analytical"
    program = folder / "ring"
    call = [os.environ.get("CXX", "g++"), "-std=c++17", "-O3", "-DNDEBUG", f"-I{own}"]
    call += [f"-I{library / 'include'}", str(PROGRAM), *sources, "-o", str(program)]
    if subprocess.run(call, check=False).returncode:
        sys.exit("error: the library could not be compiled; what the compiler said is above")
    return program


def played(program: Path | None, ranks: int, turns: int) -> Found:
    """Play one ring everywhere, in turns."""
    level = Level(
        name="host", size=ranks, latency_s=LATENCY_NS / 1e9, bandwidth_bytes_per_s=BYTES_PER_S
    )
    cluster = Cluster(name="ring", levels=(level,), reduction_s_per_byte=0.0)
    schedule = build("all_reduce", "ring", ranks, 0)
    chunk = NBYTES // ranks
    nbytes = chunk * ranks
    call = [program or "", str(ranks), str(chunk), repr(BYTES_PER_S / GIB), str(LATENCY_NS)]

    def theirs() -> float:
        return int(subprocess.check_output(call)) / 1e9

    def kernel() -> float:
        return float(flow_seconds([Case(schedule, cluster, nbytes)])[0])

    ways: tuple[Callable[[], float | None], ...] = (
        theirs if program is not None else lambda: None,
        kernel,
        lambda: float(fixed_cost(cluster, "all_reduce", "ring", {})(nbytes)),
    )
    simulated: list[Any] = [None] * len(ways)
    took: list[list[float]] = [[] for _ in ways]
    for _ in range(turns):
        for index, way in enumerate(ways):
            since_s = time.perf_counter()
            simulated[index] = way()
            took[index].append(time.perf_counter() - since_s)
    return Found(ranks, *simulated, *took)


def table(results: list[Found]) -> Table:
    """Return the results as a table."""
    found = Table(box=box.SIMPLE)
    heads = ("ranks", "ASTRA-sim", "kernel", "price", "took: ASTRA-sim", "kernel", "price")
    for head in heads:
        found.add_column(head, justify="right")
    for one in results:
        known_s = one.kernel_s if one.theirs_s is None else one.theirs_s
        ours = (f"{value / known_s - 1:+.3%}" for value in (one.kernel_s, one.price_s))
        runs = (one.their_runs_s, one.kernel_runs_s, one.price_runs_s)
        took = (format_seconds(statistics.median(each)) for each in runs)
        theirs = "-" if one.theirs_s is None else format_seconds(one.theirs_s)
        found.add_row(f"{one.ranks:,}", theirs, *ours, *took)
    return found


def main() -> int:
    """Compile, play every size, and print the table."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=lines[0],
        epilog="\n".join(lines[1:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, nargs="?", help="of astra-network-analytical")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="of each ring")
    parser.add_argument("--turns", type=int, default=5, help="of each (5)")
    parser.add_argument("--quick", action="store_true", help="one small ring, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.turns = (16,), 1
    elif options.checkout is None:
        parser.error("name a checkout of astra-network-analytical, or give --quick")
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(options.checkout, Path(folder)) if options.checkout else None
        results = [played(program, ranks, options.turns) for ranks in options.ranks]
    Console(width=110).print(table(results))
    if options.json:
        rows = [asdict(one) for one in results]
        write_output(options.json, json.dumps(rows, indent=1).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
