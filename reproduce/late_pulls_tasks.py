"""What the study of late pulls trains: three small models, of which many are computed at once.

Every parameter has a leading dimension N, of all workers of all trainings that go side by side. A
model's parameters lie one behind the other in its row of one matrix (N, D).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from syncopate.zoo import digits, python_text

Batch = tuple[Tensor, Tensor]
"""Inputs and targets; targets are classes."""


@dataclass(frozen=True)
class Task:
    """A model with its data.

    Attributes:
        title: in tables.
        what: model and data, in words.
        rates: learning rates that the search begins with, ascending.
        shapes: of the parameters, without N; each begins uniform within 1 / sqrt of its first.
        logits: of parameters (N, ...) and inputs (N, B, ...), which are (N, B, classes).
        batch: draws a batch of so many samples: ``batch(generator, samples)``.
        tested: what is tested on.
    """

    title: str
    what: str
    rates: tuple[float, ...]
    shapes: tuple[tuple[int, ...], ...]
    logits: Callable[[list[Tensor], Tensor], Tensor]
    batch: Callable[[torch.Generator, int], Batch]
    tested: Batch

    @property
    def size(self) -> int:
        """D: how many weights a model has."""
        return sum(map(prod, self.shapes))

    def start(self, seed: int) -> Tensor:
        """Return the weights that training begins with, (D,)."""
        random = torch.Generator().manual_seed(seed)
        parts = [
            (2 * torch.rand(prod(shape), generator=random) - 1) / shape[0] ** 0.5
            for shape in self.shapes
        ]
        return torch.cat(parts)

    def outputs(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (N, B, classes) of weights (N, D) and inputs (N, B, ...)."""
        parts = weights.split([prod(shape) for shape in self.shapes], dim=1)
        pairs = zip(parts, self.shapes, strict=True)
        return self.logits([part.unflatten(1, shape) for part, shape in pairs], inputs)

    def gradient(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient (N, D) of each model's mean cross entropy; targets are (N, B)."""
        leaf = weights.detach().requires_grad_()
        losses = functional.cross_entropy(
            self.outputs(leaf, inputs).flatten(0, 1), targets.flatten(), reduction="sum"
        )
        (found,) = torch.autograd.grad(losses / targets.shape[1], leaf)
        return found

    @torch.no_grad()
    def accuracies(self, weights: Tensor) -> list[float]:
        """Return the test accuracy of models (N, D) in [0, 1]; 0 where weights are not finite."""
        inputs, targets = self.tested
        found = []
        for one in weights.unsqueeze(1):
            right = (self.outputs(one, inputs[None])[0].argmax(dim=1) == targets).double().mean()
            found.append(float(right) if bool(one.isfinite().all()) else 0.0)
        return found


def _layers(inputs: int, hidden: int, classes: int) -> tuple[tuple[int, ...], ...]:
    return ((inputs, hidden), (hidden, 1), (hidden, classes), (classes, 1))


def _two_layers(parameters: list[Tensor], inputs: Tensor) -> Tensor:
    first, first_bias, second, second_bias = parameters
    hidden = torch.baddbmm(first_bias.mT, inputs.expand(len(first), -1, -1), first).tanh()
    return torch.baddbmm(second_bias.mT, hidden, second)


def on_digits() -> Task:
    """Return scikit-learn's digits and a network of two layers."""
    data = digits()
    inputs, targets = data.train_inputs.flatten(1), data.train_targets

    def batch(random: torch.Generator, samples: int) -> Batch:
        chosen = torch.randint(len(targets), (samples,), generator=random)
        return inputs[chosen], targets[chosen]

    return Task(
        title="digits",
        what="two layers, 32 hidden units, on 1,437 digits of 8 x 8; 360 to test",
        rates=(0.025, 0.05, 0.1, 0.2),
        shapes=_layers(64, 32, 10),
        logits=_two_layers,
        batch=batch,
        tested=(data.test_inputs.flatten(1), data.test_targets),
    )


_KNOWN, _CONTEXT, _EMBEDDED, _HIDDEN = 64, 8, 8, 48
_TEXT_TESTED = 8000


def _next_character(parameters: list[Tensor], inputs: Tensor) -> Tensor:
    table, *layers = parameters
    rows = torch.arange(len(table)).mul_(_KNOWN)[:, None, None] + inputs
    embedded = functional.embedding(rows, table.flatten(0, 1))
    return _two_layers(layers, embedded.flatten(2))


def on_text() -> Task:
    """Return the language reference of Python, and a network that sees eight characters."""
    tokens = python_text().tokens
    often = tokens.bincount().argsort(descending=True)
    place = torch.full((len(often),), _KNOWN - 1)
    place[often[: _KNOWN - 1]] = torch.arange(_KNOWN - 1)
    windows = place[tokens].unfold(0, _CONTEXT + 1, 1)
    trained, tested = windows[: -2 * _TEXT_TESTED], windows[-_TEXT_TESTED:]

    def batch(random: torch.Generator, samples: int) -> Batch:
        chosen = trained[torch.randint(len(trained), (samples,), generator=random)]
        return chosen[:, :-1], chosen[:, -1]

    return Task(
        title="text",
        what=f"the next of {_KNOWN} characters by {_CONTEXT} before, embedded, and two layers, "
        f"{_HIDDEN} hidden units, on Python's language reference; {_TEXT_TESTED:,} to test",
        rates=(0.05, 0.1, 0.2, 0.4),
        shapes=((_KNOWN, _EMBEDDED), *_layers(_CONTEXT * _EMBEDDED, _HIDDEN, _KNOWN)),
        logits=_next_character,
        batch=batch,
        tested=(tested[:, :-1].contiguous(), tested[:, -1].contiguous()),
    )


_FEATURES, _TAUGHT, _CLASSES = 20, 64, 8
_GENERATED_TESTED = 8000


def generated() -> Task:
    """Return points that a random network puts into classes; no point comes twice."""
    random = torch.Generator().manual_seed(0)
    first = torch.randn(_FEATURES, _TAUGHT, generator=random) / _FEATURES**0.5
    second = torch.randn(_TAUGHT, _CLASSES, generator=random)

    def batch(random: torch.Generator, samples: int) -> Batch:
        points = torch.randn(samples, _FEATURES, generator=random)
        return points, ((2 * points @ first).tanh() @ second).argmax(dim=1)

    return Task(
        title="generated",
        what=f"two layers, 32 hidden units, on normal points of {_FEATURES} numbers that another "
        f"network puts into {_CLASSES} classes; {_GENERATED_TESTED:,} to test",
        rates=(0.00625, 0.0125, 0.025, 0.05),
        shapes=_layers(_FEATURES, 32, _CLASSES),
        logits=_two_layers,
        batch=batch,
        tested=batch(random, _GENERATED_TESTED),
    )


TASKS: dict[str, Callable[[], Task]] = {
    "digits": on_digits,
    "text": on_text,
    "generated": generated,
}
"""Name -> makes the task; its data are read only then."""
