"""LP's Table 2: communication and computation of an iteration, printed, simulated and measured.

Every collective (MST, BE, LP) with every algorithm of BSP-SGD, numbered as in Section 3: see
[Note: numbers] of ``bsp_sgd.py``. The paper has six of these nine; ``as`` says what it calls them.

Its own figures fit no single network. AlexNet's 256 MB, reduced and broadcast by LP, are 512 MB in
0.084 s, or 6.1 GB/s, where its Section 3.2 counts on 1 GB/s; the same by BE, of which theory says
1.5 times as long, took 12 times as long, because Open MPI stages in host memory and reduces on the
CPU. So the table is simulated twice: at the 1 GB/s of Section 3.2, and at the rate of LP's own
Alg. 2, which puts that cell right and predicts the eight others.

``comm`` is what communication adds to computation; with Alg. 3 a fifth of a broadcast is in it. The
measurement is of a replay at a fraction of the size (``bsp_sgd_lab.py``): computation slept, bytes
sent. Link and bytes are in proportion to 1 GB/s, so that its seconds over the scale are seconds of
the table, and what is left to differ is a network's and a machine's, not that of sizes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from bsp_sgd import ALGORITHMS, bsp_sgd_plan
from bsp_sgd_networks import DATA, network, rows
from figures.comparison import Comparison, comparison_table
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload

RANKS = 4
ALPHA_S = 1e-7
BYTES_PER_S = 1e9
"""Section 3.2."""

COLLECTIVES = ("mst", "be", "lp")
NETWORKS = ("AlexNet", "GoogLeNet")
MEASURED = "bsp_sgd_*hosts.json"
RATE_FROM = ("lp", 2)
"""The cell whose communication tells the rate of the paper's machine."""


class Place(NamedTuple):
    """A cell of the table: which collectives, and which algorithm by Section 3's number."""

    collective: str
    number: int


PLACES = tuple(Place(*place) for place in product(COLLECTIVES, ALGORITHMS))


@dataclass(frozen=True)
class Profile:
    """What an iteration spends; seconds.

    Attributes:
        comm_s: what communication adds.
        compute_s: computation alone.
    """

    comm_s: float
    compute_s: float

    @property
    def iteration_s(self) -> float:
        """Both."""
        return self.comm_s + self.compute_s

    @property
    def share(self) -> float:
        """The part of communication in the iteration."""
        return self.comm_s / self.iteration_s


Profiles = Mapping[Place, Profile]


class Cell(Record, frozen=True, kw_only=True):
    """One cell in the lab.

    Attributes:
        network: such as ``"AlexNet"``.
        collective: as in ``COLLECTIVES``; ``"none"`` where every rank trains for itself.
        number: of the algorithm, in Section 3; 0 where every rank trains for itself.
        predicted_s: of an iteration, on the calibrated lab.
        samples_s: one figure per turn: the slowest rank's mean iteration.
    """

    network: str
    collective: str
    number: int
    predicted_s: float
    samples_s: tuple[float, ...] = ()


class Lab(Artifact, frozen=True, kw_only=True):
    """What ``bsp_sgd_lab.py`` measured.

    Attributes:
        hosts: of the lab, one rank each.
        rate: of each host's link, such as ``"1gbit"``.
        scale: seconds of the lab over seconds of the table.
        bytes_scale: bytes of the lab over bytes of the table.
        iterations: counted ones of a turn.
        quick: whether sizes were cut to see that it runs; then no figure counts.
        cluster: the lab as calibrated.
        cells: of all networks.
        metadata: command, hardware, versions, date.
    """

    KIND: ClassVar[str] = "bsp-sgd lab"

    hosts: int
    rate: str
    scale: float
    bytes_scale: float
    iterations: int
    quick: bool
    cluster: Cluster
    cells: tuple[Cell, ...] = ()
    metadata: dict[str, str] = {}

    def profiles(self, name: str) -> tuple[dict[Place, Profile], dict[Place, Profile]]:
        """Return a network's measured and predicted cells, in seconds of the table."""
        cells = {Place(c.collective, c.number): c for c in self.cells if c.network == name}
        alone = cells.pop(ALONE, None)
        if alone is None or not alone.samples_s:
            return {}, {}
        alone_s = statistics.median(alone.samples_s)
        measured, predicted = {}, {}
        for place, cell in cells.items():
            if cell.samples_s:
                comm_s = statistics.median(cell.samples_s) - alone_s
                measured[place] = Profile(comm_s / self.scale, alone_s / self.scale)
            comm_s = cell.predicted_s - alone.predicted_s
            predicted[place] = Profile(comm_s / self.scale, alone.predicted_s / self.scale)
        return measured, predicted


