"""A parameter server with tensors on GPUs: the weights that it gives to tensors of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from syncopate.delay import Delay
from syncopate.paramserver.job import Job
from syncopate.protocol.rules import SGD, Rules
from tests.gpu.test_engine_cuda import shared_device
from tests.multiprocess.delay.cases import odd64
from tests.multiprocess.delay.test_served import on_servers, store_of
from tests.multiprocess.exchange.cases import batch
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import LocalServers
from tests.multiprocess.paramserver.test_store import STEPS, alone, gradient, same, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def stored(store: Any) -> dict[str, Tensor]:
    """Push and pull tensors of a GPU; return the last weights, on the CPU."""
    device = shared_device(store.rank)
    tensors = {name: tensor.to(device) for name, tensor in weights().items()}
    store.init(tensors)
    for step in range(STEPS):
        for name in tensors:
            store.push(name, gradient(name, step, store.rank).to(device))
        for handle in [store.pull(name, out) for name, out in tensors.items()]:
            handle.wait()
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def test_a_store_takes_and_gives_tensors_of_gpus() -> None:
    rules = Rules(optimizer=SGD(lr=0.1, momentum=0.9))
    with LocalServers(workers=2, servers=2, rules=rules) as job:
        results = [child.result() for child in job.start(stored)]
    expected = alone(rules, workers=2)
    assert all(same(found, expected) for found in results)


def trained(rank: int, job: Job, delay: Delay | None, device: torch.device) -> list[Tensor]:
    """Train on servers with the model on ``device``; return the global weights, on the CPU."""
    model: Any = odd64().to(device)
    with store_of(job, rank) as store:
        model, optimizer = on_servers(model, store, delay)
        for num in range(STEPS):
            inputs = batch(rank, num, 4, 5, dtype=torch.float64).to(device)
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with model.syncopate.global_weights():
            return [parameter.detach().cpu() for parameter in model.parameters()]


def both_devices(rank: int, world_size: int, jobs: list[tuple[Delay | None, Job, Job]]) -> int:
    for delay, first, second in jobs:
        ours = trained(rank, first, delay, shared_device(rank))
        theirs = trained(rank, second, delay, torch.device("cpu"))
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    return len(jobs)


def test_training_on_servers_is_that_of_the_cpu() -> None:
    delays = [None, Delay(k=2, warm_up=1, local_update="glu", lambda_0=0.3)]
    jobs = [LocalServers(servers=1, workers=2) for _ in range(2 * len(delays))]
    try:
        given = [
            (delay, jobs[2 * place].job, jobs[2 * place + 1].job)
            for place, delay in enumerate(delays)
        ]
        assert run_ranks(both_devices, 2, given) == [len(delays)] * 2
    finally:
        for job in jobs:
            job.__exit__(None, None, None)
