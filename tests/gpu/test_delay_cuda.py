"""A delay on GPUs does what the paper's algorithms say: over Gloo with ranks that share one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from syncopate.delay import LOCAL_RULES, Delay
from tests.gpu.test_engine_cuda import shared_device
from tests.multiprocess.delay.cases import Reference, delayed, odd64, two_groups
from tests.multiprocess.exchange.cases import batch
from tests.multiprocess.harness import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 15


def trains(rank: int, world_size: int, device: torch.device) -> int:
    """Compare a training on ``device`` with the reference on the CPU; return its steps."""
    compared = 0
    for k, rule in enumerate(LOCAL_RULES, start=1):
        delay = Delay(k=k, warm_up=2 * k - 1, local_update=rule, lambda_0=0.3)
        alone = odd64()
        reference = Reference(alone, [two_groups(alone)], delay, world_size)
        model: Any = odd64().to(device)
        model, optimizer = delayed(model, two_groups(model), world_size, delay, channels=2)
        for num in range(STEPS):
            inputs = batch(rank, num, 4, 5, dtype=torch.float64).to(device)
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            reference.iterate()
            ours = [parameter.detach().cpu() for parameter in model.parameters()]
            torch.testing.assert_close(ours, reference.computing[rank], rtol=1e-7, atol=1e-9)
            compared += 1
        state = model.syncopate.local_state()
        model.syncopate.load_local_state(state)
        model.syncopate.detach()
    return compared


def sharing(rank: int, world_size: int) -> int:
    return trains(rank, world_size, shared_device(rank))


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_that_share_a_gpu_train_as_the_algorithms_say(world_size: int) -> None:
    counts = run_ranks(sharing, world_size)
    assert counts == [len(LOCAL_RULES) * STEPS] * world_size
