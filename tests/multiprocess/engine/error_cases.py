"""Small models and steps for tests of errors, which raise on some rank or on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from syncopate.engine.distribute import distribute
from syncopate.errors import SyncopateError
from tests.multiprocess.engine.cases import TIMEOUT_S, data


def small_net(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def distributed(model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
    optimizer = sgd(model) if optimizer is None else optimizer
    return distribute(model, optimizer, timeout_s=TIMEOUT_S, **options)


def train_step(model: Any, optimizer: Any, rank: int, step: int) -> None:
    optimizer.zero_grad()
    model(data(rank, step, 4, 8)).square().mean().backward()
    optimizer.step()


def error_of(attempt: Callable[[], Any]) -> Exception | None:
    try:
        attempt()
    except (SyncopateError, ValueError) as error:
        return error
    return None
