"""Data: a small real data set that needs no download.

The handwritten digits that scikit-learn bundles: 1797 images of 8 x 8 pixels in ten classes (UCI,
Alpaydin and Kaynak, 1998).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from syncopate.errors import (
    InvalidValueError,
    MissingPackageError,
    SyncopateError,
    how_to_install,
)
from syncopate.zoo.task import shares

_TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Digits:
    """The digits, split once and for all, 1437 for training and 360 for testing.

    Attributes:
        train_inputs: float32 (N, 1, 8, 8), zero mean and unit variance over the training set.
        train_targets: int64 (N,), the digit.
        test_inputs: as ``train_inputs``, normalised with the training set's mean and variance.
        test_targets: as ``train_targets``.
    """

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def batches(
        self, batch_size: int, *, epoch: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one rank's training batches of one epoch: ``(inputs, targets)``.

        See :func:`~syncopate.zoo.task.shares`.
        """
        if batch_size < 1:
            raise InvalidValueError("batch_size", batch_size, "an integer >= 1")
        count = len(self.train_targets)
        for chosen in shares(count, batch_size, epoch=epoch, rank=rank, world_size=world_size):
            yield self.train_inputs[chosen], self.train_targets[chosen]

    @torch.no_grad()
    def test_accuracy(self, model: torch.nn.Module) -> float:
        """Return the share of test digits that ``model`` recognises, in [0, 1]."""
        training = model.training
        model.eval()
        try:
            guesses = model(self.test_inputs).argmax(dim=1)
        finally:
            model.train(training)
        return float((guesses == self.test_targets).double().mean())


def digits() -> Digits:
    """Return the digits in a fixed stratified split.

    Raises:
        MissingPackageError: scikit-learn is not installed.
        SyncopateError: it cannot be imported.
    """
    images, targets, split = _load()
    train, test = split(
        range(len(targets)), test_size=_TEST_SHARE, random_state=0, stratify=targets
    )
    pixels = torch.tensor(images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(targets, dtype=torch.int64)
    mean, deviation = pixels[train].mean(), pixels[train].std()
    pixels = (pixels - mean) / deviation
    return Digits(
        train_inputs=pixels[train],
        train_targets=labels[train],
        test_inputs=pixels[test],
        test_targets=labels[test],
    )


def _load() -> tuple[Any, Any, Any]:
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an optional dependency
        from sklearn.model_selection import train_test_split  # noqa: PLC0415
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("sklearn"):
            raise MissingPackageError("the digits data set", "sklearn") from None
        raise SyncopateError(
            f"the digits data set needs scikit-learn, which cannot be imported: {error}; "
            f"to install it anew: {how_to_install('sklearn')}"
        ) from None
    bunch = load_digits()
    return bunch.images, bunch.target, train_test_split