ALONE = Place("none", 0)
OVER = Place("be", 2)
"""Whose iterations the paper's speed-ups are over: BE-Alg.1, as it calls them."""


def printed(name: str) -> dict[Place, Profile]:
    """Return a network's cells as the paper has them."""
    numbers = {row.printed: number for number, row in ALGORITHMS.items()}
    found = {}
    for row in rows(DATA / "lp_table_2.csv"):
        if row["network"] == name:
            collective, which = row["method"].split()
            profile = Profile(float(row["comm_s"]), float(row["compt_s"]))
            found[Place(collective.lower(), numbers[which])] = profile
    return found


def nbytes_of(name: str) -> float:
    """Return a network's bytes."""
    return next(float(r["model_MB"]) for r in rows(DATA / "lp_table_2.csv") if r["network"] == name)


def paper_workload(name: str) -> Workload:
    """Return a network that computes as long as the table's cells do on average."""
    compute_s = statistics.fmean(profile.compute_s for profile in printed(name).values())
    return network(name, nbytes_of(name) * 1e6, compute_s)


def rate_of(name: str) -> float:
    """Return the bytes a second at which the paper's machine reduced and broadcast a network."""
    return 2 * nbytes_of(name) * 1e6 / printed(name)[Place(*RATE_FROM)].comm_s


def machine(bytes_per_s: float) -> Cluster:
    """Return the paper's four GPUs; reduction is free, as in its analysis."""
    return Cluster.flat(RANKS, latency_s=ALPHA_S, bandwidth_bytes_per_s=bytes_per_s)


def predicted(workload: Workload, cluster: Cluster, place: Place) -> Profile:
    """Return what an iteration is expected to spend, the broadcasts of Alg. 3 included."""
    plan = bsp_sgd_plan(workload, cluster, place.number, place.collective)
    assert plan.prediction is not None
    return Profile(plan.prediction.exposed_s, plan.prediction.compute_s)


def simulated(name: str, bytes_per_s: float) -> dict[Place, Profile]:
    """Return all nine cells of a network on the paper's machine at some rate."""
    workload, cluster = paper_workload(name), machine(bytes_per_s)
    return {place: predicted(workload, cluster, place) for place in PLACES}


@dataclass(frozen=True)
class Block:
    """A network's part of the table.

    Attributes:
        name: the network's.
        sources: heading -> cells, the paper's first, then the simulations, then what was measured.
    """

    name: str
    sources: dict[str, Profiles]

    def off(self) -> str:
        """Return how far predicted iterations are from measured ones, in words."""
        measured, predicted = (self.sources.get(what, {}) for what in ("measured", "predicted"))
        errors = [
            abs(predicted[place].iteration_s / measured[place].iteration_s - 1)
            for place in measured
        ]
        if not errors:
            return ""
        return f", its iterations {statistics.median(errors):.0%} off, at worst {max(errors):.0%}"

    def differences(self) -> list[Comparison]:
        """Return each of the paper's cells beside the simulation at the rate that fits it."""
        theirs, _, ours = list(self.sources.values())[:3]
        return [
            Comparison(
                f"{self.name}, {place.collective.upper()} Alg. {place.number}",
                profile.comm_s,
                ours[place].comm_s,
                "{:.3f} s",
            )
            for place, profile in theirs.items()
        ]

    def speedups(self) -> list[Comparison]:
        """Return the speed-ups that the paper prints beside those of the same simulation."""
        ours = list(self.sources.values())[2]
        numbers = {row.printed: number for number, row in ALGORITHMS.items()}

        def iteration_s(method: str) -> tuple[str, float]:
            collective, which = method.split()
            place = Place(collective.lower(), numbers[which])
            return f"{collective} Alg. {place.number}", ours[place].iteration_s

        found = []
        for row in rows(DATA / "lp_speedups.csv"):
            if row["network"] == self.name:
                (one, one_s), (other, other_s) = (iteration_s(row[k]) for k in ("method", "over"))
                what = f"{self.name}, {one} over {other}"
                found.append(Comparison(what, float(row["value"]), other_s / one_s, "{:.2f}x"))
        return found


