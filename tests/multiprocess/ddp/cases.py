"""What the tests of plans inside DDP share: a plain twin, and what was carried."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.plan import Plan
from syncopate.collectives import Communicator
from syncopate.engine.ddp.wrap import ddp
from tests.multiprocess.engine.cases import TIMEOUT_S, convnet, plan_of

SIZES = (2, 1, 3, 1)
"""Gradients of each bucket of a plan for :func:`convnet`."""


def plan_for(model: nn.Module, world_size: int) -> Plan:
    """Four buckets on two channels, of two algorithms."""
    return plan_of(model, world_size, SIZES, channels=2)


class Twins:
    """The same model twice, in plain DDP and in DDP with a plan, from the same start."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        model: Callable[[], nn.Module] = convnet,
        plan: Callable[[nn.Module, int], Plan] = plan_for,
        **options: Any,
    ) -> None:
        torch.manual_seed(rank)  # only rank 0's weights count
        plain = model()
        twin = copy.deepcopy(plain)
        self.asked = plan(twin, world_size)
        self.plain = DistributedDataParallel(plain, **options)
        self.planned = ddp(twin, self.asked, timeout_s=TIMEOUT_S, **options)
        assert type(self.planned) is DistributedDataParallel

    @property
    def both(self) -> tuple[DistributedDataParallel, DistributedDataParallel]:
        return self.plain, self.planned

    def require_alike(self, *, bits: bool, gradients: bool = True) -> None:
        """Weights, buffers and gradients are plain DDP's."""
        tolerance = 0.0 if bits else 1e-5
        expected, found = self.plain.state_dict(), self.planned.state_dict()
        assert list(expected) == list(found)
        assert all(name.startswith("module.") for name in found)
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name], tensor, rtol=tolerance, atol=tolerance, msg=name
            )
        pairs = zip(self.plain.parameters(), self.planned.parameters(), strict=True)
        for one, other in pairs if gradients else ():
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(other.grad, one.grad, rtol=tolerance, atol=tolerance)


def bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """What torch itself says of the buckets that a DDP has cut anew."""
    text = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [int(size) for size in text.split(", ")]


@contextmanager
def carried() -> Iterator[list[tuple[str, int, int]]]:
    """Note algorithm, channel and elements of every all-reduce of a communicator in the block."""
    seen: list[tuple[str, int, int]] = []
    run = Communicator.run

    def noted(self: Communicator, recipe: Any, tensor: torch.Tensor, **told: Any) -> Any:
        if recipe.collective == "all_reduce":
            seen.append((recipe.algorithm, recipe.channel, tensor.numel()))
        return run(self, recipe, tensor, **told)

    with mock.patch.object(Communicator, "run", noted):
        yield seen


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what is logged in the block."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("syncopate"), Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
