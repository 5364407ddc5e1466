"""Variants: the ways of training that take turns, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from msgspec import structs
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, ROOTED, SHARDED, Plan
from syncopate.delay import GLU, SGD, Delay

from .results import Cell

Trainer = tuple[nn.Module, torch.optim.Optimizer]


class Asked(NamedTuple):
    """What a variant trains.

    Attributes:
        model: on this rank.
        optimizer: the class.
        settings: its keywords.
        plan: to train by, where the variant needs one.
    """

    model: nn.Module
    optimizer: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]
    plan: Plan | None

    def plain(self) -> torch.optim.Optimizer:
        """Return the optimizer as users write it."""
        return self.optimizer(self.model.parameters(), **self.settings)


class Variant(NamedTuple):
    """One row.

    Attributes:
        name: on the command line and in tables.
        title: what it is.
        build: makes the model and the optimizer train this way.
        exchange: of the plan that it is given; empty where it is given none.
        k: it pulls weights every so many steps; 1 for synchronous training.
    """

    name: str
    title: str
    build: Callable[[Asked], Trainer]
    exchange: str = ""
    k: int = 1

    @property
    def delayed(self) -> bool:
        """Whether it is another algorithm than DDP's, whose weights are others."""
        return self.k > 1

    def delay(self, optimizer: type[torch.optim.Optimizer]) -> Delay | None:
        """Return its delay, whose warm-up is the shortest there is; None where it has none."""
        if not self.delayed:
            return None
        rule = GLU if optimizer is torch.optim.SGD else SGD
        return Delay(k=self.k, warm_up=self.k - 1, local_update=rule)

    def steps(self, warmup: int, counted: int) -> tuple[int, int]:
        """Return how many steps a turn takes before it counts, and how many it counts.

        With a delay both are multiples of k, at least two periods each. The first period is the
        delay's warm-up, and the second one's pull arrives in the first step that counts, as the
        last one's arrives after the last: what is counted is whole periods of the steady state.
        """
        if not self.delayed:
            return warmup, counted
        whole = (self.k * max(2, math.ceil(steps / self.k)) for steps in (warmup, counted))
        before, after = whole
        return before, after


def _alone(asked: Asked) -> Trainer:
    return asked.model, asked.plain()


def _ddp(mb: int) -> Callable[[Asked], Trainer]:
    def build(asked: Asked) -> Trainer:
        return DistributedDataParallel(asked.model, bucket_cap_mb=mb), asked.plain()

    return build


def _zero(asked: Asked) -> Trainer:
    model = DistributedDataParallel(asked.model)
    optimizer = ZeroRedundancyOptimizer(
        asked.model.parameters(), asked.optimizer, overlap_with_ddp=False, **asked.settings
    )
    return model, optimizer


def _planned(asked: Asked) -> Trainer:
    return syncopate.distribute(asked.model, asked.plain(), plan=asked.plan)


def _delayed_alone(asked: Asked) -> Trainer:
    assert asked.plan is not None
    group, _ = dist.new_subgroups(group_size=1)
    plan = structs.replace(asked.plan, world_size=1)
    return syncopate.distribute(asked.model, asked.plain(), plan=plan, group=group)


def _self_planned(asked: Asked) -> Trainer:
    return syncopate.distribute(asked.model, asked.plain())


DDP_MB = (25, 5, 1)
PULL_PERIOD = 4
"""Of SSD-SGD: the largest at which the paper finds no loss of accuracy."""
ALONE, SELF = "alone", "self"
ALONE_DELAYED = f"alone-delayed-{PULL_PERIOD}"
REFERENCE = f"ddp-{DDP_MB[0]}"
"""The variant that the others' weights are compared with."""
COMPARED = 3
"""Steps after which they are: later, what was rounded otherwise has grown, in DDP itself too."""

VARIANTS = {
    row.name: row
    for row in (
        Variant(ALONE, "every rank by itself, nothing exchanged: what computing takes", _alone),
        *(
            Variant(f"ddp-{mb}", f"DistributedDataParallel, buckets of {mb} MB", _ddp(mb))
            for mb in DDP_MB
        ),
        Variant("zero-1", "ZeroRedundancyOptimizer inside DDP, no overlap with it", _zero),
        *(
            Variant(exchange, f"`distribute` with the best {exchange} plan", _planned, exchange)
            for exchange in (ALLREDUCE, DECOUPLED, SHARDED, ROOTED)
        ),
        Variant(
            f"delayed-{PULL_PERIOD}",
            f"SSD-SGD: `distribute` with the best sharded plan, pulls every {PULL_PERIOD} steps",
            _planned,
            SHARDED,
            PULL_PERIOD,
        ),
        Variant(
            ALONE_DELAYED,
            "the same, each rank by itself: what its updates take without any network",
            _delayed_alone,
            SHARDED,
            PULL_PERIOD,
        ),
        Variant(SELF, "`distribute` without arguments, by the plan it kept", _self_planned),
    )
}

SWEEP = tuple(f"ddp-{mb}" for mb in DDP_MB)


def best_ddp(cells: Mapping[str, Cell]) -> str | None:
    """Return the fastest variant of the sweep over DDP's bucket sizes; None where none ran."""
    ran = [name for name in SWEEP if name in cells and cells[name].turns]
    return min(ran, key=lambda name: cells[name].step_s, default=None)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of all tensors in this rank's optimizer state."""
    inner: Any = getattr(optimizer, "optim", optimizer)  # of a ZeroRedundancyOptimizer
    tensors = {
        id(value): value
        for state in inner.state.values()
        for value in (state.values() if isinstance(state, Mapping) else ())
        if isinstance(value, torch.Tensor)
    }
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