def blocks(labs: Iterable[Lab] = ()) -> list[Block]:
    """Return the table."""
    labs = list(labs)
    found = []
    for name in NETWORKS:
        fitting = rate_of(name)
        sources: dict[str, Profiles] = {
            "paper": printed(name),
            "at 1 GB/s": simulated(name, BYTES_PER_S),
            f"at {fitting / 1e9:.1f} GB/s": simulated(name, fitting),
        }
        for lab in labs:
            sources["measured"], sources["predicted"] = lab.profiles(name)
        found.append(Block(name, {what: cells for what, cells in sources.items() if cells}))
    return found


def committed() -> list[Path]:
    """Return the measurements that are kept beside the paper's figures."""
    return sorted(DATA.glob(MEASURED))


def _speedup(profile: Profile, slow: Profile | None) -> str:
    return f"{slow.iteration_s / profile.iteration_s:.2f}x" if slow else ""


def _table(block: Block, caption: str) -> Table:
    table = Table(
        title=f"Table 2: {block.name}, {nbytes_of(block.name):.0f} MB; algorithms as in Section 3",
        caption=caption or None,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("")
    for place in PLACES:
        heading = f"{place.collective.upper()} {place.number}"
        table.add_column(heading, justify="right", no_wrap=True)
    there = block.sources["paper"]
    table.add_row("as", *(ALGORITHMS[p.number].printed if p in there else "" for p in PLACES))
    for what, cells in block.sources.items():
        slow = cells.get(OVER)
        table.add_row(what, *([""] * len(PLACES)), style="bold")
        for label, cell in (
            ("  comm s", lambda profile: f"{profile.comm_s:.3f}"),
            ("  compt s", lambda profile: f"{profile.compute_s:.3f}"),
            ("  comm %", lambda profile: f"{profile.share:.1%}"),
            ("  speed-up", lambda profile, slow=slow: _speedup(profile, slow)),
        ):
            found = [cell(cells[place]) if place in cells else "" for place in PLACES]
            table.add_row(label, *found)
    return table


def show(console: Console, labs: Iterable[Lab] = ()) -> None:
    """Print the table, the differences and the speed-ups."""
    labs = list(labs)
    caption = ""
    for lab in labs:
        quick = "; a quick run, no figure counts" if lab.quick else ""
        caption = (
            f"; measured on {lab.hosts} emulated hosts at {lab.rate}, times x {lab.scale:g}, "
            f"bytes x {lab.bytes_scale:.3g}, shown at the table's scale{quick}; predicted: on that "
            "lab"
        )
    found = blocks(labs)
    for block in found:
        console.print(_table(block, "speed-up: over BE 2" + caption + block.off()))
    for title, items in (
        ("Communication of an iteration beside Table 2, at the rate of LP 2", "differences"),
        ("Speed-ups beside Section 4.2, at the same rate", "speedups"),
    ):
        rows_ = [row for block in found for row in getattr(block, items)()]
        console.print(comparison_table(title, rows_))


def as_json(labs: Iterable[Lab] = ()) -> list[dict[str, Any]]:
    """Return every cell."""
    return [
        {
            "network": block.name,
            "source": what,
            "collective": place.collective,
            "algorithm": place.number,
            "printed_as": ALGORITHMS[place.number].printed,
            "comm_s": profile.comm_s,
            "compute_s": profile.compute_s,
        }
        for block in blocks(labs)
        for what, cells in block.sources.items()
        for place, profile in cells.items()
    ]
