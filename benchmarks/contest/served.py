"""Served: what each host of a lab does in a turn with parameter servers.

The first hosts are workers, the next ones servers, and the last one is the scheduler. Servers and
scheduler are the project's own commands, ``syncopate ps server`` and ``syncopate ps scheduler``;
workers do what is here. ``host.py`` leads each host through all turns.

[Note: whole periods] With a delay a turn counts whole periods of k steps. The steps before are k
synchronous ones, which are the delay's warm-up, and the first delayed one. The pull after the last
step of a period arrives in the first of the next, so every k steps in a row from there on have one
pull in them.
"""

from __future__ import annotations

import datetime
import faulthandler
import math
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import accumulate, count, pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec import structs

import syncopate
from syncopate import KVStore
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.plan import SERVED, Plan, Prediction
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.served import served_costs
from syncopate.delay import Delay
from syncopate.lab import Topology
from syncopate.paramserver.job import Job
from syncopate.planning import make_plan, predict
from syncopate.protocol import rules
from syncopate.simulation.delay import with_delay
from syncopate.units import parse_rate
from syncopate.zoo import replay

from .turn import Told, stepper
from .works import Trained

WORKERS, MOST_SERVERS = 4, 4
SCHEDULER = WORKERS + MOST_SERVERS
HOSTS = SCHEDULER + 1

ALONE, SSGD, ASGD = "alone", "ssgd", "asgd"
SSD = {f"ssd-{k}": k for k in range(1, 6)}
METHODS = (ALONE, SSGD, ASGD, *SSD)

LR = 0.01
TOLD = "told"
"""What a worker prints, with the number of the turn, once it has told."""

_PORT = 9100
_LOST_S = 300.0


class Case(Record, frozen=True):
    """What one turn trains.

    Attributes:
        model: one of the paper's.
        batch: images a GPU.
        servers: how many; 0 for a method without.
        method: one of ``METHODS``.
    """

    model: str
    batch: int
    servers: int
    method: str

    @property
    def name(self) -> str:
        """Its key in a file."""
        return f"{self.model}/{self.batch}/{self.servers}/{self.method}"

    @property
    def place(self) -> str:
        """The key of its buckets, which all methods on these servers share."""
        return f"{self.model}/{self.batch}/{self.servers}"

    @property
    def delay(self) -> Delay | None:
        """Its delay, of the shortest warm-up there is; None for synchronous methods."""
        k = SSD.get(self.method)
        return None if k is None else Delay(k=k, warm_up=k - 1)

    def steps(self, least: int) -> tuple[int, int]:
        """Return the steps before those that count, and these; see [Note: whole periods].

        Args:
            least: how many count at least.
        """
        k = SSD.get(self.method, 1)
        return k + 1, k * math.ceil(least / k)


def case_of(name: str) -> Case:
    """Return the case of this name."""
    model, batch, servers, method = name.split("/")
    return Case(model, int(batch), int(servers), method)


class Turn(Artifact, frozen=True, kw_only=True):
    """What every host reads in a turn.

    Attributes:
        case: what is trained.
        workload: of it, computed by sleeping.
        plan: to train by; None without servers.
        least: steps to count at least.
        number: of the turn; the port of its servers' job follows from it.
        limit_s: after so long a worker gives up.
        folder: where workers write what they tell.
        rate: of each host's link.
    """

    KIND = "delayed-benchmark-turn"

    case: Case
    workload: Workload
    plan: Plan | None
    least: int
    number: int
    limit_s: float
    folder: str
    rate: str

    def told(self, rank: int) -> Path:
        """Return where a worker writes what it tells."""
        return Path(self.folder) / f"rank{rank}.json"


def topology_of(rate: str) -> Topology:
    """Return the lab: workers, servers and the scheduler, each on a host."""
    return Topology(hosts=HOSTS, rate_bytes_per_s=parse_rate(rate))


