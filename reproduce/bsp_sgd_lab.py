"""LP's Table 2 measured: BSP-SGD's algorithms with every collective, in turns on emulated hosts.

    python reproduce/bsp_sgd_lab.py --json reproduce/data/bsp_sgd_4hosts.json   # as root on Linux
    python reproduce/bsp_sgd_lab.py --json lab.json --rounds 8      # goes on where it stopped
    python reproduce/bsp_sgd_lab.py --networks GoogLeNet --scale 1
    python reproduce/bsp_sgd_lab.py --quick                         # small, to see that it runs
    python reproduce/linear_pipeline.py --training lab.json         # the table, without a lab

Started plainly it makes a lab (network namespaces, shaped links) and runs itself on every host. The
networks are replayed: computation is slept, gradients and weights are real, and so are their
traffic and their SGD. ``--scale`` is the seconds of the lab over those of the table; bytes shrink
by as much and by what the lab's links are slower than the 1 GB/s of the paper's Section 3.2. In
every round each cell trains for one turn, and so does every rank for itself: what a cell takes
longer than that is communication. Given ``--json``, every round is kept as soon as it is over.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec.structs import replace
from rich.console import Console
from torch import nn

import bsp_sgd_table as table_2
from bsp_sgd import bsp_sgd_plan
from bsp_sgd_networks import shrunk
from bsp_sgd_table import ALONE, BYTES_PER_S, NETWORKS, PLACES, Cell, Lab, Place
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.calibration.calibrate import calibrate
from syncopate.calibration.curves import sizes_up_to
from syncopate.cli.demo.measure import Contender, measure
from syncopate.collectives import Communicator
from syncopate.collectives.machine import cpu_name
from syncopate.engine.distribute import distribute
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.lab import Lab as Hosts
from syncopate.lab import Topology
from syncopate.lab.support import why_not
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.units import format_seconds, parse_rate
from syncopate.zoo import replay

SETTING = ("hosts", "rate", "scale", "iterations", "quick")
"""What all rounds of one file have in common."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--hosts", type=int, default=table_2.RANKS, help="of the lab, one rank each (4)")
    add("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    add("--scale", type=float, default=0.5, help="seconds here over seconds of the table (0.5)")
    add("--rounds", type=int, default=5, help="turns of each cell (5)")
    add("--iterations", type=int, default=5, help="of a turn; Alg. 3 broadcasts in one of 5 (5)")
    add("--calibration", type=float, default=60.0, help="seconds of calibration (60)")
    add("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, help="which (all)")
    add("--json", type=Path, help="every sample; rounds that are there already are kept")
    add("--quick", action="store_true", help="one round of GoogLeNet at a twentieth")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    return found


def settled_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options, those of a quick run cut."""
    options = parser().parse_args(words)
    if options.quick:
        options.scale, options.rounds, options.calibration = 0.05, 1, 10.0
        options.networks = ("GoogLeNet",)
    for what, least in (("hosts", 2), ("rounds", 1), ("iterations", 1)):
        if getattr(options, what) < least:
            parser().error(f"--{what} must be at least {least}")
    if not options.scale > 0:
        parser().error("--scale must be above 0")
    return options


# -- results ------------------------------------------------------------------------------------


def resumed(options: argparse.Namespace) -> Lab | None:
    """Return what the file already holds; None without a file.

    Raises:
        ArtifactError: it is no such file, or was measured under another setting.
    """
    if options.json is None or not options.json.exists():
        return None
    found = Lab.load(options.json)
    for what in SETTING:
        here, there = getattr(options, what), getattr(found, what)
        if here != there:
            raise ArtifactError(
                options.json,
                f"measured with {what} {there!r}, not {here!r}; give --{what} {there} or another "
                "file",
                f"$.{what}",
            )
    return found


def begun(options: argparse.Namespace, cluster: Cluster) -> Lab:
    """Return results without a cell, on a lab as calibrated."""
    words = [word for word in sys.argv[1:] if word != "--rank"]
    return Lab(
        bytes_scale=bytes_scale(options),
        cluster=cluster,
        metadata={
            "command": shlex.join(["python", f"reproduce/{Path(__file__).name}", *words]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cpu": cpu_name(),
            "cores": str(os.cpu_count()),
            "torch": str(torch.__version__),
        },
        **{what: getattr(options, what) for what in SETTING},
    )


def bytes_scale(options: argparse.Namespace) -> float:
    """Return the bytes of the lab over those of the table; see the module."""
    return options.scale * parse_rate(options.rate) * TCP_GOODPUT / BYTES_PER_S


def workload_of(lab: Lab, name: str) -> Workload:
    """Return a network at the lab's scale."""
    return shrunk(table_2.paper_workload(name), lab.scale, lab.bytes_scale)


def planned(lab: Lab, name: str) -> Lab:
    """Return the results with a network's cells, predicted, where there were none."""
    if any(cell.network == name for cell in lab.cells):
        return lab
    workload = workload_of(lab, name)
    expected = {
        place: table_2.predicted(workload, lab.cluster, place).iteration_s for place in PLACES
    }
    cells = [
        Cell(network=name, collective=place.collective, number=place.number, predicted_s=seconds)
        for place, seconds in {ALONE: workload.compute_s, **expected}.items()
    ]
    return replace(lab, cells=(*lab.cells, *cells))


def rounds_of(lab: Lab, name: str) -> int:
    """Return how many rounds of a network are there."""
    counts = [len(cell.samples_s) for cell in lab.cells if cell.network == name]
    return min(counts, default=0)


def with_round(lab: Lab, name: str, seconds: Mapping[Place, float]) -> Lab:
    """Return the results with one sample more in each cell of a network."""
    return replace(
        lab,
        cells=tuple(
            replace(
                cell,
                samples_s=(*cell.samples_s, seconds[Place(cell.collective, cell.number)]),
            )
            if cell.network == name
            else cell
            for cell in lab.cells
        ),
    )


# -- ranks --------------------------------------------------------------------------------------


def rank_main(options: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 prints and keeps."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    with Communicator() as communicator:
        first = communicator.rank == 0
        lab = communicator.broadcast_object(resumed(options) if first else None)
        if lab is None:
            lab = begun(options, calibrated(communicator, options))
        for name in options.networks:
            lab = take_rounds(communicator, options, planned(lab, name), name)
        if first:
            table_2.show(Console(width=100), [lab])
    dist.destroy_process_group()


def calibrated(communicator: Communicator, options: argparse.Namespace) -> Cluster:
    """Return the lab, each of the table's collectives measured; sleeping disturbs none of them."""
    largest = max(table_2.nbytes_of(name) for name in options.networks) * 1e6
    return calibrate(
        communicator,
        collectives=("all_reduce", "reduce", "broadcast"),
        algorithms=table_2.COLLECTIVES,
        sizes=sizes_up_to(round(largest * bytes_scale(options))),
        budget_s=options.calibration,
        interference=False,
    )


def take_rounds(
    communicator: Communicator, options: argparse.Namespace, lab: Lab, name: str
) -> Lab:
    """Measure the rounds of a network that are missing."""
    missing = options.rounds - rounds_of(lab, name)
    if missing <= 0:
        return lab
    workload = workload_of(lab, name)
    plans = {place: bsp_sgd_plan(workload, lab.cluster, *place[::-1]) for place in PLACES}
    by_itself, model = replay(workload), replay(workload)
    optimizer = _sgd(model)
    ours, _ = distribute(model, optimizer, plan=next(iter(plans.values())))
    places = {f"{place.collective} {place.number}": place for place in (ALONE, *PLACES)}
    alone, *cells = places
    contenders = [
        # Another plan waits for what the one before still has on its way.
        Contender(
            alone,
            lambda: ours.syncopate.install(plans[PLACES[0]]),
            _step(by_itself, _sgd(by_itself)),
        ),
        *(
            Contender(
                cell,
                lambda plan=plans[places[cell]]: ours.syncopate.install(plan),
                _step(ours, optimizer),
            )
            for cell in cells
        ),
    ]
    for _ in range(missing):
        times = measure(contenders, communicator, rounds=1, iterations=lab.iterations, warmup=1)
        lab = with_round(lab, name, {places[cell]: times[cell][0] for cell in places})
        if communicator.rank == 0:
            print(f"{name}, round {rounds_of(lab, name)} of {options.rounds}:", end=" ")
            print(", ".join(f"{what} {format_seconds(s[0])}" for what, s in times.items()))
            sys.stdout.flush()
            if options.json is not None:
                lab.save(options.json)
    ours.syncopate.detach()
    return lab


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer):
    """Return one iteration."""

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    return step


def main() -> int:
    """Start the lab, or be one of its ranks."""
    options = settled_options()
    if options.rank:
        rank_main(options)
        return 0
    try:
        resumed(options)
        obstacle = why_not()
        if obstacle:
            print(f"skipped: {obstacle}")
            return 0
        topology = Topology(hosts=options.hosts, rate_bytes_per_s=parse_rate(options.rate))
        with Hosts(topology) as lab:
            return lab.run([sys.executable, __file__, "--rank", *sys.argv[1:]]).exit_code
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
