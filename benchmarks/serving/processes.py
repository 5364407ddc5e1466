"""Processes: scheduler, servers and workers of a small job, any of which may be killed."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec import structs
from torch import Tensor, nn

from syncopate import KVStore
from syncopate.errors import SyncopateError
from syncopate.lab.launch import enter
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.wire import faults
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import SGD, Rules

WORKERS, SERVERS, STEPS = 2, 2, 30
LIMITS = Limits(
    heartbeat_s=0.1, silence_s=4.0, join_s=30.0, restart_s=20.0, retry_s=0.3, slice_bytes=4096
)
"""Small slices, so that each server has several; a loss is noticed soon."""

JOINED, DECLARED = 1, 2
"""Progress of a worker: it is in the job; ``init`` is over; then one more for every step."""

END = DECLARED + STEPS

SCHEDULER = "scheduler"

_PRELOAD = ["torch", "syncopate.paramserver.worker", "syncopate.paramserver.server"]
_CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
_ELEMENTS = 3000


class Outcome(NamedTuple):
    """How a process ended.

    Attributes:
        kind: ``"result"``, ``"refused"`` (an error for the user), ``"bug"``, ``"dead"`` or
            ``"late"``.
        value: its result, or the error's message.
    """

    kind: str
    value: Any = None


class Host(NamedTuple):
    """Where a process runs.

    Attributes:
        namespace: path of its network namespace; empty: on this machine.
        name: of the host.
        address: of the host.
    """

    namespace: str = ""
    name: str = ""
    address: str = "127.0.0.1"


HERE = Host()


def _main(
    told: Connection, host: Host, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    if host.namespace:
        enter(host.namespace, host.name, "/etc/hosts")
    torch.set_num_threads(1)
    logging.getLogger("syncopate").setLevel(logging.ERROR)  # refusals are many, and expected
    try:
        outcome = Outcome("result", function(*args))
    except SyncopateError as error:
        outcome = Outcome("refused", str(error))
    except Exception as error:
        outcome = Outcome("bug", f"{type(error).__name__}: {error}")
    told.send(outcome)


class Child:
    """A function in a process of its own."""

    def __init__(self, host: Host, function: Callable[..., Any], *args: Any) -> None:
        """Start it on a host."""
        if sys.platform == "linux":
            _CONTEXT.set_forkserver_preload(_PRELOAD)
        self._ours, theirs = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_main, args=(theirs, host, function, args), daemon=True
        )
        self._process.start()
        theirs.close()

    def outcome(self, until_s: float) -> Outcome:
        """Wait until the time ``until_s`` of the monotonic clock; return how it ended."""
        if not self._ours.poll(max(0.0, until_s - time.monotonic())):
            return Outcome("late")
        try:
            return self._ours.recv()
        except EOFError:
            return Outcome("dead")

    def kill(self) -> bool:
        """Kill it with -9; return whether it still ran."""
        ran = self._process.is_alive()
        self._process.kill()
        self._process.join()
        return ran

    def runs(self) -> bool:
        """Return whether it runs."""
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; return whether it still ran."""
        ran = self._process.is_alive() and self._process.pid is not None
        if ran and self._process.pid is not None:
            os.kill(self._process.pid, number)
        return ran


def server(rank: int) -> str:
    """Return the name of a server."""
    return f"server {rank}"


def worker(rank: int) -> str:
    """Return the name of a worker."""
    return f"worker {rank}"


def is_worker(name: str) -> bool:
    """Return whether this is the name of a worker."""
    return name.startswith("worker")


def rank_of(name: str) -> int:
    """Return the rank of a server or worker by its name."""
    return int(name.rpartition(" ")[2])


def shared_flags(count: int) -> Any:
    """Return zeros that all processes see."""
    return _CONTEXT.RawArray(ctypes.c_int, count)


class SmallJob:
    """A job of two servers and two workers; leaving the block leaves nothing behind.

    Attributes:
        progress: of each worker.
        processes: those that run, by name: :data:`SCHEDULER`, ``server 0``, ``worker 1``.
    """

    def __init__(
        self,
        rules: Rules,
        state: Path | None,
        *,
        servers: int = SERVERS,
        workers: int = WORKERS,
        limits: Limits = LIMITS,
        hosts: Mapping[str, Host] | None = None,
    ) -> None:
        """Start scheduler and servers.

        Args:
            rules: of the workers.
            state: where servers and the scheduler keep theirs; None: nowhere.
            servers: how many.
            workers: how many.
            limits: of all processes.
            hosts: where each runs, by name; None: all on this machine.
        """
        self._hosts, self._limits = hosts or {}, limits
        uri, outside = self._host(SCHEDULER).address, hosts is not None
        self.job = Job(
            uri=uri, port=free_port(), servers=servers, workers=workers, insecure=outside
        )
        self.rules, self._state = rules, state
        self.progress = shared_flags(workers)
        self.ports = [free_port() for _ in range(servers)]
        self.processes: dict[str, Child] = {}
        self._all: list[Child] = []
        self._call: tuple[Any, ...] = ()
        for name in (SCHEDULER, *(server(rank) for rank in range(servers))):
            self.start(name)

    def __enter__(self) -> SmallJob:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._all:
            child.kill()

    def work(self, function: Callable[..., Any], *args: Any, wire: str = "") -> None:
        """Run ``function(store, progress, *args)`` on every worker, with ``wire`` for faults."""
        self._call = (self.rules, self.progress, wire, function, *args)
        for rank in range(self.job.workers):
            self.start(worker(rank))

    def start(self, name: str) -> None:
        """Start the scheduler, a server or a worker, also again after it was killed."""
        state = None if self._state is None else self._state / name.replace(" ", "-")
        if name == SCHEDULER:
            self._start(name, _schedule, state)
        elif is_worker(name):
            self._start(name, _work, *self._call)
        else:
            self._start(name, _serve, self.ports[rank_of(name)], state)

    def _start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        host = self._host(name)
        rank = -1 if name == SCHEDULER else rank_of(name)
        own = host.address if self._hosts else ""
        job = structs.replace(self.job, rank=rank, host=own)
        self.processes[name] = Child(host, function, job, self._limits, *args)
        self._all.append(self.processes[name])

    def _host(self, name: str) -> Host:
        return self._hosts.get(name, HERE)


