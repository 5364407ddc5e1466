"""Trained: what a rank does: blocks of iterations with and without a fault, each captured apart.

    python -m faults.trained job.json

The blocks with the fault and those without take turns: without, with, with, without, and so on, so
that whatever drifts meets both.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import syncopate
from faults.injected import Between, injected, on_a_core
from faults.job import Job, Told, awaited
from faults.machine import QUIET, Others, calm
from faults.named import FAULTS, Fault
from faults.serving import leave, meet, serve, served_job
from syncopate import KVStore
from syncopate.artifacts.workload import Workload
from syncopate.calibration.calibrate import calibrate
from syncopate.collectives import Communicator
from syncopate.units import KIB, MIB
from syncopate.zoo import replay

SPOILT, MENDED = "spoil-the-link", "mend-the-link"
"""What rank 0 prints to have a link changed; the answer is a file in the folder of the job."""

_LIMIT_S = 240.0
_LR = 1e-3
_SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)


def main() -> None:
    """Be a rank."""
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    job = Job.load(sys.argv[1])
    torch.set_num_threads(1)
    fault = FAULTS.get(job.fault)
    if fault is not None and fault.servers:
        if int(os.environ["RANK"]) >= fault.workers:
            serve(job, fault)
            return
        os.environ["WORLD_SIZE"] = str(fault.workers)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_LIMIT_S))
    if fault is None:
        told = _calibrated(job)
    else:
        told = _profiled(job, fault) if fault.profiled else _trained(job, fault)
    told.save(job.told(dist.get_rank()))
    dist.destroy_process_group()


def _calibrated(job: Job) -> Told:
    with Communicator() as communicator:
        return Told(cluster=calibrate(communicator, budget_s=job.budget_s, sizes=_SIZES))


def _trained(job: Job, fault: Fault) -> Told:
    assert job.plan is not None
    rank = dist.get_rank()
    bare = replay(_without_times(job.workload) if fault.real else job.workload)
    spend = on_a_core(rank) if fault.real else time.sleep
    # Servers update: they know torch's optimizers alone.
    optimizer = torch.optim.SGD(bare.parameters(), lr=_LR) if fault.servers else bare.optimizer()
    os.environ["SYNCOPATE_TRACE"] = str(Path(job.folder) / "before")
    with _store(fault) as store:
        model, optimizer = syncopate.distribute(bare, optimizer, plan=job.plan, exchange=store)
        syncopate.trace(os.environ["SYNCOPATE_TRACE"]).stop()
        step = _stepper(model, optimizer)
        whose = {"rank": rank, "model": model, "workload": job.workload, "optimizer": optimizer}
        inject = partial(injected, fault, spend=spend, **whose)
        ends_s, others = [], []
        for number, round_, faulty in job.blocks():
            if number % 2 == 0 and not _goes_on(job, fault, others):
                break
            if job.other is not None:
                model.syncopate.install(job.other if faulty else job.plan)
            if fault.host >= 0:
                _change_link(job, number, faulty)
            meet(job, fault, number)
            with inject(faulty=faulty) as between:
                _warm_up(step)
                with syncopate.trace(job.trace(round_, faulty)):
                    watched = Others()
                    ends_s.append(_block(step, between, job.iterations))
                    others.append(watched.share())
            meet(job, fault, number, behind=True)
        leave(job, fault)
        model.syncopate.detach()
    return Told(ends_s=tuple(ends_s), others=tuple(others))


def _profiled(job: Job, fault: Fault) -> Told:
    """Train plain DDP in blocks, each of them profiled, without a plan of ours."""
    rank = dist.get_rank()
    bare = replay(job.workload)
    model = DistributedDataParallel(bare, bucket_cap_mb=1.0)
    optimizer = bare.optimizer()
    step = _stepper(model, optimizer)
    whose = {"rank": rank, "model": model, "workload": job.workload, "optimizer": optimizer}
    inject = partial(injected, fault, **whose)
    ends_s, others = [], []
    for number, round_, faulty in job.blocks():
        if number % 2 == 0 and not _goes_on(job, fault, others):
            break
        if fault.host >= 0:
            _change_link(job, number, faulty)
        with inject(faulty=faulty) as between:
            _warm_up(step)
            job.trace(round_, faulty).mkdir(exist_ok=True)
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                watched = Others()
                ends_s.append(_block(step, between, job.iterations))
                others.append(watched.share())
            profiler.export_chrome_trace(str(job.trace(round_, faulty) / f"rank{rank}.json"))
            # Else the next block collects what this one has recorded, in one of its iterations.
            del profiler
            gc.collect()
            dist.barrier()
    return Told(ends_s=tuple(ends_s), others=tuple(others))


def _goes_on(job: Job, fault: Fault, others: list[float]) -> bool:
    """Say whether there are too few undisturbed rounds yet; every rank calls it."""
    both = zip(others[::2], others[1::2], strict=True)
    quiet = sum(fault.noisy or max(shares) <= QUIET for shares in both)
    wanted = torch.tensor([float(quiet < job.rounds)])
    dist.broadcast(wanted, 0)
    if wanted and not fault.noisy and dist.get_rank() == 0:
        calm()
    dist.barrier()
    return bool(wanted)


def _store(fault: Fault) -> AbstractContextManager[KVStore | None]:
    """Return what joins the servers of a training, where it has some."""
    if not fault.servers:
        return nullcontext()
    return KVStore(job=served_job(fault, dist.get_rank()))


def _without_times(workload: Workload) -> Workload:
    """Return what takes no time by itself: hooks compute instead."""
    tensors = tuple(structs.replace(t, forward_s=0.0, backward_s=0.0) for t in workload.tensors)
    return structs.replace(workload, tensors=tensors, forward_s=0.0, backward_s=0.0, update_s=0.0)


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
        print(SPOILT if faulty else MENDED, block, flush=True)
    awaited(job.answer(block))
    dist.barrier()


if __name__ == "__main__":
    main()
