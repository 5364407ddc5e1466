"""Gradients that are copied beside the backward are in their places when it returns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import nn

from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.proxies.gradients import PartialGradient
from syncopate.engine.exchange.push import gathering as base
from tests.multiprocess.engine.cases import TIMEOUT_S, data, plan_of
from tests.multiprocess.exchange.cases import OWNED, Run, both, squares
from tests.multiprocess.harness import run_ranks

LATE_S = 0.2

WIDE = 800
"""A layer of so many inputs and outputs is copied beside the backward."""


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
        model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_of(model, world_size, [2, 2], exchange=exchange)
        model, optimizer = distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)
        with mock.patch.object(
            ThreadPoolExecutor, "submit", autospec=True, side_effect=late
        ) as aside:
            model(data(rank, 0, 4, WIDE)).square().mean().backward()
            kinds = [isinstance(p.grad, PartialGradient) for p in model.parameters()]
        assert aside.call_count == 2
        found.append(all(kinds))
        optimizer.step()
        model.syncopate.detach()
    return found


def beside(rank: int, world_size: int) -> None:
    """However small a buffer is."""

    def script(run: Run) -> None:
        for step in range(4):
            if step != 2:
                run.optimizer.zero_grad(set_to_none=step != 3)
            run.backward(squares(step))
            run.optimizer.step()

    with mock.patch.object(base, "ASIDE_BYTES", 1):
        for exchange, parts in product(("allreduce", *OWNED), (1, 3)):
            run = both(rank, world_size, script, exchange=exchange, parts=parts, channels=2)
            run.model.syncopate.detach()


def test_who_copies_beside_the_backward_trains_as_one_process() -> None:
    run_ranks(beside, 3)


def test_a_gradient_read_right_after_backward_is_in_its_place() -> None:
    assert run_ranks(slow_copies, 2) == [[True] * len(OWNED)] * 2
