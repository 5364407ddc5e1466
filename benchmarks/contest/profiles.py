"""Profiles: full-size models as workloads, whose computation is replayed by sleeping."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from syncopate.workload import GradientTensor, Workload
from syncopate.zoo import resnet50

RESNET50_S = 1.0
"""What an iteration of the replayed ResNet-50 computes unless somebody says otherwise."""

_RESNET50_FORWARD = 0.33
_SLACK = 1 + 1e-9


def resnet50_profile(compute_s: float = RESNET50_S) -> Workload:
    """Return ResNet-50 at full size, a third of it forward, spread over layers by operations."""
    model, inputs = resnet50().model, torch.zeros(1, 3, 224, 224)
    operations: dict[nn.Parameter, float] = {}

    def count(module: nn.Module, _: Any, output: Tensor) -> None:
        for parameter in module.parameters(recurse=False):
            per_output = parameter.numel() / output.shape[1] if parameter.dim() > 1 else 1.0
            operations[parameter] = per_output * output.numel()

    for module in model.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        model(inputs)
    forward_s = compute_s * _RESNET50_FORWARD
    backward_s = compute_s - forward_s
    total = sum(operations.values())
    tensors = (
        GradientTensor(
            name=name,
            numel=parameter.numel(),
            forward_s=operations[parameter] / total * forward_s,
            backward_s=operations[parameter] / total * backward_s,
        )
        for name, parameter in model.named_parameters()
    )
    return _workload("ResNet-50", tensors, forward_s, backward_s)


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
