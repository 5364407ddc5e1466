"""How well a run recorded at one rate tells what it takes at others, in labs of this machine.

Some emulated hosts are calibrated at 700 Mbit/s, which no training has. A training is recorded at
one rate, and played at each of the others by `syncopate.replay`; then it is measured there, by the
same plan. What is known of the other rate is the rate: latencies and the work of processors are as
calibrated (`syncopate/validation/expected.py`).

Emulated hosts share the processors of one machine, so that no links make a training faster than
those are. So it is also trained where links are no limit, as for the lab's points
(`syncopate/validation/point.py`), and no less is expected.

The recording has ``RECORDED`` iterations beside its first, which stands for no other. A turn that
is measured is the mean of a few; of a recording of three, one unusual iteration would decide.

Three columns of errors: the run played on its own network, against itself; the run played at the
other rate, against what turns took there; and the same prices put in place of what was recorded,
without what the run tells of its own network.

    python benchmarks/replay_lab.py --json replay_lab.json
    python benchmarks/replay_lab.py --only served --traces runs    # measured, and kept in runs/
    python benchmarks/replay_lab.py --only served --traces runs    # played again, from what is kept
    python benchmarks/replay_lab.py --quick        # one short training, to see that it runs

Needs root on Linux, and the machine for itself. A training takes about half a minute. With
``--traces`` what was measured is kept, and measured no more: what is left is played within seconds,
on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from syncopate.analysis.replay.elsewhere import played_on
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, SERVED, SHARDED
from syncopate.artifacts.timeline import Timeline
from syncopate.collectives.machine import cpu_name
from syncopate.costs.model.replayed import ClusterNetwork
from syncopate.errors import SyncopateError
from syncopate.lab.support import require
from syncopate.output import write_output
from syncopate.units import format_seconds
from syncopate.validation.expected import cluster_of, plan_of
from syncopate.validation.grid import COMPUTING, NO_LIMIT, REPLAYED, Cell
from syncopate.validation.job import QUICK, Effort
from syncopate.validation.point import Home, Validation
from syncopate.validation.session import Session

EXCHANGES = (ALLREDUCE, DECOUPLED, SHARDED, SERVED)
RECORDED_AT = "1gbit"
RATES = ("250mbit", "500mbit", "2gbit", "4gbit")
HOSTS = 4
RECORDED = 12
"""Iterations of a recording that count."""


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
        processors_s: what the same training takes where links are no limit.
        iterations_s: the iterations of the recording that count.
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
    processors_s: float = 0.0
    iterations_s: tuple[float, ...] = ()

    @property
    def measured_s(self) -> float:
        """The median of the turns."""
        return statistics.median(self.samples_s)

    @property
    def expected_s(self) -> float:
        """The run played at the other rate, no shorter than the hosts' processors allow."""
        return max(self.replayed_s, self.processors_s)

    @property
    def error(self) -> float:
        """Of what is expected at the other rate, against what was measured there."""
        return self.expected_s / self.measured_s - 1

    @property
    def errors(self) -> tuple[float, float, float]:
        """On its own network; at the other rate; by prices alone."""
        itself = self.itself_s / self.recorded_s - 1
        by_price_s = max(self.priced_s, self.processors_s)
        return itself, self.error, by_price_s / self.measured_s - 1


class Times(NamedTuple):
    """The median iteration of a recording, in s: as recorded, and as it is played.

    Attributes:
        recorded_s: as recorded.
        itself_s: on its own network.
        replayed_s: at the other rate.
        priced_s: likewise, by prices alone.
    """

    recorded_s: float
    itself_s: float
    replayed_s: float
    priced_s: float


def replayed(
    recorded: Timeline, cell: Cell, rate: str, home: Home
) -> tuple[Times, tuple[float, ...]]:
    """Return what a recording takes, and what each of its iterations that count took.

    Args:
        recorded: the run.
        cell: what was trained, and where.
        rate: at which it is played.
        home: as calibrated.
    """
    other = structs.replace(cell, rate=rate)
    here, there = (ClusterNetwork(cluster_of(one, home), one.servers) for one in (cell, other))
    itself = played_on(recorded, here, here)
    elsewhere_s = played_on(recorded, there, here).medians_s[1]
    priced_s = played_on(recorded, there).medians_s[1]
    return Times(*itself.medians_s, elsewhere_s, priced_s), itself.recorded_s


