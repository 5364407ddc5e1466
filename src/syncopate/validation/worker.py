"""Worker: what a rank of a lab does: calibrates and profiles, or trains by a plan and is timed."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from syncopate.artifacts.workload import Workload
from syncopate.calibration.calibrate import calibrate
from syncopate.collectives import Communicator
from syncopate.engine.distribute import Distributed, distribute
from syncopate.paramserver.job import Job as Servers
from syncopate.paramserver.worker import KVStore
from syncopate.profiling.profile import profile
from syncopate.protocol import rules
from syncopate.tracing.capture import trace
from syncopate.validation.grid import COMPUTING, REPLAYED
from syncopate.validation.job import PORT, Job, Told
from syncopate.zoo import ResNet20, Task, digits, replay
from syncopate.zoo.task import seeded

LR = 0.01
BATCH = 16
"""Images of the computing work on a rank."""

_LOST_S = 120.0
_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast")


class _Work(NamedTuple):
    """A model and its data on one rank.

    Attributes:
        task: the model with its first batch.
        batches: inputs and targets without end.
        loss: of output and targets.
    """

    task: Task
    batches: Iterator[tuple[Any, Any]]
    loss: Callable[[Any, Any], Tensor]

    @property
    def model(self) -> nn.Module:
        """The model, loss and batches of a training."""
        return self.task.model

    def optimizer(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.model.parameters(), lr=LR)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Train one iteration, as users write it."""
        inputs, targets = next(self.batches)
        optimizer.zero_grad()
        self.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def perform(job: Job) -> Told:
    """Do a worker's part of a job."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_LOST_S))
    told = _train(job) if job.plan is not None else _measure(job)
    dist.destroy_process_group()
    return told


def _measure(job: Job) -> Told:
    """Calibrate, and profile both works side by side on all ranks."""
    with Communicator() as communicator:
        cluster = calibrate(
            communicator, collectives=_COLLECTIVES, budget_s=job.effort.calibration_s
        )
    workloads = {}
    for name in (REPLAYED, COMPUTING):
        work = _made(name, job.workload)
        workloads[name] = profile(work.task, warmup=3, iterations=8, optimizer=work.optimizer())
    return Told(cluster=cluster, workloads=workloads)


def _train(job: Job) -> Told:
    work = _made(job.work, job.workload)
    with _distributed(job, work) as (model, optimizer):
        _turn(job, work, model, optimizer)
        samples_s = tuple(_turn(job, work, model, optimizer) for _ in range(job.effort.turns))
        dist.barrier()
        with trace(job.traces):
            for _ in range(job.effort.recorded + 1):
                work.step(model, optimizer)
        dist.barrier()
    return Told(samples_s=samples_s)


def _turn(job: Job, work: _Work, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train some steps together; return the seconds of one."""
    steps = job.effort.steps_of(job.work)
    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(steps):
        work.step(model, optimizer)
    return (time.perf_counter() - start_s) / steps


@contextmanager
def _distributed(job: Job, work: _Work) -> Iterator[tuple[nn.Module, torch.optim.Optimizer]]:
    """Train by the job's plan, with its servers where it has any."""
    if not job.servers:
        model, optimizer = distribute(work.model, work.optimizer(), plan=job.plan)
        yield model, optimizer
        _detach(model)
        return
    given = rules.Rules(mode="ssgd", optimizer=rules.SGD(lr=LR))
    servers = Servers(
        uri=job.addresses[-1],
        port=PORT,
        servers=job.servers,
        workers=job.workers,
        insecure=True,
    )
    with KVStore(given, job=servers) as store:
        model, optimizer = distribute(work.model, work.optimizer(), plan=job.plan, exchange=store)
        yield model, optimizer
        _detach(model)


def _detach(model: nn.Module) -> None:
    assert isinstance(model, Distributed)
    model.syncopate.detach()


def _made(name: str, workload: Workload) -> _Work:
    if name == REPLAYED:
        model = replay(workload)
        return _Work(model.task(), ((None, None) for _ in count()), lambda output, _: output)
    data, rank = digits(), int(os.environ["RANK"])

    def batches(epoch: int) -> Iterator[tuple[Any, Any]]:
        return data.batches(BATCH, epoch=epoch, rank=rank, world_size=dist.get_world_size())

    with seeded(0):
        real = ResNet20()
    inputs, targets = next(batches(0))
    endless = (batch for epoch in count() for batch in batches(epoch))
    return _Work(Task(real, inputs, targets, cross_entropy, "ResNet-20"), endless, cross_entropy)
