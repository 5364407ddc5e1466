"""Session: the cells of the lab's grid, predicted and measured one after the other.

Every number of hosts is calibrated once, at home; every cell has a lab of its own. What was found
is kept after each cell, so that a stop loses the cell under way alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from syncopate.analysis.phases import Phases, mean, phases
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import SyncopateError
from syncopate.lab.lab import Lab
from syncopate.lab.topology import Topology
from syncopate.output import Progress, say
from syncopate.simulation import simulate
from syncopate.tracing.run import read_run
from syncopate.validation.expected import (
    cluster_of,
    costs_of,
    home_with,
    plan_of,
    predicted_s,
    replayed_workload,
)
from syncopate.validation.grid import PERIOD, Cell, home_of
from syncopate.validation.job import Effort, Job, Told
from syncopate.validation.point import LAB, Home, Phase, Point, Validation

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Makes glibc keep what is freed: getting a large gradient's memory anew in each step takes long,
and no profile of one model alone knows of it."""

_LINES = 30
_PLAYED = 1 + PERIOD
"""Iterations that are played for their phases; the first has no weights to wait for."""

Keep = Callable[[Validation], object]


class UnavailableError(SyncopateError):
    """A cell that could not be measured, and why."""


class Session:
    """Measures cells in labs of this machine.

    Args:
        effort: how long each measurement takes.
        keep: called with everything that is known after each cell.
        folder: for what ranks are told, and tell, while a cell is measured.
    """

    def __init__(self, effort: Effort, keep: Keep, folder: Path) -> None:
        self._effort = effort
        self._keep = keep
        self._folder = folder

    def measure(
        self, cells: Sequence[Cell], known: Validation, progress: Progress | None = None
    ) -> Validation:
        """Predict and measure cells; a cell that cannot be measured says why, others go on.

        Args:
            cells: those that are missing.
            known: what was found before.
            progress: called before every cell.

        Raises:
            KeyboardInterrupt: the user ended the ranks; all cells before are kept.
            UnavailableError: some hosts could not be calibrated.
        """
        for index, cell in enumerate(cells):
            if not any(home.hosts == cell.hosts for home in known.homes):
                say(progress, f"calibrating {cell.hosts} hosts", index / len(cells))
                known = structs.replace(known, homes=(*known.homes, self.home(cell.hosts)))
                self._keep(known)
            say(progress, cell.name, index / len(cells))
            home = next(home for home in known.homes if home.hosts == cell.hosts)
            missing = {name: why for name, why in known.missing.items() if name != cell.name}
            try:
                known = known.with_points([self.point(cell, home)])
            except SyncopateError as error:
                missing[cell.name] = str(error)
            known = structs.replace(known, missing=missing)
            self._keep(known)
        say(progress, "", 1.0)
        return known

    def home(self, hosts: int) -> Home:
        """Calibrate some hosts and profile both works there."""
        topology = home_of(hosts)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            told = self._told(self._job(folder, topology, hosts), topology)
        assert told[0].cluster is not None
        return home_with(hosts, told[0].cluster, told[0].workloads)

    def point(self, cell: Cell, home: Home) -> Point:
        """Predict a cell, then measure it twice: on its own links, and without their limit.

        Raises:
            UnavailableError: a rank failed.
            SyncopateError: no plan of its exchange can be made.
        """
        plan = plan_of(cell, home)
        assert plan.prediction is not None
        samples_s, measured = self.trained(cell, plan)
        unlimited_s, _ = self.trained(cell.unlimited, plan)
        again_s, _ = self.trained(cell, plan)
        unlimited_again_s, _ = self.trained(cell.unlimited, plan)
        return Point(
            kind=LAB,
            name=cell.name,
            work=cell.work,
            network=cell.network,
            ranks=cell.hosts,
            hosts=cell.hosts,
            exchange=cell.exchange,
            way=plan.policy,
            calibrated=home_of(cell.hosts).describe(),
            prediction=plan.prediction,
            samples_s=samples_s,
            again_s=again_s,
            phases=_phases(_played(cell, plan, home), measured),
            unlimited=Phase(
                name="links no limit",
                predicted_s=predicted_s(cell.unlimited, plan, home),
                measured_s=statistics.median(unlimited_s + unlimited_again_s),
            ),
        )

    def trained(self, cell: Cell, plan: Plan) -> tuple[tuple[float, ...], Timeline]:
        """Train as a cell says, by a plan; return seconds of an iteration, by turn, and a run.

        Raises:
            UnavailableError: a rank failed.
        """
        topology = cell.topology
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            job = self._job(folder, topology, cell.hosts)
            job = structs.replace(job, work=cell.work, plan=plan, servers=cell.servers)
            told = self._told(job, topology)
            measured = read_run(job.traces).timeline
        turns = zip(*(one.samples_s for one in told), strict=True)
        return tuple(map(max, turns)), measured

    def _job(self, folder: str, topology: Topology, workers: int) -> Job:
        return Job(
            folder=folder,
            effort=self._effort,
            workers=workers,
            workload=replayed_workload(),
            addresses=tuple(topology.address(host) for host in range(topology.hosts)),
        )

    def _told(self, job: Job, topology: Topology) -> list[Told]:
        """Let all ranks do a job in a lab; return what the workers tell."""
        path = job.save(Path(job.folder) / "job.json")
        last: deque[str] = deque(maxlen=_LINES)
        with Lab(topology) as lab:
            outcome = lab.run(
                [sys.executable, "-m", "syncopate.validation.rank", str(path)],
                environment=os.environ | KEEP_MEMORY,
                sink=lambda rank, _, line: last.append(f"rank {rank}: {line}"),
            )
        if outcome.received is not None:
            raise KeyboardInterrupt
        ranks = range(job.workers)
        told = [Told.load(job.told(rank)) for rank in ranks if job.told(rank).exists()]
        errors = [one.error for one in told if one.error]
        if errors or outcome.exit_code or len(told) < job.workers:
            raise UnavailableError(errors[0] if errors else _why(outcome.summary(), last))
        return told


def _why(summary: str, last: Sequence[str]) -> str:
    """Return how a lab ended, and the last thing that a rank printed."""
    return f"{summary}; last: {last[-1]}" if last else summary


def _played(cell: Cell, plan: Plan, home: Home) -> Timeline:
    cluster = cluster_of(cell, home)
    costs = costs_of(cell, cluster)
    return simulate(home.workloads[cell.work], plan, cluster, costs=costs, iterations=_PLAYED)


def _phases(played: Timeline, measured: Timeline) -> tuple[Phase, ...]:
    """Return what the parts of an iteration take, in the mean over ranks and iterations.

    The first iteration of what was played, and the last of what was captured, are left out: one
    has no weights to wait for, and the other no iteration after it that says when it ended.
    """
    expected, found = _mean(played, first=True), _mean(measured, first=False)
    rows = (
        ("computation", expected.computation_s, found.computation_s),
        ("communication", expected.communication_s, found.communication_s),
        (
            "exposed communication",
            expected.exposed_communication_s,
            found.exposed_communication_s,
        ),
    )
    return tuple(
        Phase(name=name, predicted_s=expected_s, measured_s=measured_s)
        for name, expected_s, measured_s in rows
    )


def _mean(timeline: Timeline, *, first: bool) -> Phases:
    """Return the mean over iterations but the first, or but the last where there are several."""
    every = phases(timeline)
    numbers = sorted({one.iteration for one in every})
    kept = (numbers[1:] if first else numbers[:-1]) or numbers
    return mean([one for one in every if one.iteration in kept])
