"""Session: takes the turns that are missing, in one lab, and keeps what they took."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import iteration_bound_s
from syncopate.delay import Delay
from syncopate.engine.selfplan import cache
from syncopate.errors import SyncopateError
from syncopate.lab import Lab
from syncopate.planning import make_plan
from syncopate.planning.planner import CHANNELS
from syncopate.planning.registry import filled_to
from syncopate.simulation.delay import with_delay
from syncopate.units import MIB, format_seconds

from .results import Cell, Place, Results, WorkResult
from .turn import PREPARE, SETTLE, TRAIN, Job, Told, collected, distance
from .variants import ALONE, REFERENCE, SELF, VARIANTS, Variant
from .works import OPTIMIZERS, WORKS

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Makes glibc keep what is freed. Else each large gradient is new memory in every step, and getting
that from the kernel takes longer than the backward of VGG-16's largest layer, which is replayed."""

_FILLED_TO = (MIB, 2 * MIB, 4 * MIB)
"""Buckets of plans with a delay, beside those that are best without."""

Take = Callable[[Results], None]


class UnavailableError(SyncopateError):
    """A variant that could not run, and why."""


class Session:
    """One lab and the results so far.

    Args:
        lab: entered.
        script: what every rank runs, with ``--job FILE``.
        folder: for what the ranks are told, and tell.
        results: what is known already.
        keep: called with the results after every turn.
        calibration_s: how long to calibrate.
        limit_s: how long the ranks may take for one job.
    """

    def __init__(
        self,
        lab: Lab,
        script: str,
        folder: Path,
        results: Results,
        keep: Take,
        *,
        calibration_s: float,
        limit_s: float,
    ) -> None:
        self.results = results
        self._lab = lab
        self._script = script
        self._folder = folder
        self._keep = keep
        self._calibration_s = calibration_s
        self._limit_s = limit_s
        self._references: dict[str, Path] = {}
        self._jobs = 0

    def measure(self, places: Sequence[Place]) -> None:
        """Take turns; what cannot run says so, and the others go on.

        Raises:
            KeyboardInterrupt: the user ended the ranks; all turns before are kept.
            UnavailableError: a model could not be profiled, or the lab not be calibrated.
        """
        failed: set[tuple[str, str]] = set()
        for index, place in enumerate(places):
            if (place.work, place.variant) in failed:
                continue
            self._prepare(place.work)
            head = f"[{index + 1}/{len(places)}] {place.work}, round {place.round + 1}"
            print(f"{head}: {place.variant} ...", flush=True)
            cell = self.results.cell(place.work, place.variant)
            try:
                cell = self._turn(place, structs.replace(cell, missing=""))
                print(f"{head}: {place.variant} {format_seconds(cell.turns[-1].step_s)}")
            except UnavailableError as error:
                failed.add((place.work, place.variant))
                cell = structs.replace(
                    self.results.cell(place.work, place.variant), missing=str(error)
                )
                print(f"{head}: {place.variant} is not available: {error}")
            self._put(place, cell)

    def _put(self, place: Place, cell: Cell) -> None:
        self.results = self.results.with_cell(place.work, place.variant, cell)
        self._keep(self.results)

    def _prepare(self, name: str) -> None:
        """Calibrate once, and profile a model once."""
        if name in self.results.works:
            return
        calibrating = self.results.cluster is None
        print(f"{name}: profiling{', calibrating' if calibrating else ''} ...", flush=True)
        told = self._run(
            PREPARE, name, "", calibration_s=self._calibration_s if calibrating else 0.0
        )[0]
        cluster = told.cluster or self.results.cluster
        assert cluster is not None
        assert told.workload is not None
        bare = structs.replace(told.workload, update_s=0.0)
        work = WorkResult(workload=told.workload, bound_s=iteration_bound_s(bare, cluster))
        self.results = structs.replace(
            self.results, cluster=cluster, works=self.results.works | {name: work}
        )
        self._keep(self.results)

    def _turn(self, place: Place, cell: Cell) -> Cell:
        """Return the cell with one turn more."""
        variant = VARIANTS[place.variant]
        os.environ[cache.VARIABLE] = "off"
        if variant.exchange and cell.plan is None:
            cell = structs.replace(cell, plan=self._plan(place.work, variant))
        if variant.name == SELF:
            cell = self._settled(place.work, cell)
        job = self._job(
            TRAIN, place.work, place.variant, plan=cell.plan if variant.exchange else None
        )
        told = self._told(job)
        if told[0].plan is not None:
            cell = structs.replace(cell, plan=told[0].plan)
        turn = collected(job, told, self._off(place, job))
        return structs.replace(cell, turns=(*cell.turns, turn))

    def _plan(self, name: str, variant: Variant) -> Plan:
        found = self.results.works[name].workload
        cluster = self.results.cluster
        assert cluster is not None
        optimizer = self.results.setting.optimizer or WORKS[name].optimizer
        delay = variant.delay(OPTIMIZERS[optimizer][0])
        return best_plan(found, cluster, variant.exchange, delay)

    def _settled(self, name: str, cell: Cell) -> Cell:
        """Let self-planning settle, unless it has; put what it kept where the ranks look for it."""
        where = self._folder / f"cache-{name}"
        where.mkdir(exist_ok=True)
        os.environ[cache.VARIABLE] = str(where)
        if cell.settled is not None:
            cache.write(cell.settled)
        if cell.planning_s:
            return cell
        told = self._run(SETTLE, name, SELF)[0]
        print(f"{name}: settled in {len(told.steps_s)} steps, {sum(told.steps_s):.0f} s")
        return structs.replace(cell, planning_s=told.steps_s, settled=told.settled, plan=told.plan)

    def _off(self, place: Place, job: Job) -> float | None:
        """Compare a real model's weights with the reference's; measure that where it is missing."""
        variant = VARIANTS[place.variant]
        if not WORKS[place.work].real or variant.name == ALONE or variant.delayed:
            return None
        if place.work not in self._references:
            if place.variant != REFERENCE:
                there = self._job(TRAIN, place.work, REFERENCE)
                self._told(there)
                self._references[place.work] = there.weights
            else:
                self._references[place.work] = job.weights
        return distance(job.weights, self._references[place.work])

    def _job(
        self,
        what: str,
        work: str,
        variant: str,
        *,
        plan: Plan | None = None,
        calibration_s: float = 0,
    ) -> Job:
        self._jobs += 1
        folder = self._folder / f"job{self._jobs}"
        folder.mkdir()
        return Job(
            what=what,
            work=work,
            variant=variant,
            setting=self.results.setting,
            folder=str(folder),
            plan=plan,
            calibration_s=float(calibration_s),
            limit_s=self._limit_s,
        )

    def _run(self, what: str, work: str, variant: str, *, calibration_s: float = 0) -> list[Told]:
        return self._told(self._job(what, work, variant, calibration_s=calibration_s))

    def _told(self, job: Job) -> list[Told]:
        """Let all ranks do a job, and return what they tell."""
        path = job.save(Path(job.folder) / "job.json")
        last: deque[str] = deque(maxlen=30)
        outcome = self._lab.run(
            [sys.executable, self._script, "--job", str(path)],
            environment=os.environ | KEEP_MEMORY,
            sink=lambda rank, _, line: last.append(f"rank {rank}: {line}"),
        )
        if outcome.received is not None:
            raise KeyboardInterrupt
        ranks = range(self.results.setting.hosts)
        told = [Told.load(job.told(rank)) for rank in ranks if job.told(rank).exists()]
        errors = [one.error for one in told if one.error]
        if outcome.exit_code or len(told) < len(ranks):
            print("\n".join(last), file=sys.stderr)
            raise UnavailableError(errors[0] if errors else outcome.summary())
        return told


def best_plan(
    workload: Workload, cluster: Cluster, exchange: str, delay: Delay | None = None
) -> Plan:
    """Return the plan of an exchange with the shortest predicted iteration.

    Raises:
        UnavailableError: no plan of this exchange can be made.
    """
    try:
        plan = make_plan(workload, cluster, "auto", exchange=exchange)
        if delay is None:
            return plan
        # What is best with a pull in every step need not be with one in k.
        plans = [plan]
        plans += [
            make_plan(workload, cluster, filled_to(nbytes), exchange=exchange, channels=channels)
            for nbytes in _FILLED_TO
            for channels in CHANNELS
        ]
        tried = [with_delay(each, delay, workload, cluster) for each in plans]
        return min(tried, key=lambda each: each.expected_s)
    except SyncopateError as error:
        raise UnavailableError(str(error)) from error
