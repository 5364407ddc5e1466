"""Prices against measurement: every collective and algorithm on emulated hosts, 4 B to 64 MiB.

    python benchmarks/price.py                            # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/price.py --hosts 8 --json price_8hosts.json
    python benchmarks/price.py --hosts 4 --ranks-per-host 2 --largest 32
    python benchmarks/price.py --from-json price_8hosts.json      # prices anew, measures nothing

Started plainly it makes a lab (network namespaces, shaped links) and runs itself on every host. The
ranks measure their network as a calibration does, without curves, and then the sweep. Algorithms
take turns, and all ranks begin at a moment agreed beforehand
(``calibration/timing.py``): a sample
is the time from that moment until the last rank is done, and the median of them is held against the
price of the schedule on the measured network (``costs/schedule/execution.py``). Algorithms with
options run as the price chooses them for the size, and with their defaults, and none at sizes that
it had better not carry (``Algorithm.most_bytes``).

The probes to which calibration fits what a message costs a processor take their turns, too, and the
prices are fitted to those: machines change pace by a fifth within a minute, which is no error of a
price.

The error of a price is the larger of price / measured and measured / price, minus 1; several make a
geometric mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist

from emulated import hosts
from syncopate.artifacts.cluster import Cluster
from syncopate.calibration.calibrate import measure_network
from syncopate.calibration.links import burst_byte_time, levels_of
from syncopate.calibration.message_overhead import handling_of
from syncopate.calibration.samples import PROBES, Sample, probes
from syncopate.calibration.samples import SIZES as PROBE_SIZES
from syncopate.calibration.timing import SynchronisedStart
from syncopate.collectives import Communicator
from syncopate.collectives.machine import hosts_of
from syncopate.costs.model.collective import schedule_cost
from syncopate.costs.schedule.execution import execution_times
from syncopate.costs.schedule.price import price_many
from syncopate.output import write_output
from syncopate.schedules import registry
from syncopate.schedules.conditions import conditions
from syncopate.topology import topology
from syncopate.units import KIB, MIB, format_bytes, format_seconds

SIZES = (4, 256, 4 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB, 64 * MIB)
SHOWN = 15


def name_of(cell: Sample) -> str:
    """Return what to call a cell, options that the size chose left out."""
    return f"{cell.collective} {cell.algorithm}"


def label_of(cell: Sample) -> str:
    """Return what to call a cell, with its options."""
    return name_of(cell) + "".join(f":{key}={value}" for key, value in sorted(cell.options.items()))


def repetitions(nbytes: int) -> int:
    """Return how often to measure a size."""
    return 16 if nbytes <= 512 * KIB else 8 if nbytes <= 2 * MIB else 4 if nbytes <= 8 * MIB else 3


def contenders(cluster: Cluster, nbytes: int) -> list[Sample]:
    """Return what to run at a size, without samples."""
    found = []
    for collective in registry.collectives():
        for name in registry.candidates(collective, cluster):
            if not registry.ALGORITHMS[collective, name].carries(nbytes):
                continue
            fitting = registry.fitted(collective, name, cluster)
            chosen = schedule_cost(cluster, collective, name).options(nbytes)
            options = [dict(chosen)] + ([fitting] if chosen != fitting else [])
            found += [Sample(collective, name, one, nbytes, ()) for one in options]
    return found


def rank_main(options: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 prints."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    with Communicator() as communicator:
        where = topology(hosts_of(communicator))
        network = measure_network(communicator, where, budget_s=options.calibration)
        cluster = communicator.broadcast_object(network.cluster)
        starts = SynchronisedStart(communicator, shared_clock=True)
        sizes = [size for size in SIZES if size <= options.largest * MIB]
        cells = [cell for nbytes in sizes for cell in contenders(cluster, nbytes)]
        measured = measure(
            communicator, starts, [*cells, *(Sample(*probe, ()) for probe in probes(cluster))]
        )
        cells, samples = measured[: len(cells)], measured[len(cells) :]
        if communicator.rank == 0:
            stored = {
                "hosts": options.hosts,
                "ranks_per_host": options.ranks_per_host,
                "cluster": json.loads(cluster.to_json()),
                "samples": samples,
                "cells": cells,
            }
            if options.json:
                write_output(options.json, msgspec.json.encode(stored) + b"\n")
            tell(refitted(cluster, samples), cells)
    dist.destroy_process_group()


def measure(
    communicator: Communicator, starts: SynchronisedStart, cells: Sequence[Sample]
) -> list[Sample]:
    """Return the cells with samples; the same on all ranks.

    All sizes take turns, large ones more rarely, so that a disturbance of the machine hits all of
    them alike.
    """
    tensors = {cell.nbytes: torch.zeros(cell.nbytes // 4) for cell in cells}
    calls = [call_of(communicator, cell, tensors[cell.nbytes]) for cell in cells]
    for call in calls:
        call()
    turns = max(repetitions(cell.nbytes) for cell in cells)
    mine: list[list[float]] = [[] for _ in cells]
    for turn in range(turns):
        for cell, seconds, call in zip(cells, mine, calls, strict=True):
            wanted = repetitions(cell.nbytes)
            if turn * wanted // turns != (turn + 1) * wanted // turns:
                seconds.append(starts.timed(call))
        if communicator.rank == 0:
            print(f"turn {turn + 1} of {turns}", flush=True)
    ranks = communicator.all_gather_object(mine)
    return [
        cell._replace(samples_s=[max(of) for of in zip(*(r[i] for r in ranks), strict=True)])
        for i, cell in enumerate(cells)
    ]


def call_of(communicator: Communicator, cell: Sample, tensor: torch.Tensor) -> Callable[[], object]:
    """Return the call that runs a cell."""
    run = getattr(communicator, cell.collective)
    root = (0,) if conditions(cell.collective).rooted else ()
    return lambda: run(tensor, *root, algorithm=cell.algorithm, options=dict(cell.options))


class Compared(NamedTuple):
    """A measured cell, and what it should have taken."""

    cell: Sample
    measured_s: float
    price_s: float

    @property
    def ratio(self) -> float:
        """Price over measured."""
        return self.price_s / self.measured_s


def compared(cluster: Cluster, cells: Iterable[Sample], *, plain: bool = False) -> list[Compared]:
    """Hold every cell against its price on ``cluster``, or against the papers' α-β-γ price."""
    price = price_many if plain else execution_times
    found = []
    for cell in cells:
        schedule = registry.build(
            cell.collective, cell.algorithm, cluster.world_size, **cell.options
        )
        measured_s = statistics.median(cell.samples_s)
        found.append(Compared(cell, measured_s, float(price(schedule, cluster, cell.nbytes))))
    return found


