"""Collectives alone and one after another, on emulated hosts: what calibration cannot see.

    python benchmarks/one_after_another.py                   # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/one_after_another.py --json one_after_another.json
    python benchmarks/one_after_another.py --mib 1 32 --skip binary_tree --rounds 20 --json it.json
    python benchmarks/one_after_another.py --hosts 8 --rate 2gbit --json 8hosts.json

Calibration measures a collective alone, from an agreed start; in training one follows another. Each
algorithm of a reduce-scatter, an all-gather and an all-reduce runs both ways in every round, so
that a disturbance of the machine hits all of them alike. A sample is the time from a moment agreed
beforehand (``calibration/timing.py``) until the last rank is done, over the number of
collectives
in a row. What is printed is the median over rounds, over what the bytes need at line rate.
Algorithms run with their default options; left out are those that the registry calls no use at a
size, and twins of others.

Every round is kept in the file as soon as it is over. A run that was stopped goes on where it was;
more rounds, or more sizes, join those that are there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from msgspec import structs

from contest.conduct import reopened
from emulated import hosts
from emulated.options import explained
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.calibration.timing import SynchronisedStart
from syncopate.collectives import Communicator
from syncopate.costs.model.bound import wire_bytes
from syncopate.errors import ArtifactError
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.registry import ALGORITHMS, algorithms
from syncopate.units import MIB, format_bytes, parse_rate

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
SIZES_MIB = (2, 13)
IN_A_ROW = 4
ROUNDS = 9


class Setting(Record, frozen=True, kw_only=True):
    """What one file was measured under; samples of another setting are not mixed in.

    Attributes:
        hosts: of the lab, one rank each.
        rate: of each host's link, such as ``"1gbit"``.
        in_a_row: how many collectives go one after another.
    """

    hosts: int
    rate: str
    in_a_row: int = IN_A_ROW


class Cell(Record, frozen=True, kw_only=True):
    """One algorithm at one size.

    Attributes:
        collective: its name.
        algorithm: its name.
        nbytes: the whole buffer.
        alone_s: seconds of one alone, round by round; the longest rank's.
        in_a_row_s: seconds of several in a row over their number, round by round.
    """

    collective: str
    algorithm: str
    nbytes: int
    alone_s: tuple[float, ...] = ()
    in_a_row_s: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from other cells."""
        return self.collective, self.algorithm, self.nbytes

    def bound_s(self, setting: Setting) -> float:
        """Return what its bytes need at line rate."""
        line = parse_rate(setting.rate) * TCP_GOODPUT
        return wire_bytes(setting.hosts, self.nbytes, self.collective) / line


class Results(Artifact, frozen=True, kw_only=True):
    """Every sample.

    Attributes:
        setting: what all of them were taken under.
        cells: in the order in which they took turns.
        metadata: versions.
    """

    KIND: ClassVar[str] = "one_after_another"

    setting: Setting
    cells: tuple[Cell, ...] = ()
    metadata: dict[str, str] = {}


def contenders(sizes: Iterable[int], skip: Sequence[str] = ()) -> list[Cell]:
    """Return what is worth running, without samples; ``sizes`` are in bytes."""
    found = []
    for nbytes in sizes:
        for collective in COLLECTIVES:
            rows = [ALGORITHMS[collective, name] for name in algorithms(collective)]
            names = [row.name for row in rows if not row.twin and row.carries(nbytes)]
            found += [
                Cell(collective=collective, algorithm=name, nbytes=nbytes)
                for name in (NATIVE, *names)
                if name not in skip
            ]
    return found


def resumed(path: Path | None, setting: Setting, wanted: Sequence[Cell]) -> Results:
    """Return the samples kept in a file, with room for those that are wanted.

    Raises:
        ArtifactError: the file holds something else, or was measured under another setting.
    """
    known = reopened(path, Results(setting=setting), "setting")
    held = {cell.key for cell in known.cells}
    more = tuple(cell for cell in wanted if cell.key not in held)
    whole: Results = structs.replace(known, cells=known.cells + more)
    return whole


