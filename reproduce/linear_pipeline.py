"""LP's Tables 1 and 2: collectives by formula and by schedule, and the training that they carry.

    python reproduce/linear_pipeline.py                        # tables
    python reproduce/linear_pipeline.py --json                 # the same as JSON
    python reproduce/linear_pipeline.py --measured lab.json    # another measurement than ours
    python reproduce/linear_pipeline.py --training lab.json    # another one of Table 2
    python reproduce/linear_pipeline.py --quick                # 2 and 4 ranks alone

The paper (Wang et al. 2017) compares broadcast, reduce and all-reduce by linear pipeline (LP),
minimum spanning tree (MST) and bidirectional exchange (BE). What it takes as given:

* α = 0.1 us and 1/β = 1 GB/s, from Section 3.2; reduction is free there.
* b = 64 KB, Section 3.2; n = 51 MB, GoogLeNet, Table 2.
* One network level. Its Fig. 4 jumps where 5 GPUs no longer share a PCI-E switch.

Its measured speed-ups are over Open MPI (BE), which stages in host memory and reduces on the CPU,
and over Caffe (MST), which reduces after the whole message; the model has neither.

Two things the table says that the paper does not. Its all-reduce by LP moves 2 n bytes through
every rank in the middle of the chain, more than BE's 2 (p-1)/p n: LP wins a broadcast or a reduce,
but not an all-reduce. And of two ranks neither is in the middle, so that their all-reduce takes
half as long as any other.

Table 2 is made in ``bsp_sgd_table.py`` and explained there.

What was measured on emulated hosts stands beside the prices on the same network: Fig. 4 again, and
LP's speed-ups over MST, BE and Gloo's own, which has no price. The measurements are those of
``benchmarks/collectives_lab.py --part pipeline``, in ``data/linear_pipeline_*hosts.json``.

A measurement is a JSON object with ``name``, ``latency_s``, ``bandwidth_bytes_per_s``, optionally
``reduction_s_per_byte`` and ``source``, and ``points``, a list of objects with ``collective``,
``algorithm`` (``native`` for the backend's own), ``world_size``, ``nbytes``, ``seconds`` and, for
LP, optionally ``blocks``.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

import bsp_sgd_table
from figures.comparison import Comparison, comparison_table
from formulas.blocks import best_blocks
from formulas.linear_pipeline import table_1
from syncopate.artifacts.cluster import Cluster
from syncopate.costs.schedule.price import price
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.schedules.registry import NATIVE, build
from syncopate.units import format_bytes

DATA = Path(__file__).parent / "data" / "linear_pipeline.csv"
MEASURED = "linear_pipeline_*hosts.json"
COLLECTIVES = ("broadcast", "reduce", "all_reduce")
ALGORITHMS = ("be", "mst", "lp")
RANKS = (2, 3, 4, 5, 6, 8, 12, 16)
QUICK_RANKS = (2, 4)
ALPHA_S = 1e-7
BYTES_PER_S = 1e9
BLOCK_BYTES = 64 * 1024
NBYTES = 51e6
BLOCKS = round(NBYTES / BLOCK_BYTES)


@dataclass(frozen=True)
class Entry:
    """One entry of Table 1.

    Attributes:
        collective: the row.
        algorithm: the column.
        formula_s: as printed, logarithms rounded up.
        schedule_s: the price of the schedule.
    """

    collective: str
    algorithm: str
    formula_s: float
    schedule_s: float


@dataclass(frozen=True)
class Scaling:
    """One collective at one number of ranks: Fig. 4.

    Attributes:
        collective: which.
        ranks: number of ranks p.
        seconds: algorithm -> price of its schedule, LP with the paper's blocks.
        best_blocks: the number that makes LP cheapest.
        best_s: the price of LP with those.
    """

    collective: str
    ranks: int
    seconds: dict[str, float]
    best_blocks: int
    best_s: float


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured duration, the largest over ranks, in seconds; blocks are LP's."""

    collective: str
    algorithm: str
    world_size: int
    nbytes: float
    seconds: float
    blocks: int | None = None


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measurement of these collectives on a network of one level; see the module."""

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    points: tuple[Point, ...]
    reduction_s_per_byte: float = 0.0
    source: str = ""

    def cluster(self, ranks: int) -> Cluster:
        """Return ``ranks`` on the network of the measurement."""
        return Cluster.flat(
            ranks,
            latency_s=self.latency_s,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            reduction_s_per_byte=self.reduction_s_per_byte,
        )


def cluster(ranks: int) -> Cluster:
    """Return ``ranks`` GPUs on the paper's network."""
    return Cluster.flat(ranks, latency_s=ALPHA_S, bandwidth_bytes_per_s=BYTES_PER_S)


def priced(collective: str, algorithm: str, where: Cluster, nbytes: float, blocks: int) -> float:
    """Return the price of a schedule; ``blocks`` are LP's."""
    options = {"blocks": blocks} if algorithm == "lp" else {}
    return price(build(collective, algorithm, where.world_size, 0, **options), where, nbytes)


