"""What SketchDLC's traces were made for: the same training on other networks, and with aggregation.

    python reproduce/sketchdlc_networks.py            # tables
    python reproduce/sketchdlc_networks.py --json     # the same as JSON

The paper captures traces to simulate network devices that add gradients up (Section 2.3), and
leaves the simulation for later (Section 7). Here its ResNet-50 and LeNet-5 are played on links of
other rates, with more workers, and with switches that add up pushes and copy weights for all.

An iteration is phase 1, then phase 3: pushes as backward makes gradients, all to one server; of
each key, once all workers' are there, its weights back; and the next forward waits for all of them
([Note: MXNet's order] of ``sketchdlc_worker.py``). The wire's part of the paper's phase 3 is played
on its own 56 Gbit/s and two workers. The rest of it (calls, copies, searches, updates, waits) is
held as it was measured, on every network. That takes for granted that it does not grow with
workers: with many of them the server's own work comes on top, and aggregation would take from that
too.

[Note: aggregation] A switch that adds pushes up at the rate of its links sends the server one
message where W came in, and copies the answer for all. So the server's link carries in each
direction what one worker's does, and no more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from rich import box
from rich.console import Console

from sketchdlc_paper import paper
from sketchdlc_runs import Place
from sketchdlc_worker import LENET5, PARAMETERS, RESNET50, resnet50_workload
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.reports.tables import ReportTable
from syncopate.units import format_rate

WORKERS = 2
OWN_BITS_PER_S = 56e9
LATENCY_S = 5e-6
"""Of a message between machines; assumed. It hardly counts beside what is held."""

RATES_BITS_PER_S = (1e9, 10e9, 25e9, 56e9, 100e9)
TEAMS = (2, 8, 32)
TITLES = {LENET5: "LeNet-5", RESNET50: "ResNet-50"}
_SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Played:
    """One network at one rate with so many workers.

    Attributes:
        network: ``"lenet5"`` or ``"resnet50"``.
        workers: how many, beside one server.
        bits_per_s: of every link.
        plain_s: an iteration as the paper's traces have it.
        aggregated_s: one with aggregation in the switch.
        server_bytes: into the server in an iteration, without and with aggregation.
    """

    network: str
    workers: int
    bits_per_s: float
    plain_s: float
    aggregated_s: float
    server_bytes: tuple[float, float]

    @property
    def gain(self) -> float:
        """How much faster aggregation makes an iteration, less one."""
        return self.plain_s / self.aggregated_s - 1


@cache
def workload(network: str) -> Workload:
    """Return a network with the means of the paper's phases 1 and 2 as forward and backward."""
    if network == RESNET50:
        return resnet50_workload()
    points = paper(network).points
    forward_s, backward_s = (points[Place(f"phase {n}", "w0")].mean for n in (1, 2))
    parameters = PARAMETERS[network]()
    # Gradients come one by one from the last key on; how backward's time is spread, Fig. 9 does
    # not say, and phase 2 is short.
    share_s = backward_s / len(parameters)
    return Workload(
        model=TITLES[network],
        tensors=tuple(
            GradientTensor(name=one.name, numel=one.numel, backward_s=share_s)
            for one in reversed(parameters)
        ),
        forward_s=forward_s,
        backward_s=backward_s * _SLACK,
    )


def wire_s(network: str, workers: int, bits_per_s: float, *, aggregated: bool = False) -> float:
    """Return phase 3 as far as computation and the wire make it: first push to last weights.

    Links carry both directions at once. In each one key goes after the other, of all workers
    together.

    Args:
        network: as in :class:`Played`.
        workers: how many.
        bits_per_s: of every link.
        aggregated: see [Note: aggregation].
    """
    copies = 1 if aggregated else workers
    ready_s = came_s = went_s = first_s = 0.0
    for index, tensor in enumerate(workload(network).tensors):
        ready_s += tensor.backward_s
        first_s = first_s if index else ready_s
        message_s = copies * 8 * tensor.nbytes / bits_per_s
        came_s = max(came_s, ready_s) + message_s
        went_s = max(went_s, came_s + LATENCY_S) + message_s
    return went_s + LATENCY_S - first_s


@cache
def held_s(network: str) -> float:
    """Return what the paper's phase 3 takes beside computation and the wire."""
    phase_s = paper(network).points[Place("phase 3", "w0")].mean
    return phase_s - wire_s(network, WORKERS, OWN_BITS_PER_S)


def played(network: str, workers: int, bits_per_s: float) -> Played:
    """Return an iteration on another network, without and with aggregation in the switch."""
    nbytes = workload(network).nbytes
    beside_s = paper(network).points[Place("phase 1", "w0")].mean + held_s(network)
    return Played(
        network=network,
        workers=workers,
        bits_per_s=bits_per_s,
        plain_s=beside_s + wire_s(network, workers, bits_per_s),
        aggregated_s=beside_s + wire_s(network, workers, bits_per_s, aggregated=True),
        server_bytes=(float(workers * nbytes), float(nbytes)),
    )


def grid(network: str, teams: Sequence[int] = TEAMS) -> list[Played]:
    """Return every rate with every number of workers."""
    return [played(network, workers, rate) for workers in teams for rate in RATES_BITS_PER_S]


def table(network: str, rows: Sequence[Played]) -> ReportTable:
    """Return iterations in ms, and in brackets what aggregation gains."""
    found = ReportTable(
        title=f"{TITLES[network]}: an iteration, ms: plain, aggregated (gain)", box=box.SIMPLE_HEAD
    )
    found.add_column("workers", justify="right")
    for rate in RATES_BITS_PER_S:
        found.add_column(format_rate(rate / 8), justify="right")
    for workers in dict.fromkeys(row.workers for row in rows):
        cells = [shown(row) for row in rows if row.workers == workers]
        found.add_row(str(workers), *cells)
    return found


def shown(row: Played) -> str:
    """Return a cell: milliseconds without and with aggregation, and the gain."""
    return f"{row.plain_s * 1e3:.1f}, {row.aggregated_s * 1e3:.1f} ({row.gain:+.0%})"


def main(words: Sequence[str] | None = None) -> None:
    """Print tables or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help="two workers alone")
    options = parser.parse_args(words)
    teams = TEAMS[:1] if options.quick else TEAMS
    rows = {network: grid(network, teams) for network in TITLES}
    if options.json:
        flat = [vars(row) | {"gain": row.gain} for found in rows.values() for row in found]
        print(json.dumps(flat, indent=1))
        return
    console = Console(width=150)
    for network, found in rows.items():
        console.print(table(network, found))


if __name__ == "__main__":
    main()