def rank_main(options: argparse.Namespace) -> None:
    """Measure as one rank; rank 0 prints and writes."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    setting = Setting(hosts=options.hosts, rate=options.rate)
    wanted = contenders((mib * MIB for mib in options.mib), options.skip)
    with Communicator() as communicator:
        results = communicator.broadcast_object(resumed(options.json, setting, wanted))
        starts = SynchronisedStart(communicator, shared_clock=True)
        keys = {cell.key for cell in wanted}
        warm: set[tuple[str, str, int]] = set()
        for number in range(options.rounds):
            taken = {
                cell.key: both_ways(communicator, starts, cell, setting, warm)
                for cell in results.cells
                if cell.key in keys and len(cell.alone_s) <= number
            }
            if not taken:
                continue
            results = with_round(results, communicator.all_gather_object(taken))
            if communicator.rank == 0:
                print(f"round {number + 1} of {options.rounds}", flush=True)
                if options.json:
                    results.save(options.json)
        if communicator.rank == 0:
            tell(results, keys)
    dist.destroy_process_group()


def both_ways(
    communicator: Communicator,
    starts: SynchronisedStart,
    cell: Cell,
    setting: Setting,
    warm: set[tuple[str, str, int]],
) -> tuple[float, float]:
    """Return this rank's seconds of one alone, and of each of several in a row.

    Args:
        communicator: the ranks.
        starts: agree on when to begin.
        cell: what to run.
        setting: how many in a row.
        warm: cells that ran before; the first run of a cell does not count.
    """
    recipe = Recipe(cell.collective, cell.algorithm)
    buffers = [torch.zeros(cell.nbytes // 4) for _ in range(setting.in_a_row)]

    def run(count: int) -> None:
        for buffer in buffers[:count]:
            communicator.run(recipe, buffer)

    if cell.key not in warm:
        run(1)
        warm.add(cell.key)
    alone_s = starts.timed(lambda: run(1))
    return alone_s, starts.timed(lambda: run(len(buffers))) / len(buffers)


def with_round(
    results: Results, ranks: Sequence[dict[tuple[str, str, int], tuple[float, float]]]
) -> Results:
    """Return the results with one round more, the longest rank's times.

    Args:
        results: so far.
        ranks: for every rank, the two times of each cell that ran.
    """
    cells = []
    for cell in results.cells:
        if cell.key in ranks[0]:
            alone_s, in_a_row_s = map(max, zip(*(own[cell.key] for own in ranks), strict=True))
            more = {
                "alone_s": (*cell.alone_s, alone_s),
                "in_a_row_s": (*cell.in_a_row_s, in_a_row_s),
            }
            cells.append(structs.replace(cell, **more))
        else:
            cells.append(cell)
    facts = results.metadata | {"torch": str(torch.__version__)}
    longer: Results = structs.replace(results, cells=tuple(cells), metadata=facts)
    return longer


def tell(results: Results, keys: set[tuple[str, str, int]]) -> None:
    """Print the medians of some cells, over what their bytes need at line rate."""
    print(f"{'time over bytes / line rate':45s}{'alone':>8s}{'in a row':>10s}{'rounds':>8s}")
    for cell in results.cells:
        if cell.key not in keys or not cell.alone_s:
            continue
        bound_s = cell.bound_s(results.setting)
        alone, in_a_row = (
            statistics.median(samples_s) / bound_s for samples_s in (cell.alone_s, cell.in_a_row_s)
        )
        print(
            f"{cell.collective:15s} {cell.algorithm:20s} {format_bytes(cell.nbytes):>8s}"
            f"{alone:8.2f}{in_a_row:10.2f}{len(cell.alone_s):8d}"
        )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    described = hosts.parser("Collectives alone and one after another, on emulated hosts.")
    found = explained(described, __doc__)
    found.add_argument("--rate", default="1gbit", help="rate of each host's link")
    found.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds in all ({ROUNDS})")
    found.add_argument(
        "--mib", type=int, nargs="+", default=list(SIZES_MIB), help="sizes in MiB (2 13)"
    )
    found.add_argument("--skip", nargs="*", default=[], metavar="NAME", help="algorithms left out")
    return found


def main() -> int:
    """Make a lab, or be a rank of it."""
    options = parser().parse_args()
    if options.quick:
        options.rounds, options.mib = 2, [1]
    if options.hosts < 2:
        parser().error("--hosts must be at least 2: one host sends nothing")
    try:
        resumed(options.json, Setting(hosts=options.hosts, rate=options.rate), ())
    except ArtifactError as error:
        parser().error(str(error))
    return hosts.run(__file__, options, rank_main)


if __name__ == "__main__":
    sys.exit(main())