def table_one(ranks: int = 4) -> list[Entry]:
    """Return all nine entries of Table 1 on ``ranks`` GPUs."""
    return [
        Entry(
            collective,
            algorithm,
            table_1(collective, algorithm, ranks, BLOCKS).seconds(NBYTES, ALPHA_S, 1 / BYTES_PER_S),
            priced(collective, algorithm, cluster(ranks), NBYTES, BLOCKS),
        )
        for collective in COLLECTIVES
        for algorithm in ALGORITHMS
    ]


def scaling(ranks: Sequence[int] = RANKS) -> list[Scaling]:
    """Return the prices of all collectives for every number of ranks."""
    found = []
    for collective in COLLECTIVES:
        for p in ranks:
            where = cluster(p)
            blocks = best_blocks(collective, "lp", where, NBYTES)
            seconds = {
                algorithm: priced(collective, algorithm, where, NBYTES, BLOCKS)
                for algorithm in ALGORITHMS
            }
            best_s = priced(collective, "lp", where, NBYTES, blocks)
            found.append(Scaling(collective, p, seconds, blocks, best_s))
    return found


def compare_with_paper(rows: Sequence[Scaling]) -> list[Comparison]:
    """Return every figure that the paper prints of its collectives beside ours."""
    at_4 = {row.collective: row.seconds for row in rows if row.ranks == 4}
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    found = []
    for row in csv.DictReader(lines):
        collective, over, value = row["collective"], row["over"], float(row["value"])
        if row["figure"] == "steps":
            steps = build(collective, "lp", 3, blocks=4).rounds
            found.append(Comparison(f"{collective}: steps, 3 x 4 blocks", value, steps, "{:.0f}"))
            continue
        ours = at_4[collective][over] / at_4[collective]["lp"]
        what = f"{collective}: LP over {over.upper()}, 4 GPUs, {row['figure']}"
        found.append(Comparison(what, value, ours, "{:.2f}x"))
    return found


def read_measured(path: Path) -> Measured:
    """Read a measurement.

    Raises:
        ArtifactError: the file is missing or is no measurement.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measured)
    except OSError as error:
        raise ArtifactError(path, error.strerror or str(error)) from error
    except msgspec.DecodeError as error:
        raise ArtifactError(path, f"no measurement: {error}") from error


def compare_with_measured(measured: Measured) -> list[Comparison]:
    """Return every measured duration, as "paper", beside the price on the same network.

    Raises:
        SyncopateError: a collective or an algorithm that there is not, or a size out of range.
    """
    found = []
    for point in measured.points:
        if point.algorithm == NATIVE:
            continue
        price_s, blocks = price_of(point, measured)
        what = f"{point.collective} ({point.algorithm}"
        what += f", {blocks} blocks)" if point.algorithm == "lp" else ")"
        what += f", {point.world_size} ranks, {format_bytes(point.nbytes)}"
        found.append(Comparison(what, point.seconds * 1e3, price_s * 1e3, "{:.3f} ms"))
    return found


def price_of(point: Point, measured: Measured) -> tuple[float, int]:
    """Return the price of what was measured, and LP's number of blocks; 1 for the others."""
    where = measured.cluster(point.world_size)
    blocks = point.blocks
    if point.algorithm == "lp" and blocks is None:
        blocks = best_blocks(point.collective, "lp", where, point.nbytes)
    seconds = priced(point.collective, point.algorithm, where, point.nbytes, blocks or 1)
    return seconds, blocks or 1


@dataclass(frozen=True)
class Beside:
    """LP at one number of ranks, measured beside its price: Fig. 4 on a real network.

    Attributes:
        collective: which.
        ranks: number of ranks p.
        nbytes: size of the message.
        blocks: LP's.
        lp_s: LP's duration, measured and priced.
        over_fewest: the same over that of the fewest ranks.
        speedups: algorithm -> how many times as long it takes, measured and priced; the price of
            Gloo's own is None.
    """

    collective: str
    ranks: int
    nbytes: float
    blocks: int
    lp_s: tuple[float, float]
    over_fewest: tuple[float, float]
    speedups: dict[str, tuple[float, float | None]]


def beside_prices(measured: Measured) -> list[Beside]:
    """Return LP at every number of ranks, size by size; other algorithms where measured too.

    Raises:
        SyncopateError: as :func:`compare_with_measured`.
    """
    found: list[Beside] = []
    first: dict[tuple[str, float], tuple[float, float]] = {}
    order = list(dict.fromkeys(point.collective for point in measured.points))
    points = sorted(measured.points, key=lambda p: (order.index(p.collective), p.world_size))
    for point in (point for point in points if point.algorithm == "lp"):
        where = (point.collective, point.nbytes)
        price_s, blocks = price_of(point, measured)
        fewest = first.setdefault(where, (point.seconds, price_s))
        speedups = {}
        for other in points:
            same = (other.collective, other.nbytes, other.world_size) == (*where, point.world_size)
            if same and other.algorithm != "lp":
                priced_s = None if other.algorithm == NATIVE else price_of(other, measured)[0]
                ratio = None if priced_s is None else priced_s / price_s
                speedups[other.algorithm] = (other.seconds / point.seconds, ratio)
        found.append(
            Beside(
                collective=point.collective,
                ranks=point.world_size,
                nbytes=point.nbytes,
                blocks=blocks,
                lp_s=(point.seconds, price_s),
                over_fewest=(point.seconds / fewest[0], price_s / fewest[1]),
                speedups=speedups,
            )
        )
    return found


