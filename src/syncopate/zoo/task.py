"""Task: a model with one batch and its loss, everything that one training iteration needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.errors import InvalidValueError

Loss = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """A model, one batch of data and the loss.

    Attributes:
        model: any module.
        inputs: what the model is called with: one object, a tuple of positional arguments or a
            mapping of keyword arguments.
        targets: passed to ``loss_fn`` after the model's output; None to leave it out.
        loss_fn: ``loss_fn(output, targets)`` or, without targets, ``loss_fn(output)``; None when
            the output is the loss, has it as ``output.loss`` or ``output["loss"]``, or its mean
            will do.
        name: what to call the task in reports; the model's class name when empty.
    """

    model: nn.Module
    inputs: Any
    targets: Any = None
    loss_fn: Loss | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InvalidValueError("model of a task", self.model, "a torch.nn.Module")

    @property
    def title(self) -> str:
        """The name, or the model's class name."""
        return self.name or type(self.model).__name__

    def loss(self) -> Tensor:
        """Run forward on the batch and return the scalar loss, ready for ``backward()``.

        Raises:
            InvalidValueError: no scalar tensor with a gradient can be made of the output.
        """
        output = _call(self.model, self.inputs)
        if self.loss_fn is None:
            loss = _implied_loss(output)
        elif self.targets is None:
            loss = self.loss_fn(output)
        else:
            loss = self.loss_fn(output, self.targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise InvalidValueError(
                f"the loss of {self.title}", what, "a tensor of one element; give a loss_fn"
            )
        return loss

    def to(self, device: torch.device | str) -> Task:
        """Return the task on ``device``; the model is moved in place, as ``Module.to`` does."""
        return replace(
            self,
            model=self.model.to(device),
            inputs=_move(self.inputs, device),
            targets=_move(self.targets, device),
        )


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def usual_loss(output: Any, targets: Tensor) -> Tensor:
    """Return the loss of a model whose builder gives targets and no loss function.

    The output's own, where it has one. Else cross entropy of targets that are integers, whose
    classes are counted along dimension 1 of the output, or along the last where only that fits; and
    the mean squared error of others.

    Raises:
        InvalidValueError: targets that are no tensor.
    """
    if _loss_of(output) is not output:
        own: Tensor = _implied_loss(output)
        return own
    if not isinstance(targets, Tensor):
        rule = "a tensor; give (model, inputs, targets, loss_fn)"
        raise InvalidValueError("targets", type(targets).__name__, rule)
    if targets.is_floating_point() or targets.is_complex():
        return functional.mse_loss(output, targets)
    if output.dim() > 2 and output.shape[:-1] == targets.shape:
        return functional.cross_entropy(output.flatten(0, -2), targets.flatten())
    return functional.cross_entropy(output, targets)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (N, T, vocabulary) and targets (N, T)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _loss_of(output: Any) -> Any:
    """Return the loss that an output holds, or the output."""
    if isinstance(output, Mapping):
        return output.get("loss", output)
    return getattr(output, "loss", output)


def _implied_loss(output: Any) -> Any:
    loss = _loss_of(output)
    if isinstance(loss, Tensor) and loss.numel() != 1 and loss.is_floating_point():
        return loss.mean()
    return loss


def _move(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _move(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_move(item, device) for item in value)
    return value


def shares(
    count: int, batch_size: int, *, epoch: int, rank: int, world_size: int
) -> Iterator[Tensor]:
    """Yield one rank's batches of an epoch, each the places of ``batch_size`` of ``count`` samples.

    Every rank shuffles alike (by ``epoch``) and takes its slice of each global batch of
    ``batch_size * world_size`` samples, so ranks see disjoint data and equally many batches; an
    incomplete last global batch is dropped.

    Raises:
        InvalidValueError: a rank that is none.
    """
    if not 0 <= rank < world_size:
        raise InvalidValueError("rank", rank, f"in 0..{world_size - 1}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    step = batch_size * world_size
    for start in range(0, count - step + 1, step):
        yield order[start + rank * batch_size : start + (rank + 1) * batch_size]


def initialise(model: nn.Module) -> None:
    """Draw the weights of all convolutions as He et al. (2015) do for rectifiers."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body under ``seed`` and leave the global CPU random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def image_task(
    build: Callable[[], nn.Module],
    name: str,
    *,
    batch_size: int,
    image_size: int,
    seed: int,
    loss_fn: Loss = functional.cross_entropy,
    channels: int = 3,
    classes: int = 1000,
) -> Task:
    """Return a model with a random batch of images; equal seeds give equal tasks.

    Args:
        build: makes the model.
        name: of the task.
        batch_size: images in the batch.
        image_size: their height and width.
        seed: of weights and images.
        loss_fn: of output and targets.
        channels: of the images.
        classes: of the targets.
    """
    with seeded(seed):
        return Task(
            model=build(),
            inputs=torch.randn(batch_size, channels, image_size, image_size),
            targets=torch.randint(classes, (batch_size,)),
            loss_fn=loss_fn,
            name=name,
        )