class Planner:
    """Plans cases; the methods that share model and servers share buckets.

    Args:
        rate: of each host's link.
    """

    def __init__(self, rate: str) -> None:
        rate_bytes_per_s = parse_rate(rate)
        self._workers = Topology(hosts=WORKERS, rate_bytes_per_s=rate_bytes_per_s).cluster()
        self._plans: dict[str, Plan] = {}

    def plan(self, case: Case, workload: Workload) -> Plan | None:
        """Return the plan of a case with its prediction; None without servers."""
        if not case.servers:
            return None
        costs = served_costs(self._workers, case.servers)
        if case.place not in self._plans:
            self._plans[case.place] = make_plan(
                workload, self._workers, "auto", exchange=SERVED, costs=costs
            )
        plan = self._plans[case.place]
        if case.delay is None:
            return plan
        return with_delay(plan, case.delay, workload, self._workers, costs)

    def again(self, case: Case, workload: Workload, counts: Sequence[int]) -> Prediction:
        """Return what is expected today of a synchronous or delayed plan that ran before.

        Args:
            case: with servers.
            workload: of it.
            counts: how many gradients each of the plan's buckets held, in ready order.
        """
        costs = served_costs(self._workers, case.servers)
        plan = make_plan(workload, self._workers, "single", exchange=SERVED, costs=costs)
        ends = list(accumulate(counts))
        buckets = []
        for start, end in pairwise((0, *ends)):
            held = workload.tensors[start:end]
            names, nbytes = tuple(one.name for one in held), sum(one.nbytes for one in held)
            buckets.append(structs.replace(plan.buckets[0], tensors=names, nbytes=nbytes))
        plan = structs.replace(plan, buckets=tuple(buckets), prediction=None)
        plan = plan.delayed(case.delay) if case.delay is not None else plan
        return predict(workload, plan, self._workers, costs)


def commands(turn: Turn, topology: Topology) -> dict[str, list[str]]:
    """Return what servers and scheduler of a turn run, by their hosts' numbers."""
    servers = turn.case.servers
    if not servers:
        return {}
    job = _job(turn, topology)
    command = [sys.executable, "-m", "syncopate", "ps"]
    place = ["--host", job.uri, "--port", str(job.port), "--servers", str(servers)]
    place += ["--workers", str(WORKERS), "--insecure"]
    found = {str(SCHEDULER): [*command, "scheduler", *place]}
    for host in range(WORKERS, WORKERS + servers):
        own = ["--own-host", topology.address(host)]
        found[str(host)] = [*command, "server", *place, *own]
    return found


def _job(turn: Turn, topology: Topology) -> Job:
    return Job(
        uri=topology.address(SCHEDULER),
        port=_PORT + turn.number,
        servers=max(turn.case.servers, 1),
        workers=WORKERS,
        insecure=True,
    )


def work_apart(path: Path, rank: int) -> None:
    """Be a worker in a turn, in a process of its own; what went wrong there is told."""
    turn = Turn.load(path)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        code = _work(turn, rank)
        print(f"{TOLD} {turn.number}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(turn: Turn, rank: int) -> int:
    faulthandler.dump_traceback_later(turn.limit_s, exit=True)
    torch.set_num_threads(1)
    os.environ["WORLD_SIZE"] = str(WORKERS)
    # A rendezvous of its own: the one before may not be over everywhere.
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + turn.number)
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_LOST_S))
        steps_s = _train(turn, _job(turn, topology_of(turn.rate)))
    except Exception as error:  # a method that fails is a result
        traceback.print_exc()
        Told(error=f"{type(error).__name__}: {error}").save(turn.told(rank))
        return 1
    Told(steps_s=steps_s).save(turn.told(rank))
    dist.destroy_process_group()
    return 0


def _train(turn: Turn, job: Job) -> tuple[float, ...]:
    """Return the seconds of every counted step of this worker."""
    model = replay(turn.workload)
    endless = ((None, None) for _ in count())
    trained = Trained(model, model.task(), endless, lambda output, _: output)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    before, counted = turn.case.steps(turn.least)
    if not turn.case.servers:
        step = stepper(trained, model, optimizer)
        dist.barrier()
        return tuple(step() for _ in range(before + counted))[before:]
    mode = "asgd" if turn.case.method == ASGD else "ssgd"
    given = rules.Rules(mode=mode, optimizer=rules.SGD(lr=LR))
    with KVStore(given, job=job) as store:
        model, optimizer = syncopate.distribute(model, optimizer, plan=turn.plan, exchange=store)
        step = stepper(trained, model, optimizer)
        dist.barrier()
        steps_s = tuple(step() for _ in range(before + counted))[before:]
        dist.barrier()
        model.syncopate.detach()
    return steps_s
