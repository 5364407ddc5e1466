"""ASGD for SSD-SGD's accuracy study: every rank a worker of a parameter server of this machine.

A worker pushes its gradient and pulls what the weights have become by then, and waits for no other
worker. The server updates them with each push by itself, K pushes where SSGD has one update, so
that its learning rate is a K-th: a sample moves the weights as far as in the other rows.

What comes of it depends on who is when ready: no two runs are alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from syncopate.errors import SyncopateError
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.worker import KVStore
from syncopate.protocol.rules import ASGD, SGD, Rules

_KEY = "weights"
_GRACE_S = 10.0


def train_served(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Callable[[Any, Tensor], Tensor],
    optimizer: SGD,
    rank: int,
) -> None:
    """Train a model; every rank calls it, and ends with the same weights.

    Args:
        model: equal on all ranks.
        batches: all of this rank.
        loss: of the model's output and targets.
        optimizer: with the learning rate of SSGD.
        rank: this one.
    """
    ranks = dist.get_world_size()
    rules = Rules(mode=ASGD, optimizer=replace(optimizer, lr=optimizer.lr / ranks))
    told = [Job(port=free_port(), workers=ranks) if rank == 0 else None]
    dist.broadcast_object_list(told)
    job = told[0]
    assert job is not None
    with _servers(job, rank), KVStore(rules, job=replace(job, rank=rank)) as store:
        parameters = list(model.parameters())
        weights = parameters_to_vector(parameters).detach().clone()
        store.init({_KEY: weights})
        # From here on the parameters are views of what is pulled.
        vector_to_parameters(weights, parameters)
        for inputs, targets in batches:
            model.zero_grad()
            loss(model(inputs), targets).backward()
            gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
            store.push(_KEY, gradient)
            store.pull(_KEY, weights).wait()
        dist.barrier()
        store.pull(_KEY, weights).wait()
        dist.barrier()


@contextmanager
def _servers(job: Job, rank: int) -> Iterator[None]:
    """Run scheduler and server beside rank 0; both end when the workers have left."""
    if rank:
        yield
        return
    with tempfile.TemporaryFile("w+") as said:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "syncopate", "ps", role],
                env=os.environ | job.environment(role),
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
            for role in ("scheduler", "server")
        ]
        try:
            yield
            codes = [process.wait(_GRACE_S) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if any(codes):
            said.seek(0)
            raise SyncopateError(f"the parameter server ended with {codes}:\n{said.read()}")