class Measured:
    """Calibrations and trainings: kept in a folder where one is given, and measured once then.

    Args:
        effort: how long each measurement takes.
        folder: where they are kept; None: nowhere.
    """

    def __init__(self, effort: Effort, folder: Path | None) -> None:
        self._effort, self._folder = effort, folder

    def home(self, hosts: int) -> Home:
        """Return the calibration of some hosts."""
        path = self._path(f"{hosts} hosts")
        if path is not None and path.exists():
            (home,) = Validation.load(path).homes
            return home
        with self._session(self._effort) as session:
            home = session.home(hosts)
        if path is not None:
            Validation(homes=(home,)).save(path)
        return home

    def trained(self, cell: Cell, rate: str, home: Home) -> tuple[tuple[float, ...], Timeline]:
        """Return the turns of a training, and the run that was recorded behind them.

        Args:
            cell: what is trained, and what its plan is made for.
            rate: of the links with which it is trained.
            home: as calibrated.
        """
        run = self._path(f"{cell.name}, at {rate}")
        turns = self._path(f"{cell.name}, at {rate}, turns")
        if run is not None and turns is not None and turns.exists():
            return tuple(json.loads(turns.read_bytes())), Timeline.load(run)
        effort = self._effort
        if rate == cell.rate:  # the one that is played elsewhere
            effort = structs.replace(effort, recorded=max(effort.recorded, 1 + RECORDED))
        with self._session(effort) as session:
            samples_s, found = session.trained(
                structs.replace(cell, rate=rate), plan_of(cell, home)
            )
        if run is not None and turns is not None:
            found.save(run)
            write_output(turns, json.dumps(samples_s).encode() + b"\n")
        return samples_s, found

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.json".replace(" ", "_")

    @contextmanager
    def _session(self, effort: Effort) -> Iterator[Session]:
        require()
        with tempfile.TemporaryDirectory(prefix="syncopate-replay-") as folder:
            yield Session(effort, lambda _: None, Path(folder))


def measured(known: Measured, home: Home, cell: Cell, rates: Sequence[str]) -> list[Found]:
    """Record a training, play it at other rates, and measure it there by the same plan."""
    _, recorded = known.trained(cell, cell.rate, home)
    processors_s = statistics.median(known.trained(cell, NO_LIMIT, home)[0])
    found = []
    for rate in rates:
        times_s, iterations_s = replayed(recorded, cell, rate, home)
        samples_s, _ = known.trained(cell, rate, home)
        of = cell.exchange, cell.work, cell.rate, rate
        found.append(Found(*of, *times_s, samples_s, processors_s, iterations_s))
        print(line(found[-1]), flush=True)
    return found


def line(one: Found) -> str:
    """Return a line of the table."""
    times_s = one.recorded_s, one.replayed_s, one.processors_s, one.measured_s
    columns = [format_seconds(seconds) for seconds in times_s]
    columns += [f"{error:+.1%}" for error in one.errors]
    where = f"{one.exchange}, {one.work}, {one.recorded_at} -> {one.rate}"
    return f"{where:48s}" + "".join(f"{column:>12s}" for column in columns)


COLUMNS = ("recorded", "replayed", "no limit", "measured", "itself", "error", "by price")
HEAD = f"{'training':48s}" + "".join(f"{name:>12s}" for name in COLUMNS)


def settled(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description="A run recorded at one rate, at others.")
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--at", default=RECORDED_AT, help="the rate of the recording")
    parser.add_argument("--rates", nargs="+", default=list(RATES), help="at which it is played")
    parser.add_argument(
        "--only", nargs="+", choices=EXCHANGES, default=list(EXCHANGES), dest="exchanges",
        metavar="EXCHANGE", help="these exchanges",
    )  # fmt: skip
    parser.add_argument("--works", nargs="+", choices=(REPLAYED, COMPUTING), default=[REPLAYED])
    parser.add_argument("--traces", type=Path, help="keep what is measured, or play what is kept")
    parser.add_argument("--quick", action="store_true", help="one short training")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(words)
    if options.quick:
        options.hosts, options.rates = 2, options.rates[:1]
        options.exchanges, options.works = options.exchanges[:1], options.works[:1]
    return options


def document(options: argparse.Namespace, found: Sequence[Found]) -> bytes:
    """Return what the file holds."""
    rows = [
        asdict(one)
        | {"expected_s": one.expected_s, "measured_s": one.measured_s, "error": one.error}
        for one in found
    ]
    machine = {
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    told = {"hosts": options.hosts, "quick": options.quick, "machine": machine, "found": rows}
    return json.dumps(told, indent=1).encode() + b"\n"


def main() -> int:
    """Calibrate, then record, play and measure each training."""
    options = settled()
    found: list[Found] = []
    if options.traces is not None:
        options.traces.mkdir(parents=True, exist_ok=True)
    known = Measured(QUICK if options.quick else Effort(), options.traces)
    home = known.home(options.hosts)
    print(HEAD)
    for work in options.works:
        for exchange in options.exchanges:
            cell = Cell(hosts=options.hosts, rate=options.at, racks=1, exchange=exchange, work=work)
            try:
                found += measured(known, home, cell, options.rates)
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
