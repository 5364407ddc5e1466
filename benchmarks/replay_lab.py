"""How well a run recorded at one rate tells what it takes at others, in labs of this machine.

Some emulated hosts are calibrated at 700 Mbit/s, which no training has. A training is recorded at
one rate, and played at each of the others by `syncopate.replay`; then it is measured there, by the
same plan. What is known of the other rate is the rate: latencies and the work of processors are as
calibrated (`syncopate/validation/expected.py`).

Three columns of errors: the run played on its own network, against itself; the run played at the
other rate, against what turns took there; and the same prices put in place of what was recorded,
without what the run tells of its own network.

    python benchmarks/replay_lab.py --json replay_lab.json
    python benchmarks/replay_lab.py --quick        # one short training, to see that it runs

Needs root on Linux, and the machine for itself. A training takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec import structs

from syncopate.analysis.replay.elsewhere import played_on
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, SERVED, SHARDED
from syncopate.artifacts.timeline import Timeline
from syncopate.costs.model.replayed import ClusterNetwork
from syncopate.errors import SyncopateError
from syncopate.lab.support import require
from syncopate.output import write_output
from syncopate.units import format_seconds
from syncopate.validation.expected import cluster_of, plan_of
from syncopate.validation.grid import COMPUTING, REPLAYED, Cell
from syncopate.validation.job import QUICK, Effort
from syncopate.validation.point import Home
from syncopate.validation.session import Session

EXCHANGES = (ALLREDUCE, DECOUPLED, SHARDED, SERVED)
RECORDED_AT = "1gbit"
RATES = ("250mbit", "500mbit", "2gbit", "4gbit")
HOSTS = 4


@dataclass(frozen=True)
class Found:
    """A run recorded at one rate, and the same training at another.

    Attributes:
        exchange: of its plan.
        work: what is trained.
        recorded_at: the rate of the recording.
        rate: the other one.
        recorded_s: the median iteration of the recording.
        itself_s: the same, played on its own network.
        replayed_s: played at the other rate.
        priced_s: likewise, by prices alone.
        samples_s: what turns took there.
    """

    exchange: str
    work: str
    recorded_at: str
    rate: str
    recorded_s: float
    itself_s: float
    replayed_s: float
    priced_s: float
    samples_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """The median of the turns."""
        return statistics.median(self.samples_s)

    @property
    def error(self) -> float:
        """Of the run played at the other rate, against what was measured there."""
        return self.replayed_s / self.measured_s - 1

    @property
    def errors(self) -> tuple[float, float, float]:
        """On its own network; at the other rate; by prices alone."""
        itself = self.itself_s / self.recorded_s - 1
        return itself, self.error, self.priced_s / self.measured_s - 1


def replayed(recorded: Timeline, cell: Cell, rate: str, home: Home) -> tuple[float, ...]:
    """Return the median iteration as recorded, on its own network, elsewhere, and by prices alone.

    Args:
        recorded: the run.
        cell: what was trained, and where.
        rate: at which it is played.
        home: as calibrated.
    """
    other = structs.replace(cell, rate=rate)
    here, there = (ClusterNetwork(cluster_of(one, home), one.servers) for one in (cell, other))
    recorded_s, itself_s = played_on(recorded, here, here).medians_s
    elsewhere_s = played_on(recorded, there, here).medians_s[1]
    return recorded_s, itself_s, elsewhere_s, played_on(recorded, there).medians_s[1]


def measured(session: Session, home: Home, cell: Cell, rates: Sequence[str]) -> list[Found]:
    """Record a training, play it at other rates, and measure it there by the same plan."""
    plan = plan_of(cell, home)
    _, recorded = session.trained(cell, plan)
    found = []
    for rate in rates:
        times_s = replayed(recorded, cell, rate, home)
        samples_s, _ = session.trained(structs.replace(cell, rate=rate), plan)
        found.append(Found(cell.exchange, cell.work, cell.rate, rate, *times_s, samples_s))
        print(line(found[-1]), flush=True)
    return found


def line(one: Found) -> str:
    """Return a line of the table."""
    columns = [format_seconds(s) for s in (one.recorded_s, one.replayed_s, one.measured_s)]
    columns += [f"{error:+.1%}" for error in one.errors]
    where = f"{one.exchange}, {one.work}, {one.recorded_at} -> {one.rate}"
    return f"{where:48s}" + "".join(f"{column:>12s}" for column in columns)


HEAD = f"{'training':48s}" + "".join(
    f"{name:>12s}" for name in ("recorded", "replayed", "measured", "itself", "error", "by price")
)


def settled(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description="A run recorded at one rate, at others.")
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--at", default=RECORDED_AT, help="the rate of the recording")
    parser.add_argument("--rates", nargs="+", default=list(RATES), help="at which it is played")
    parser.add_argument("--exchanges", nargs="+", choices=EXCHANGES, default=list(EXCHANGES))
    parser.add_argument("--works", nargs="+", choices=(REPLAYED, COMPUTING), default=[REPLAYED])
    parser.add_argument("--quick", action="store_true", help="one short training")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(words)
    if options.quick:
        options.hosts, options.rates = 2, options.rates[:1]
        options.exchanges, options.works = options.exchanges[:1], options.works[:1]
    return options


def document(options: argparse.Namespace, found: Sequence[Found]) -> bytes:
    """Return what the file holds."""
    rows = [asdict(one) | {"measured_s": one.measured_s, "error": one.error} for one in found]
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    told = {"hosts": options.hosts, "quick": options.quick, "machine": machine, "found": rows}
    return json.dumps(told, indent=1).encode() + b"\n"


def main() -> int:
    """Calibrate, then record, play and measure each training."""
    options = settled()
    require()
    found: list[Found] = []
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="syncopate-replay-") as folder:
        effort = QUICK if options.quick else Effort()
        session = Session(effort, lambda _: None, Path(folder))
        home = session.home(options.hosts)
        for work in options.works:
            for exchange in options.exchanges:
                cell = Cell(
                    hosts=options.hosts, rate=options.at, racks=1, exchange=exchange, work=work
                )
                try:
                    found += measured(session, home, cell, options.rates)
                except SyncopateError as error:
                    print(f"{cell.name}: not measured: {error}", flush=True)
                if options.json:
                    write_output(options.json, document(options, found))
    sizes = sorted(abs(one.error) for one in found)
    if sizes:
        print(f"{len(sizes)} points: median {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
