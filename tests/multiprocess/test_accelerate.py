"""Accelerate beside ``distribute``: both averaging is refused; a model kept out of it is right."""

from __future__ import annotations

import os

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from syncopate.engine import distribute
from syncopate.errors import EngineError
from tests.multiprocess.engine_cases import TIMEOUT_S, identical_everywhere
from tests.multiprocess.harness import run_ranks

STEPS = 6


def _made() -> tuple[nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    data = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.utils.data.DataLoader(data, batch_size=4)


def _trained(
    accelerator: Accelerator, model: nn.Module, optimizer: object, loader: object
) -> list[torch.Tensor]:
    """Train as Accelerate's examples do; return the weights."""
    for _, (inputs, targets) in zip(range(STEPS), loader, strict=False):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def beside_accelerate(rank: int, world_size: int) -> None:
    # What torchrun would tell.
    for name, number in (("RANK", rank), ("WORLD_SIZE", world_size)):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(number)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == world_size

    model, optimizer, loader = _made()
    expected = _trained(accelerator, *accelerator.prepare(model, optimizer, loader))
    with pytest.raises(EngineError, match="wrapped in DistributedDataParallel already"):
        distribute(accelerator.prepare(_made()[0]), timeout_s=TIMEOUT_S)

    # The model is kept out of prepare; the optimizer and the data go in.
    for exchange in ("allreduce", "sharded"):
        model, optimizer, loader = _made()
        distribute(model, optimizer, exchange=exchange, cache=False, timeout_s=TIMEOUT_S)
        weights = _trained(accelerator, model, *accelerator.prepare(optimizer, loader))
        identical_everywhere(weights)
        for ours, theirs in zip(weights, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        model.syncopate.detach()

    model, optimizer, loader = _made()
    distribute(model, optimizer, cache=False, timeout_s=TIMEOUT_S)
    # A Trainer prepares the model itself, unless it carries Accelerate's mark of a prepared one.
    model._is_accelerate_prepared = True
    assert accelerator.prepare(model) is model
    del model._is_accelerate_prepared
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with pytest.raises(EngineError, match=r"distributed already.*such as Accelerate's prepare"):
        _trained(accelerator, wrapped, optimizer, loader)


def test_accelerate_and_distribute_never_both_average() -> None:
    run_ranks(beside_accelerate, 2)
