"""GoogLeNet: nine inception modules, and two classifiers on the way that help it train.

Source: Szegedy et al., Going Deeper with Convolutions, 2015, Table 1 and Section 5; the layers'
sizes are those of Caffe's model, whose biases Table 1 leaves out. With the auxiliary classifiers,
which are trained and sent like the rest, it has 13,378,280 parameters: MG-WFBP's 13 M, layer by
layer as in ``reproduce/data/googlenet_k80.csv``, whose log rounds biases up to 64. Without them
6,998,552. torchvision's 6,624,904 are another network: batch normalisation instead of biases, and
3 x 3 in place of 5 x 5.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.zoo.task import Task, image_task, initialise

_AUXILIARY_WEIGHT = 0.3


class _Widths(NamedTuple):
    """Output channels of an inception module, by the columns of Table 1."""

    one: int
    three_reduced: int
    three: int
    five_reduced: int
    five: int
    pooled: int


class Inception(nn.Module):
    """Convolutions of three sizes and a pooling beside each other, their channels joined."""

    def __init__(self, inputs: int, *widths: int) -> None:
        super().__init__()
        width = _Widths(*widths)
        self.one = nn.Conv2d(inputs, width.one, 1)
        self.three_reduce = nn.Conv2d(inputs, width.three_reduced, 1)
        self.three = nn.Conv2d(width.three_reduced, width.three, 3, padding=1)
        self.five_reduce = nn.Conv2d(inputs, width.five_reduced, 1)
        self.five = nn.Conv2d(width.five_reduced, width.five, 5, padding=2)
        self.pooled = nn.Conv2d(inputs, width.pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the joined channels, at the resolution of ``x``."""
        three = self.three(functional.relu(self.three_reduce(x)))
        five = self.five(functional.relu(self.five_reduce(x)))
        pooled = self.pooled(functional.max_pool2d(x, 3, stride=1, padding=1))
        return functional.relu(torch.cat((self.one(x), three, five, pooled), dim=1))


class Auxiliary(nn.Module):
    """A classifier on features (N, inputs, 14, 14)."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, 128, 1)
        self.fc1 = nn.Linear(128 * 4 * 4, 1024)
        self.fc2 = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, classes)."""
        features = functional.relu(self.conv(functional.avg_pool2d(x, 5, stride=3)))
        hidden = functional.relu(self.fc1(features.flatten(1)))
        logits: Tensor = self.fc2(functional.dropout(hidden, 0.7, training=self.training))
        return logits


class GoogLeNet(nn.Module):
    """GoogLeNet: 128 tensors with the auxiliary classifiers, 116 without; images (N, 3, H, W).

    Args:
        classes: of the logits.
        auxiliary: whether it has the two classifiers on the way, which take images of 224 x 224.
    """

    def __init__(self, classes: int = 1000, *, auxiliary: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.conv2_reduce = nn.Conv2d(64, 64, 1)
        self.conv2 = nn.Conv2d(64, 192, 3, padding=1)
        self.inception3a = Inception(192, 64, 96, 128, 16, 32, 32)
        self.inception3b = Inception(256, 128, 128, 192, 32, 96, 64)
        self.inception4a = Inception(480, 192, 96, 208, 16, 48, 64)
        self.auxiliary1 = Auxiliary(512, classes) if auxiliary else None
        self.inception4b = Inception(512, 160, 112, 224, 24, 64, 64)
        self.inception4c = Inception(512, 128, 128, 256, 24, 64, 64)
        self.inception4d = Inception(512, 112, 144, 288, 32, 64, 64)
        self.auxiliary2 = Auxiliary(528, classes) if auxiliary else None
        self.inception4e = Inception(528, 256, 160, 320, 32, 128, 128)
        self.inception5a = Inception(832, 256, 160, 320, 32, 128, 128)
        self.inception5b = Inception(832, 384, 192, 384, 48, 128, 128)
        self.fc = nn.Linear(1024, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return the logits (N, classes); in training also those of the auxiliary classifiers."""
        features = _halved(functional.relu(self.conv1(images)))
        features = functional.relu(self.conv2_reduce(_normalised(features)))
        features = _halved(_normalised(functional.relu(self.conv2(features))))
        features = _halved(self.inception3b(self.inception3a(features)))
        early = self.inception4a(features)
        late = self.inception4d(self.inception4c(self.inception4b(early)))
        features = _halved(self.inception4e(late))
        features = self.inception5b(self.inception5a(features)).mean(dim=(2, 3))
        logits: Tensor = self.fc(functional.dropout(features, 0.4, training=self.training))
        if self.training and self.auxiliary1 is not None and self.auxiliary2 is not None:
            return logits, self.auxiliary1(early), self.auxiliary2(late)
        return logits


def _halved(features: Tensor) -> Tensor:
    return functional.max_pool2d(features, 3, stride=2, ceil_mode=True)


def _normalised(features: Tensor) -> Tensor:
    return functional.local_response_norm(features, 5, alpha=1e-4, beta=0.75, k=1.0)


def googlenet_loss(output: Tensor | tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    """Return the cross-entropy, and 0.3 times that of each auxiliary classifier where there are."""
    if isinstance(output, Tensor):
        return functional.cross_entropy(output, targets)
    logits, *others = output
    aside = sum(functional.cross_entropy(other, targets) for other in others)
    return functional.cross_entropy(logits, targets) + _AUXILIARY_WEIGHT * aside


def googlenet(
    batch_size: int = 8, *, image_size: int = 224, auxiliary: bool = True, seed: int = 0
) -> Task:
    """Return GoogLeNet with a random batch of ImageNet shape; equal seeds give equal tasks.

    Args:
        batch_size: images in the batch.
        image_size: of the images; 224 with the auxiliary classifiers.
        auxiliary: whether it has those.
        seed: of weights and images. Dropout is drawn as training goes.
    """
    return image_task(
        partial(GoogLeNet, auxiliary=auxiliary),
        "googlenet",
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
        loss_fn=googlenet_loss,
    )
