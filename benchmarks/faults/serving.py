"""Serving: the parameter servers of a training, of which one may be slow.

The last hosts of the lab are servers, and the first of them is the scheduler too. What workers do
is in ``trained.py``. Workers are ranks of one process group, servers are not: before and after
every block they meet by files in the folder of the job.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch.distributed as dist

import syncopate
from faults.job import Job, awaited
from faults.named import SLOW_SERVER, UPDATING_S, Fault
from syncopate.lab import Topology
from syncopate.paramserver import server as serving
from syncopate.paramserver.job import Job as Served
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.storage.shard import Shard
from syncopate.protocol.actions import Update

_PORT = 9200
_BEFORE, _BEHIND = "before", "behind"


class SlowShard(Shard):
    """The slices of a server that takes longer for an update, while it is told to."""

    slow = False

    def update(self, action: Update) -> None:
        """Add gradients and step, later."""
        if SlowShard.slow:
            time.sleep(UPDATING_S)
        super().update(action)


def served_job(fault: Fault, rank: int) -> Served:
    """Return how a rank of the lab, a worker or a server, finds the others."""
    topology, among = Topology(hosts=fault.hosts), rank - fault.workers
    return Served(
        uri=topology.address(fault.workers),
        port=_PORT,
        servers=fault.servers,
        workers=fault.workers,
        host=topology.address(rank) if among >= 0 else "",
        rank=among if among >= 0 else rank,
        insecure=True,
    )


def serve(job: Job, fault: Fault) -> None:
    """Be a server to the end of the training; the first one is the scheduler too."""
    mine = served_job(fault, int(os.environ["RANK"]))
    if mine.rank == SLOW_SERVER:
        serving.Shard = SlowShard  # type: ignore[misc]
    runs = [ParameterServer(mine).run]
    if mine.rank == 0:
        runs.append(Scheduler(mine).run)
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for number, round_, faulty in job.blocks():
        over = _over(job)
        if awaited(_met(job, number, _BEFORE), over) == over:
            break
        SlowShard.slow = faulty and fault.name == "server"
        with syncopate.trace(job.trace(round_, faulty)):
            _met(job, number, _BEFORE, mine.rank).touch()
            awaited(_met(job, number, _BEHIND))
        _met(job, number, _BEHIND, mine.rank).touch()
    for thread in threads:
        thread.join()


def meet(job: Job, fault: Fault, number: int, *, behind: bool = False) -> None:
    """Meet the servers before a block, or behind it; every worker calls it."""
    if not fault.servers:
        return
    when = _BEHIND if behind else _BEFORE
    dist.barrier()
    if dist.get_rank() == 0:
        _met(job, number, when).touch()
        for rank in range(fault.servers):
            awaited(_met(job, number, when, rank))
    dist.barrier()


def leave(job: Job, fault: Fault) -> None:
    """Tell the servers that no block follows; every worker calls it."""
    if fault.servers and dist.get_rank() == 0:
        _over(job).touch()


def _over(job: Job) -> Path:
    return Path(job.folder) / "over"


def _met(job: Job, number: int, when: str, server: int | None = None) -> Path:
    return Path(job.folder) / f"block{number}-{when}{'' if server is None else f'-s{server}'}"
