"""Residual networks: ResNet-20 for small images and ResNet-50 for ImageNet.

Source: He et al., Deep Residual Learning for Image Recognition, 2016; section 4.2 for ResNet-20
(parameter-free shortcuts, option A), Table 1 for ResNet-50 (projections, option B). The stride of
a ResNet-50 stage is on its 3 x 3 convolution, as everyone trains it today.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from syncopate.zoo.task import Task, image_task, initialise


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut that pads missing channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.padding = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, at ``1 / stride`` of the resolution."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride != 1 or self.padding:
            x = x[:, :, :: self.stride, :: self.stride]
            x = functional.pad(x, (0, 0, 0, 0, self.padding // 2, self.padding - self.padding // 2))
        return functional.relu(out + x)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions; a projection where the shape changes."""

    EXPANSION = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.EXPANSION
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, at ``1 / stride`` of the resolution."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return functional.relu(out + shortcut)


class ResNet20(nn.Module):
    """ResNet-20: 59 tensors, 0.27 M parameters; images (N, channels, H, W) of any small size.

    Three stages of three blocks with 16, 32 and 64 channels at full, half and quarter resolution;
    8 x 8 digits end at 2 x 2.
    """

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = _conv(channels, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _basic_stage(16, 16, stride=1)
        self.layer2 = _basic_stage(16, 32, stride=2)
        self.layer3 = _basic_stage(32, 64, stride=2)
        self.fc = nn.Linear(64, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of ``images``."""
        features = functional.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


class ResNet50(nn.Module):
    """ResNet-50: 161 tensors, 25,557,032 parameters with 1000 classes; images (N, 3, H, W)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _bottleneck_stage(64, 64, blocks=3, stride=1)
        self.layer2 = _bottleneck_stage(256, 128, blocks=4, stride=2)
        self.layer3 = _bottleneck_stage(512, 256, blocks=6, stride=2)
        self.layer4 = _bottleneck_stage(1024, 512, blocks=3, stride=2)
        self.fc = nn.Linear(512 * Bottleneck.EXPANSION, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of ``images``."""
        features = functional.relu(self.bn1(self.conv1(images)))
        features = functional.max_pool2d(features, 3, stride=2, padding=1)
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


def resnet20(batch_size: int = 32, *, seed: int = 0) -> Task:
    """Return ResNet-20 with a random batch shaped like the digits of :func:`digits`.

    Equal seeds give equal tasks.
    """
    return image_task(
        ResNet20,
        "resnet20",
        batch_size=batch_size,
        image_size=8,
        seed=seed,
        channels=1,
        classes=10,
    )


def resnet50(batch_size: int = 8, *, image_size: int = 224, seed: int = 0) -> Task:
    """Return ResNet-50 with a random batch of ImageNet shape; equal seeds give equal tasks."""
    return image_task(ResNet50, "resnet50", batch_size=batch_size, image_size=image_size, seed=seed)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def _basic_stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(inputs, outputs, stride),
        BasicBlock(outputs, outputs, 1),
        BasicBlock(outputs, outputs, 1),
    )


def _bottleneck_stage(inputs: int, width: int, *, blocks: int, stride: int) -> nn.Sequential:
    outputs = width * Bottleneck.EXPANSION
    rest = (Bottleneck(outputs, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)
