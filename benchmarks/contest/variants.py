"""Variants: the ways of training that take turns, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.plan import ALLREDUCE, ROOTED, SHARDED, Plan

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
    """

    name: str
    title: str
    build: Callable[[Asked], Trainer]
    exchange: str = ""


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


def _self_planned(asked: Asked) -> Trainer:
    return syncopate.distribute(asked.model, asked.plain())


DDP_MB = (25, 5, 1)
ALONE, SELF = "alone", "self"
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
            for exchange in (ALLREDUCE, SHARDED, ROOTED)
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