def beside_table(measured: Measured) -> Table:
    """Return Fig. 4 as measured; in brackets what the price says."""
    sizes = dict.fromkeys(format_bytes(point.nbytes) for point in measured.points)
    table = Table(
        title=f"Fig. 4 measured: {', '.join(sizes)} on {measured.name} (by price)",
        caption=measured.source or None,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("collective")
    for column in ("p", "LP ms", "/ fewest", "MST / LP", "BE / LP", "Gloo / LP"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in beside_prices(measured):
        cells = [f"{row.lp_s[0] * 1e3:.0f} [dim]({row.lp_s[1] * 1e3:.0f})[/]"]
        cells.append(f"{row.over_fewest[0]:.2f} [dim]({row.over_fewest[1]:.2f})[/]")
        for name in ("mst", "be", NATIVE):
            ours, priced_ratio = row.speedups.get(name, (None, None))
            cell = "" if ours is None else f"{ours:.2f}"
            cells.append(cell + ("" if priced_ratio is None else f" [dim]({priced_ratio:.2f})[/]"))
        table.add_row(row.collective, str(row.ranks), *cells)
    return table


def show(entries: Sequence[Entry], rows: Sequence[Scaling], console: Console) -> None:
    """Print Table 1, the scaling and the figures of the paper."""
    table = Table(title="Table 1: 51 MB on 4 GPUs, ms", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("collective", "algorithm"):
        table.add_column(column)
    for column in ("as printed", "schedule", "printed over schedule"):
        table.add_column(column, justify="right")
    for entry in entries:
        table.add_row(
            entry.collective,
            entry.algorithm.upper(),
            f"{entry.formula_s * 1e3:.2f}",
            f"{entry.schedule_s * 1e3:.2f}",
            f"{entry.formula_s / entry.schedule_s - 1:+.2%}",
        )
    console.print(table)
    scale = Table(
        title="Fig. 4: 51 MB on p GPUs, ms (over 2 GPUs)",
        caption="best: LP with the number of blocks that the cost model takes, in brackets",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    scale.add_column("collective")
    for column in ("p", "BE", "MST", "LP", "LP best"):
        scale.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        at_2 = next(r.seconds for r in rows if r.collective == row.collective)
        cells = [
            f"{row.seconds[name] * 1e3:.1f} [dim]({row.seconds[name] / at_2[name]:.2f})[/]"
            for name in ALGORITHMS
        ]
        best = f"{row.best_s * 1e3:.1f} [dim]({row.best_blocks})[/]"
        scale.add_row(row.collective, str(row.ranks), *cells, best)
    console.print(scale)
    console.print(comparison_table("Beside the paper (Figs. 2 and 3)", compare_with_paper(rows)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the reproduction; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--measured", type=Path, help="a measurement to print beside its prices")
    parser.add_argument("--training", type=Path, help="what bsp_sgd_lab.py wrote")
    parser.add_argument("--quick", action="store_true", help="fewer numbers of ranks")
    options = parser.parse_args(arguments)
    trainings = [options.training] if options.training else bsp_sgd_table.committed()
    ours = sorted(DATA.parent.glob(MEASURED), key=lambda path: (len(path.name), path.name))
    paths = [options.measured] if options.measured else ours
    try:
        measured = [read_measured(path) for path in paths]
        durations = [item for found in measured for item in compare_with_measured(found)]
        beside = [row for found in measured for row in beside_prices(found)]
        labs = [bsp_sgd_table.Lab.load(path) for path in trainings]
    except SyncopateError as error:
        parser.error(str(error))
    entries, rows = table_one(), scaling(QUICK_RANKS) if options.quick else scaling()
    if options.json:
        report = {
            "table_1": [asdict(entry) for entry in entries],
            "scaling": [asdict(row) for row in rows],
            "paper": [item.as_json() for item in compare_with_paper(rows)],
            "measured_ms": [item.as_json() for item in durations],
            "measured_scaling": [asdict(row) for row in beside],
            "table_2": bsp_sgd_table.as_json(labs),
        }
        print(json.dumps(report, indent=1))
        return
    console = Console()
    show(entries, rows, console)
    for found in measured:
        console.print(beside_table(found))
    if options.measured:
        title = f"Measured on {measured[0].name}, beside the price"
        console.print(comparison_table(title, durations, theirs="measured", own="price"))
    bsp_sgd_table.show(console, labs)


if __name__ == "__main__":
    main()
