"""A job of which every process keeps state and may be killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from syncopate.paramserver.driver import Handle
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.worker import KVStore
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import Rules
from syncopate.protocol.table import Normal, Table
from tests.multiprocess.paramserver.servers import QUICK, Child, serve, work

LIMITS = msgspec.structs.replace(QUICK, slice_bytes=512)
"""Limits with which tensors of a test are several slices."""

TABLE = Table(rows=500, width=4, initial=Normal(std=0.1, seed=3))


def _schedule(job: Job, state: Path, limits: Limits) -> None:
    Scheduler(job, limits, state=state).run()


class Killable:
    """A scheduler, servers and two workers, in a process each.

    Args:
        folder: for what they keep.
        servers: how many.
        limits: times and sizes.

    Attributes:
        serve: what every server runs.
    """

    serve: Callable[..., Any] = staticmethod(serve)

    def __init__(self, folder: Path, servers: int = 2, limits: Limits = LIMITS) -> None:
        self.job = Job(port=free_port(), servers=servers, workers=2)
        self.folder, self.limits = folder, limits
        self.children: dict[str, Child] = {}
        self._call: tuple[Any, ...] = ()
        self.begin()

    def __enter__(self) -> Killable:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.end()

    def begin(self, *names: str) -> None:
        """Start the scheduler and all servers, or the processes that are named."""
        for name in names or ("scheduler", *(f"server {n}" for n in range(self.job.servers))):
            role, _, rank = name.partition(" ")
            state = self.folder / name.replace(" ", "-")
            job = msgspec.structs.replace(self.job, rank=int(rank or -1))
            if role == "worker":
                self.children[name] = Child(work, job, *self._call)
            elif role == "server":
                self.children[name] = Child(self.serve, job, state, self.limits, "")
            else:
                self.children[name] = Child(_schedule, job, state, self.limits)

    def work(self, rules: Rules, function: Callable[..., Any], *args: Any) -> None:
        """Start both workers; each runs ``function(store, *args)``."""
        self._call = (rules, self.limits, "", function, *args)
        self.begin("worker 0", "worker 1")

    def kill(self, *names: str) -> None:
        """Kill all, or those that are named."""
        killed = [self.children[name] for name in names or self.children]
        for child in killed:
            child.process.kill()
        for child in killed:
            child.process.join()

    def results(self) -> list[Any]:
        """Return what the workers return."""
        return [self.children[f"worker {rank}"].result() for rank in range(2)]


def gradients(model: nn.Module, step: int, rank: int) -> dict[str, Tensor | None]:
    """Return a worker's gradients of a model that takes 24 features."""
    own = torch.Generator().manual_seed(2 * step + rank)
    model.zero_grad()
    model(torch.randn(8, 24, generator=own)).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def train_rows(
    store: KVStore, step: int, bias: Tensor, pushed: Callable[[Handle], None] = lambda _: None
) -> None:
    """Take a step of :data:`TABLE` and a tensor beside it.

    Args:
        store: to which both were given.
        step: which.
        bias: the tensor.
        pushed: is called when the table's push is under way, and the tensor's is not yet.
    """
    own = torch.Generator().manual_seed(2 * step + store.rank)
    ids = torch.randint(TABLE.rows, (20,), generator=own)
    rows = store.pull_rows("user", ids)
    rows.wait()
    handle = store.push_rows("user", ids, rows.out * 0.5 + bias[0])
    pushed(handle)
    also = store.push("bias", torch.full_like(bias, float(step + store.rank)))
    store.pull("bias", bias).wait()
    handle.wait()
    also.wait()


def require_alike(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Require the same bits of the same tensors."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
