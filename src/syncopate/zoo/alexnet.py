"""AlexNet: five convolutions and three linear layers, which hold nine tenths of its parameters.

Source: Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural
Networks, 2012, with all channels of a layer on one device: no convolution is in two groups.

[Note: sizes of AlexNet] The first convolution is not padded, so that the size of an image decides
how many features the first linear layer has. Images of 224 end at 5 x 5: 50,844,008 parameters,
203.4 MB, which is what the paper of SSD-SGD gives; MXNet's example, which it trained, is made so.
Images of 227 end at 6 x 6: 62,378,344 parameters. With the second, fourth and fifth convolution in
two groups, as in the original and in ``reproduce/data/alexnet.csv``, those would be 60,965,224.
torchvision's has other widths, and 61,100,840.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from syncopate.errors import InvalidValueError
from syncopate.zoo.task import Task, image_task

SMALLEST_IMAGE = 67
"""Of smaller ones nothing is left after the last pooling."""


class AlexNet(nn.Module):
    """AlexNet: 16 tensors; images (N, 3, size, size) to logits (N, classes).

    Args:
        classes: of the logits.
        image_size: of the images; see [Note: sizes of AlexNet].

    Raises:
        InvalidValueError: an image of which nothing is left.
    """

    def __init__(self, classes: int = 1000, *, image_size: int = 224) -> None:
        super().__init__()
        if image_size < SMALLEST_IMAGE:
            raise InvalidValueError("image_size", image_size, f"an integer >= {SMALLEST_IMAGE}")
        left = (image_size - 11) // 4 + 1
        for _ in range(3):
            left = (left - 3) // 2 + 1
        self.conv1 = nn.Conv2d(3, 96, 11, stride=4)
        self.conv2 = nn.Conv2d(96, 256, 5, padding=2)
        self.conv3 = nn.Conv2d(256, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 384, 3, padding=1)
        self.conv5 = nn.Conv2d(384, 256, 3, padding=1)
        self.fc6 = nn.Linear(256 * left * left, 4096)
        self.fc7 = nn.Linear(4096, 4096)
        self.fc8 = nn.Linear(4096, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of ``images``."""
        features = _normalised(functional.relu(self.conv1(images)))
        features = functional.max_pool2d(features, 3, stride=2)
        features = _normalised(functional.relu(self.conv2(features)))
        features = functional.max_pool2d(features, 3, stride=2)
        features = functional.relu(self.conv3(features))
        features = functional.relu(self.conv4(features))
        features = functional.max_pool2d(functional.relu(self.conv5(features)), 3, stride=2)
        hidden = functional.dropout(
            functional.relu(self.fc6(features.flatten(1))), training=self.training
        )
        hidden = functional.dropout(functional.relu(self.fc7(hidden)), training=self.training)
        logits: Tensor = self.fc8(hidden)
        return logits


def _normalised(features: Tensor) -> Tensor:
    """Normalise over neighbouring channels; torch divides α by their number, the paper does not."""
    return functional.local_response_norm(features, 5, alpha=5e-4, beta=0.75, k=2.0)


def alexnet(batch_size: int = 8, *, image_size: int = 224, seed: int = 0) -> Task:
    """Return AlexNet with a random batch of ImageNet shape; equal seeds give equal tasks.

    Args:
        batch_size: images in the batch.
        image_size: of the images, and so of the first linear layer.
        seed: of weights and images. Dropout is drawn as training goes.
    """
    return image_task(
        partial(AlexNet, image_size=image_size),
        "alexnet",
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
    )