def error(compared: Iterable[Compared]) -> float:
    """Return the geometric mean of errors."""
    logs = [abs(math.log(one.ratio)) for one in compared]
    return math.exp(statistics.fmean(logs)) - 1 if logs else math.nan


def of_probes(one: Compared) -> bool:
    """Say whether a cell is one to which calibration fitted its figures."""
    probed = [(collective, name) for collective, name, _ in PROBES]
    largest = max(nbytes for _, sizes in PROBE_SIZES for nbytes in sizes)
    return one.cell[:2] in probed and one.cell.nbytes <= largest


def tell(cluster: Cluster, cells: Sequence[Sample]) -> None:
    """Print the comparison."""
    for level in cluster.levels:
        rate = f"{level.bandwidth_bytes_per_s * 8 / 1e6:.0f} Mbit/s"
        burst = format_bytes(int(level.burst_bytes))
        print(f"{level.name}: {format_seconds(level.latency_s)}, {rate}, burst {burst}")
    for entry in cluster.handling:
        shown = {n: getattr(entry, n) for n in entry.__struct_fields__[1:]}
        print(f"up to {entry.up_to_bytes} B:", ", ".join(f"{n} {v:.3g}" for n, v in shown.items()))
    found = compared(cluster, cells)
    sizes = sorted({one.cell.nbytes for one in found})
    heads = "".join(f"{format_bytes(size):>8s}" for size in sizes)
    print(f"price / measured - 1, in percent\n{'':38s}{heads}{'mean':>8s}")
    for label, group in itertools.groupby(sorted(found, key=row), key=row):
        ones = list(group)
        by_size = {one.cell.nbytes: 100 * (one.ratio - 1) for one in ones}
        values = "".join(f"{by_size[s]:8.0f}" if s in by_size else f"{'':8s}" for s in sizes)
        print(f"{label:38s}{values}{100 * error(ones):8.1f}")
    means = [100 * error(one for one in found if one.cell.nbytes == size) for size in sizes]
    print(
        f"{'mean error':38s}" + "".join(f"{m:8.1f}" for m in means) + f"{100 * error(found):8.1f}"
    )
    print("worst cells:")
    for one in sorted(found, key=lambda one: -abs(math.log(one.ratio)))[:SHOWN]:
        print(
            f"  {label_of(one.cell):38s} {format_bytes(one.cell.nbytes):>8s} "
            f"price {format_seconds(one.price_s):>9s} measured {format_seconds(one.measured_s):>9s}"
        )
    rest = [one for one in found if not of_probes(one)]
    plain = error(compared(cluster, cells, plain=True))
    print(f"geometric mean error {100 * error(found):.1f}% of {len(found)} cells")
    print(f"  cells that calibration did not measure: {100 * error(rest):.1f}% of {len(rest)}")
    print(f"  the papers' alpha-beta-gamma price on the same links: {100 * plain:.1f}%")


def row(one: Compared) -> str:
    """Return the row of the table that a cell stands in."""
    fitted = one.cell.options.get("blocks")
    default = fitted is None and "blocks" in registry.ALGORITHMS[one.cell[:2]].options
    return name_of(one.cell) + (" (default)" if default else "")


def from_json(path: Path) -> None:
    """Tell of a stored measurement, with figures fitted and prices computed anew."""
    stored = msgspec.json.decode(path.read_bytes())
    cluster = Cluster.from_json(json.dumps(stored["cluster"]))
    samples = [Sample(*sample) for sample in stored["samples"]]
    tell(refitted(cluster, samples), [Sample(*cell) for cell in stored["cells"]])


def refitted(cluster: Cluster, samples: Sequence[Sample]) -> Cluster:
    """Return ``cluster`` with its figures fitted anew, handling to ``samples``."""
    levels = levels_of(topology(cluster.hosts), cluster.probes)
    bare = msgspec.structs.replace(cluster, levels=levels, handling=())
    handling = handling_of(bare, samples, burst_byte_time(levels, cluster.probes))
    return msgspec.structs.replace(bare, handling=handling)


def main() -> int:
    """Start the lab, or be one of its ranks, or read a file."""
    parser = hosts.parser("Prices against measurement.")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link")
    parser.add_argument("--calibration", type=float, default=20.0, help="seconds of calibration")
    parser.add_argument("--largest", type=int, default=64, help="largest size in MiB")
    parser.add_argument("--quick", action="store_true", help="little, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--from-json", type=Path, help="a file written before, priced anew")
    options = parser.parse_args()
    if options.quick:
        options.calibration, options.largest = 4.0, 1
    if options.from_json:
        from_json(options.from_json)
        return 0
    return hosts.run(__file__, options, rank_main, ranks_per_host=options.ranks_per_host)


if __name__ == "__main__":
    sys.exit(main())
