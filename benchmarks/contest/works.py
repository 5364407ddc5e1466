"""Works: the models that are trained, one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from syncopate.artifacts.workload import Workload
from syncopate.zoo import CharGPT, ResNet20, Task, digits, python_text, replay
from syncopate.zoo.task import seeded, token_loss

from .profiles import (
    ALEXNET_S,
    RESNET50_S,
    VGG11_S,
    VGG16_S,
    alexnet_profile,
    resnet50_profile,
    vgg11_profile,
    vgg16_profile,
)

GOODPUT = 1448 / 1514
"""TCP's payload in a full Ethernet frame; a lab's rates count frames."""

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3}),
}

Batches = Iterator[tuple[Any, Any]]


class Trained(NamedTuple):
    """A model and its data on one rank.

    Attributes:
        model: bare.
        task: the model with its first batch, to be profiled.
        batches: inputs and targets without end, the same in every turn.
        loss: what is minimised, of output and targets.
    """

    model: nn.Module
    task: Task
    batches: Batches
    loss: Callable[[Any, Any], Tensor]


class Work(NamedTuple):
    """One row.

    Attributes:
        name: on the command line.
        title: in reports.
        optimizer: a name in ``OPTIMIZERS``; the default.
        profile: of a replayed model, by its computation; None where it computes for real.
        compute_s: of a replayed model, unless a ratio is given.
        steps: how many of its steps count as one, because a single one is over in milliseconds.
        make: makes a real model on a rank: ``make(rank, world_size, quick)``.
    """

    name: str
    title: str
    optimizer: str
    profile: Callable[[float], Workload] | None = None
    compute_s: float = 0.0
    steps: int = 1
    make: Callable[[int, int, bool], Trained] | None = None

    @property
    def real(self) -> bool:
        """Whether it computes, and its weights mean something."""
        return self.profile is None


def _resnet20(rank: int, world_size: int, quick: bool) -> Trained:
    data, size = digits(), 8 if quick else 32

    def batches(epoch: int) -> Batches:
        return data.batches(size, epoch=epoch, rank=rank, world_size=world_size)

    with seeded(0):
        return _real("resnet20", ResNet20(), batches, nn.functional.cross_entropy)


def _char_gpt(rank: int, world_size: int, quick: bool) -> Trained:
    text, size, context = python_text(), 2 if quick else 8, 64

    def batches(epoch: int) -> Batches:
        return text.batches(size, context, epoch=epoch, rank=rank, world_size=world_size)

    with seeded(0):
        model = CharGPT(len(text.vocabulary), context=context)
    return _real("char-gpt", model, batches, token_loss)


def _real(
    name: str,
    model: nn.Module,
    batches: Callable[[int], Batches],
    loss: Callable[[Any, Any], Tensor],
) -> Trained:
    inputs, targets = next(batches(0))
    endless = (batch for epoch in count() for batch in batches(epoch))
    return Trained(model, Task(model, inputs, targets, loss, name), endless, loss)


WORKS = {
    row.name: row
    for row in (
        Work("resnet50", "ResNet-50, replayed", "sgd", resnet50_profile, RESNET50_S),
        Work("vgg16", "VGG-16, replayed", "sgd", vgg16_profile, VGG16_S),
        Work("vgg11", "VGG-11, replayed", "sgd", vgg11_profile, VGG11_S),
        Work("alexnet", "AlexNet, replayed", "sgd", alexnet_profile, ALEXNET_S),
        Work("resnet20", "ResNet-20 on digits", "momentum", steps=10, make=_resnet20),
        Work("char-gpt", "character GPT", "adamw", steps=10, make=_char_gpt),
    )
}


def line_s(nbytes: int, hosts: int, rate_bytes_per_s: float) -> float:
    """Return what an all-reduce takes at the line rate of a lab's links.

    Args:
        nbytes: of all gradients.
        hosts: that have a link each.
        rate_bytes_per_s: of the link, frames and all.
    """
    return 2 * (hosts - 1) / hosts * nbytes / (rate_bytes_per_s * GOODPUT)


def replayed(
    work: Work, ratio: float | None, hosts: int, rate_bytes_per_s: float
) -> Workload | None:
    """Return what a replayed model computes and sends; None for a real one.

    Args:
        work: the model.
        ratio: computation over the time of the wire; None for the model's own time.
        hosts: as for :func:`line_s`.
        rate_bytes_per_s: as for :func:`line_s`.
    """
    if work.profile is None:
        return None
    own = work.profile(work.compute_s)
    if ratio is None:
        return own
    return own.scaled(ratio * line_s(own.nbytes, hosts, rate_bytes_per_s) / own.compute_s)


def make(
    work: Work, workload: Workload | None, *, rank: int, world_size: int, quick: bool
) -> Trained:
    """Return the model on one rank; ``workload`` is that of :func:`replayed`."""
    if workload is None:
        assert work.make is not None
        return work.make(rank, world_size, quick)
    model = replay(workload)
    endless = ((None, None) for _ in count())
    return Trained(model, model.task(), endless, lambda output, _: output)
