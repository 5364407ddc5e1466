"""VGG-11: eight 3 x 3 convolutions and three linear layers, which hold 93% of its parameters.

Source: Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition,
2015, Table 1, column A. Its 132,863,336 parameters are 531.5 MB. The paper of SSD-SGD gives
532.10 MB, 0.12% more, for which no definition was found: not batch normalisation (531.5 MB) nor
column B (532.2 MB).
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from syncopate.errors import InvalidValueError
from syncopate.zoo.task import Task, image_task, initialise

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_SHRINKS = 2 ** len(_STAGES)


class VGG11(nn.Module):
    """VGG-11: 22 tensors; images (N, 3, size, size) to logits (N, classes).

    Args:
        classes: of the logits.
        image_size: of the images, a multiple of 32; it decides the size of the first linear layer.

    Raises:
        InvalidValueError: an image of another size.
    """

    def __init__(self, classes: int = 1000, *, image_size: int = 224) -> None:
        super().__init__()
        if image_size < 1 or image_size % _SHRINKS:
            raise InvalidValueError("image_size", image_size, f"a multiple of {_SHRINKS}")
        layers: list[nn.Module] = []
        inputs = 3
        for stage in _STAGES:
            for outputs in stage:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        left = image_size // _SHRINKS
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * left * left, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of ``images``."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def vgg11(batch_size: int = 8, *, image_size: int = 224, seed: int = 0) -> Task:
    """Return VGG-11 with a random batch of ImageNet shape; equal seeds give equal tasks.

    Args:
        batch_size: images in the batch.
        image_size: of the images, and so of the first linear layer.
        seed: of weights and images. Dropout is drawn as training goes.
    """
    return image_task(
        partial(VGG11, image_size=image_size),
        "vgg11",
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
    )