def _schedule(job: Job, limits: Limits, state: Path | None) -> None:
    Scheduler(job, limits, state=state).run()


def _serve(job: Job, limits: Limits, port: int, state: Path | None) -> dict[str, int]:
    server = ParameterServer(job, port=port, state=state, limits=limits)
    server.run()
    return server.refused


def _work(job: Job, limits: Limits, rules: Rules, progress: Any, wire: str, *call: Any) -> Any:
    function, *args = call
    if wire:
        os.environ[faults.VARIABLE] = wire
    with KVStore(rules, job=job, limits=limits) as store:
        progress[store.rank] = max(progress[store.rank], JOINED)
        return function(store, progress, *args)


def digest(tensors: dict[str, Tensor]) -> str:
    """Return a hash of the bits of some tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(tensors[name].contiguous().numpy().tobytes())
    return found.hexdigest()


SYNCHRONOUS = Rules(mode="ssgd", optimizer=SGD(lr=0.1, momentum=0.9))
ASYNCHRONOUS = Rules(mode="asgd", optimizer=SGD(lr=1.0))


def train(store: KVStore, progress: Any, alike: bool, pause_s: float = 0.0) -> str:
    """Train a small model; return the hash of the weights.

    Args:
        store: of this worker.
        progress: of all workers.
        alike: whether all workers have the same data: then the mean of their gradients has the
            same bits whichever workers are there.
        pause_s: after each step.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    store.init(weights)
    progress[store.rank] = max(progress[store.rank], DECLARED)
    for step in range(store.step, STEPS):
        own = torch.Generator().manual_seed(step * WORKERS + (0 if alike else store.rank))
        inputs = torch.randn(16, 32, generator=own)
        labels = torch.randint(10, (16,), generator=own)
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        handles = [store.push(name, gradient) for name, gradient in gradients.items()]
        handles += [store.pull(name, weight) for name, weight in weights.items()]
        for handle in handles:
            handle.wait()
        progress[store.rank] = max(progress[store.rank], DECLARED + step + 1)
        time.sleep(pause_s)
    return digest(weights)


def count(store: KVStore, progress: Any) -> str:
    """Push whole numbers, which add up without rounding in any order; return the hash of the sum.

    With learning rate 1 the weights end at minus the sum of all pushes.
    """
    total = torch.zeros(_ELEMENTS)
    store.init({"sum": total})
    progress[store.rank] = DECLARED
    gradient = _whole_numbers() * (store.rank + 1)
    for step in range(STEPS):
        store.push("sum", gradient).wait()
        store.pull("sum", total).wait()
        progress[store.rank] = DECLARED + step + 1
    while min(progress) < END:
        time.sleep(0.001)
    store.pull("sum", total).wait()
    return digest({"sum": total})


def tally(store: KVStore, progress: Any, sent: Any, pause_s: float) -> list[tuple[int, int]]:
    """Push ones, which add up in a place of each worker, until enough are acknowledged.

    With learning rate 1 an element ends at minus the number of pushes in it.

    Args:
        store: of this worker.
        progress: of all workers; counts this one's acknowledged pushes, whichever process had them.
        sent: of all workers: how many pushes each began, whichever process did.
        pause_s: after each push.

    Returns:
        Of each worker how many of its pushes are in its elements, at least and at most.
    """
    rank, total = store.rank, torch.zeros(WORKERS, _ELEMENTS)
    store.init({"sum": total})
    progress[rank] = max(progress[rank], DECLARED)
    gradient = torch.zeros(WORKERS, _ELEMENTS)
    gradient[rank] = 1.0
    while progress[rank] < END:
        sent[rank] += 1
        store.push("sum", gradient).wait()
        progress[rank] += 1
        store.pull("sum", total).wait()
        time.sleep(pause_s)
    while min(progress) < END:
        time.sleep(0.001)
    store.pull("sum", total).wait()
    return [(int(-own.max().item()), int(-own.min().item())) for own in total]


def counted() -> str:
    """Return the hash that :func:`count` ends with when every push counts once."""
    shares = sum(rank + 1 for rank in range(WORKERS))
    return digest({"sum": _whole_numbers() * -(shares * STEPS)})


def _whole_numbers() -> Tensor:
    return torch.arange(1, _ELEMENTS + 1, dtype=torch.float32)
