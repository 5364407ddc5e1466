"""LeNet-5: five layers, ten tensors, 61,706 parameters; the smallest realistic model.

Source: LeCun et al., Gradient-based learning applied to document recognition, 1998, with ReLU and
max pooling as trained today. 28 x 28 images are padded to the paper's 32 x 32.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from syncopate.zoo.task import Task, image_task


class LeNet5(nn.Module):
    """LeNet-5 for images of shape (N, channels, 28, 28); returns logits (N, classes)."""

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of ``images``."""
        features = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        features = functional.max_pool2d(functional.relu(self.conv2(features)), 2)
        hidden = functional.relu(self.fc1(features.flatten(1)))
        logits: Tensor = self.fc3(functional.relu(self.fc2(hidden)))
        return logits


def lenet5(batch_size: int = 64, *, seed: int = 0) -> Task:
    """Return LeNet-5 with a random batch of 28 x 28 images; equal seeds give equal tasks."""
    return image_task(
        LeNet5, "lenet5", batch_size=batch_size, image_size=28, seed=seed, channels=1, classes=10
    )
