"""Profiles: full-size models as workloads, whose computation is replayed by sleeping."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.zoo import VGG11, AlexNet, ResNet50

RESNET50_S = 1.0
"""What an iteration of the replayed ResNet-50 computes by default."""

ALEXNET_S = 0.25
VGG11_S = 1.85
"""What these two compute: as many operations a second as that ResNet-50."""

_FORWARD = 0.33
_SLACK = 1 + 1e-9


def resnet50_profile(compute_s: float = RESNET50_S) -> Workload:
    """Return ResNet-50 at full size, a third of it forward, spread over layers by operations."""
    return _by_operations("ResNet-50", ResNet50, compute_s)


def alexnet_profile(compute_s: float = ALEXNET_S) -> Workload:
    """Return SSD-SGD's AlexNet at full size, made as :func:`resnet50_profile` is."""
    return _by_operations("AlexNet", AlexNet, compute_s)


def vgg11_profile(compute_s: float = VGG11_S) -> Workload:
    """Return VGG-11 at full size, made as :func:`resnet50_profile` is."""
    return _by_operations("VGG-11", VGG11, compute_s)


def operations(build: Callable[[], nn.Module]) -> dict[str, tuple[int, float]]:
    """Return of each parameter its elements and the multiply-adds of one image forward.

    Args:
        build: makes a model for images of 224 x 224; without data, so that nothing is computed.
    """
    found: dict[nn.Parameter, float] = {}

    def count(module: nn.Module, _: Any, output: Tensor) -> None:
        for parameter in module.parameters(recurse=False):
            per_output = parameter.numel() / output.shape[1] if parameter.dim() > 1 else 1.0
            found[parameter] = per_output * output.numel()

    with torch.device("meta"):
        model, image = build(), torch.empty(1, 3, 224, 224)
    for module in model.modules():
        module.register_forward_hook(count)
    model(image)
    return {name: (tensor.numel(), found[tensor]) for name, tensor in model.named_parameters()}


def _by_operations(title: str, build: Callable[[], nn.Module], compute_s: float) -> Workload:
    counts = operations(build)
    forward_s = compute_s * _FORWARD
    backward_s = compute_s - forward_s
    total = sum(count for _, count in counts.values())
    tensors = (
        GradientTensor(
            name=name,
            numel=numel,
            forward_s=count / total * forward_s,
            backward_s=count / total * backward_s,
        )
        for name, (numel, count) in counts.items()
    )
    return _workload(title, tensors, forward_s, backward_s)


class _Layer(NamedTuple):
    """One layer of a profile: its weight and bias, and milliseconds forward and backward."""

    name: str
    weight: int
    bias: int
    forward_ms: float
    backward_ms: float


# What follows a layer without parameters of its own (ReLU, pooling) is counted with it. Source:
# PipeDream (github.com/msr-fiddle/pipedream, Copyright (c) Microsoft, MIT licence),
# profiler/image_classification/profiles/vgg16/graph.txt, loading of the images left out.
_VGG16 = (
    _Layer("features.0", 1_728, 64, 26.753, 30.166),
    _Layer("features.2", 36_864, 64, 54.451, 124.220),
    _Layer("features.5", 73_728, 128, 17.514, 42.386),
    _Layer("features.7", 147_456, 128, 26.786, 58.787),
    _Layer("features.10", 294_912, 256, 12.191, 19.715),
    _Layer("features.12", 589_824, 256, 19.098, 28.486),
    _Layer("features.14", 589_824, 256, 16.963, 36.722),
    _Layer("features.17", 1_179_648, 512, 10.275, 15.270),
    _Layer("features.19", 2_359_296, 512, 16.207, 22.579),
    _Layer("features.21", 2_359_296, 512, 13.458, 30.093),
    _Layer("features.24", 2_359_296, 512, 6.392, 7.647),
    _Layer("features.26", 2_359_296, 512, 4.533, 7.586),
    _Layer("features.28", 2_359_296, 512, 5.050, 9.057),
    _Layer("classifier.0", 102_760_448, 4_096, 2.852, 4.605),
    _Layer("classifier.3", 16_777_216, 4_096, 0.986, 0.766),
    _Layer("classifier.6", 4_096_000, 1_000, 0.393, 0.548),
)

VGG16_S = sum(layer.forward_ms + layer.backward_ms for layer in _VGG16) / 1e3
"""What an iteration of VGG-16 computed when PipeDream profiled it."""


def vgg16_profile(compute_s: float = VGG16_S) -> Workload:
    """Return VGG-16 at full size with the times of PipeDream's profile, scaled to ``compute_s``.

    Nine tenths of its bytes are in the three layers that backward finishes first.
    """
    scale = compute_s / VGG16_S / 1e3
    tensors = (
        GradientTensor(
            name=f"{layer.name}.{part}",
            numel=numel,
            forward_s=layer.forward_ms * scale * numel / (layer.weight + layer.bias),
            backward_s=layer.backward_ms * scale * numel / (layer.weight + layer.bias),
        )
        for layer in _VGG16
        for part, numel in (("weight", layer.weight), ("bias", layer.bias))
    )
    forward_s = sum(layer.forward_ms for layer in _VGG16) * scale
    return _workload("VGG-16", tensors, forward_s, compute_s - forward_s)


def _workload(
    model: str, forward_order: Iterable[GradientTensor], forward_s: float, backward_s: float
) -> Workload:
    return Workload(
        model=model,
        tensors=tuple(reversed(list(forward_order))),
        forward_s=forward_s * _SLACK,
        backward_s=backward_s * _SLACK,
    )
