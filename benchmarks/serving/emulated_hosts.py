"""Emulated hosts: workers and servers of a lab, timed at the line rate of its links.

Ranks 0 to 3 are workers, 4 to 7 servers, 8 the scheduler, each on a host of its own. In every round
each number of servers has a job of its own, which the ranks that it does not need sit out.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from serving import work
from syncopate import KVStore
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.units import parse_rate

WORKERS, SERVERS = 4, 4
SCHEDULER = WORKERS + SERVERS
HOSTS = SCHEDULER + 1
SHAPES = ((1, 1), (4, 1), (4, 2), (4, 3), (4, 4))
"""(workers, servers) of each job."""

PLACE = "lab"


def rank_main(options: argparse.Namespace) -> None:
    """Be a worker, a server or the scheduler of every job; rank 0 prints and writes."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    groups = {workers: dist.new_group(list(range(workers))) for workers, _ in SHAPES}
    setting = work.setting_of(options.quick, options.rate)
    results = work.resumed(options.json, setting) if rank == 0 else work.Results(setting=setting)
    done = torch.tensor([results.rounds(PLACE)])
    dist.broadcast(done, 0)
    for number in range(int(done), options.rounds):
        for workers, servers in SHAPES:
            cells = _one_job(options, workers, servers, groups[workers])
            results = results.joined(cells)
        if rank == 0:
            print(f"lab: round {number + 1} of {options.rounds}", flush=True)
            if options.json:
                work.with_facts(results).save(options.json)
    dist.barrier()
    if rank == 0:
        work.tell(results, PLACE)
    dist.destroy_process_group()


def _one_job(
    options: argparse.Namespace, workers: int, servers: int, group: dist.ProcessGroup
) -> list[work.Cell]:
    """Take part in one job; return rank 0's samples, one for each cell."""
    rank = dist.get_rank()
    address = [f"10.0.0.{SCHEDULER + 1}", free_port()]
    dist.broadcast_object_list(address, SCHEDULER)
    uri, port = address
    job = Job(
        uri=str(uri), port=int(port), servers=servers, workers=workers, insecure=True, name="lab"
    )
    thread: threading.Thread | None = None
    if rank == SCHEDULER:
        thread = threading.Thread(target=Scheduler(job, work.LIMITS).run)
    elif WORKERS <= rank < WORKERS + servers:
        thread = threading.Thread(target=ParameterServer(job, limits=work.LIMITS).run)
    if thread is not None:
        thread.start()
    dist.barrier()
    cells: list[work.Cell] = []
    if rank < workers:
        cells = list(_times(options, job, group))
    dist.barrier()
    if thread is not None:
        thread.join()
    return cells if rank == 0 else []


def _times(options: argparse.Namespace, job: Job, group: dist.ProcessGroup) -> Iterator[work.Cell]:
    """Time every operation as a worker; ``init`` pushes and pulls all tensors before."""
    sets = {k: v for k, v in work.all_tensors(options.quick).items() if k != work.SMALL}
    layout = work.layout_of(sets, job.servers)
    line_bytes_per_s = parse_rate(options.rate) * TCP_GOODPUT
    with KVStore(work.RULES, job=job, limits=work.LIMITS) as store:
        store.init(work.flattened(sets))
        for what, tensors in sets.items():
            nbytes = work.busiest_bytes(layout, tensors, job.workers, job.servers)
            for name in work.OPERATIONS:
                yield work.Cell(
                    place=PLACE,
                    contender="syncopate",
                    workers=job.workers,
                    servers=job.servers,
                    what=what,
                    operation=name,
                    bound_s=nbytes / line_bytes_per_s,
                    samples_s=(_timed(store, tensors, name, group),),
                )
        dist.barrier(group)


def _timed(
    store: KVStore, tensors: dict[str, Tensor], name: str, group: dist.ProcessGroup
) -> float:
    """Return the seconds from the first worker's start to the last one's end."""
    function = work.operation(store, tensors, name)
    dist.barrier(group)
    began_s, ended_s = work.timed(function)
    both = torch.tensor([-began_s, ended_s], dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    return float(both.sum())
