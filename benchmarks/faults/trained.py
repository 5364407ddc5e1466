"""Trained: what a rank does: blocks of iterations with and without a fault, each captured apart.

    python -m faults.trained job.json

The blocks with the fault and those without take turns: without, with, with, without, and so on, so
that whatever drifts meets both.
"""

from __future__ import annotations

import datetime
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import syncopate
from faults.injected import CUT_TO, FAULTS, Between, Fault, injected
from syncopate.artifacts import Artifact
from syncopate.calibration.calibrate import calibrate
from syncopate.cluster import Cluster
from syncopate.collectives import Communicator
from syncopate.plan import Plan
from syncopate.units import KIB, MIB
from syncopate.workload import Workload
from syncopate.zoo import replay

CUT, MENDED = "cut-the-link", "mend-the-link"
"""What rank 0 prints to have a link changed; the answer is a file in the folder of the job."""

_LIMIT_S = 120.0
_POLL_S = 0.01
_SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)


class Job(Artifact, frozen=True, kw_only=True):
    """What the ranks are to do.

    Attributes:
        fault: a name in ``FAULTS``; empty: calibrate.
        workload: what is trained, as replayed.
        folder: where traces go, and what ranks tell.
        rounds: blocks with the fault, and as many without.
        iterations: counted ones of a block.
        plan: of the healthy training.
        other: of that with the fault, where it has another plan.
        budget_s: of a calibration.
    """

    KIND = "explain-faults-job"

    fault: str
    workload: Workload
    folder: str
    rounds: int = 1
    iterations: int = 12
    plan: Plan | None = None
    other: Plan | None = None
    budget_s: float = 5.0

    def told(self, rank: int) -> Path:
        """Return where a rank writes what it tells."""
        return Path(self.folder) / f"rank{rank}.json"

    def trace(self, round_: int, faulty: bool) -> Path:
        """Return where a block is captured."""
        return Path(self.folder) / f"{'with' if faulty else 'without'}-{round_}"

    def answer(self, block: int) -> Path:
        """Return the file that is there when the link has been changed for a block."""
        return Path(self.folder) / f"link-{block}"

    def blocks(self) -> Iterator[tuple[int, int, bool]]:
        """Yield number, round and whether it has the fault, of every block in order."""
        for number in range(2 * self.rounds):
            yield number, number // 2, number % 4 in (1, 2)


class Told(Artifact, frozen=True, kw_only=True):
    """What one rank tells.

    Attributes:
        ends_s: block -> when each of its iterations ended, by ``time.perf_counter``, which all
            ranks of a lab share.
        cluster: as calibrated, where that was asked for.
    """

    KIND = "explain-faults-told"

    ends_s: tuple[tuple[float, ...], ...] = ()
    cluster: Cluster | None = None


def main() -> None:
    """Be a rank."""
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    job = Job.load(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_LIMIT_S))
    told = _trained(job) if job.fault else _calibrated(job)
    told.save(job.told(dist.get_rank()))
    dist.destroy_process_group()


def _calibrated(job: Job) -> Told:
    with Communicator() as communicator:
        return Told(cluster=calibrate(communicator, budget_s=job.budget_s, sizes=_SIZES))


def _trained(job: Job) -> Told:
    assert job.plan is not None
    fault, rank = FAULTS[job.fault], dist.get_rank()
    bare = replay(job.workload)
    os.environ["SYNCOPATE_TRACE"] = str(Path(job.folder) / "before")
    model, optimizer = syncopate.distribute(bare, bare.optimizer(), plan=job.plan)
    syncopate.trace(os.environ["SYNCOPATE_TRACE"]).stop()
    step = _stepper(model, optimizer)
    ends_s = []
    for number, round_, faulty in job.blocks():
        if job.other is not None:
            model.syncopate.install(job.other if faulty else job.plan)
        if fault.name == "link":
            _change_link(job, number, faulty)
        with injected(_fault_of(fault, faulty), rank, model, bare, optimizer) as between:
            _warm_up(step)
            with syncopate.trace(job.trace(round_, faulty)):
                ends_s.append(_block(step, between, job.iterations))
    model.syncopate.detach()
    return Told(ends_s=tuple(ends_s))


def _fault_of(fault: Fault, faulty: bool) -> Fault:
    return fault if faulty else fault._replace(name="")


def _stepper(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    def step() -> None:
        optimizer.zero_grad()
        model(None).backward()
        optimizer.step()

    return step


def _warm_up(step: Any) -> None:
    for _ in range(2):
        step()
    dist.barrier()


def _block(step: Any, between: Between, iterations: int) -> tuple[float, ...]:
    """Return when each iteration ended; the first is for the others to begin by."""
    ends_s = []
    for iteration in range(1 + iterations):
        between(iteration)
        step()
        ends_s.append(time.perf_counter())
    return tuple(ends_s)


def _change_link(job: Job, block: int, faulty: bool) -> None:
    """Ask whoever made the lab to change the link, and wait until that is done."""
    dist.barrier()
    if dist.get_rank() == 0:
        print(CUT if faulty else MENDED, block, CUT_TO, flush=True)
    while not job.answer(block).exists():
        time.sleep(_POLL_S)
    dist.barrier()


if __name__ == "__main__":
    main()
