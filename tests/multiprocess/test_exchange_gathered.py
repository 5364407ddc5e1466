"""Gradients that are copied beside the backward are in their places when it returns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import torch
from torch import nn

from syncopate.engine import distribute
from syncopate.engine.exchange.gradients import PartialGradient
from tests.multiprocess.engine_cases import TIMEOUT_S, data, plan_of
from tests.multiprocess.exchange_cases import OWNED
from tests.multiprocess.harness import run_ranks

LATE_S = 0.2


def slow_copies(rank: int, world_size: int) -> list[bool]:
    """Return by exchange whether every gradient is one that knows that it is a part."""
    submit = ThreadPoolExecutor.submit

    def late(executor: ThreadPoolExecutor, gather: Any) -> Any:
        def slowly() -> None:
            time.sleep(LATE_S)
            gather()

        return submit(executor, slowly)

    found = []
    for exchange in OWNED:
        model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_of(model, world_size, [2, 2], exchange=exchange)
        model, optimizer = distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)
        with mock.patch.object(ThreadPoolExecutor, "submit", late):
            model(data(rank, 0, 4, 200)).square().mean().backward()
            kinds = [isinstance(p.grad, PartialGradient) for p in model.parameters()]
        found.append(all(kinds))
        optimizer.step()
        model.syncopate.detach()
    return found


def test_a_gradient_read_right_after_backward_is_in_its_place() -> None:
    assert run_ranks(slow_copies, 2) == [[True] * len(OWNED)] * 2
