"""The networks for ImageNet: parameters as published, shapes, and a training step."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from syncopate.errors import InvalidValueError
from syncopate.zoo import VGG11, AlexNet, GoogLeNet, alexnet, googlenet, vgg11

GOOGLENET_K80 = Path(__file__).parents[3] / "reproduce" / "data" / "googlenet_k80.csv"
ALEXNET = GOOGLENET_K80.with_name("alexnet.csv")


def on_meta(build, **options) -> nn.Module:
    with torch.device("meta"):
        return build(**options)


def parameters(model: nn.Module) -> tuple[int, int]:
    tensors = list(model.parameters())
    return len(tensors), sum(tensor.numel() for tensor in tensors)


def layers(model: nn.Module) -> list[int]:
    """Parameters of each module that has its own."""
    sizes = [sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules()]
    return [size for size in sizes if size]


def rows(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.mark.parametrize(
    ("build", "options", "expected"),
    [
        (AlexNet, {}, (16, 50_844_008)),
        (AlexNet, {"image_size": 227}, (16, 62_378_344)),
        (VGG11, {}, (22, 132_863_336)),
        (GoogLeNet, {}, (128, 13_378_280)),
        (GoogLeNet, {"auxiliary": False}, (116, 6_998_552)),
    ],
)
def test_parameters_as_published(build, options, expected) -> None:
    model = on_meta(build, **options)
    assert parameters(model) == expected
    size = options.get("image_size", 224)
    assert model.eval()(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1000)


def test_alexnet_has_the_bytes_that_ssd_sgd_prints() -> None:
    _, count = parameters(on_meta(AlexNet))
    assert round(4 * count / 1e6, 1) == 203.4
    assert 4 * parameters(on_meta(VGG11))[1] / 532.10e6 == pytest.approx(0.9988, abs=1e-4)


def test_alexnet_is_the_original_but_for_its_groups() -> None:
    """Two groups halve the weights of the second, fourth and fifth convolution."""
    ours = layers(on_meta(AlexNet, image_size=227))
    original = [int(row["parameters"]) for row in reversed(rows(ALEXNET))]
    halved = [
        (size - outputs) // 2 + outputs if outputs else size
        for size, outputs in zip(ours, (0, 256, 0, 384, 256, 0, 0, 0), strict=True)
    ]
    assert halved == original


def test_googlenet_is_what_mg_wfbp_trained() -> None:
    """Layer by layer, in order; the log counts biases in blocks of 64."""
    logged = [int(row["parameters"]) for row in reversed(rows(GOOGLENET_K80))]
    model = on_meta(GoogLeNet)
    modules = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [m.weight.numel() + -(-m.bias.numel() // 64) * 64 for m in modules] == logged


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (alexnet, {"image_size": 67}),
        (vgg11, {"image_size": 32}),
        (googlenet, {"image_size": 32, "auxiliary": False}),
    ],
)
def test_trains(build, options) -> None:
    task, same = build(batch_size=2, **options), build(batch_size=2, **options)
    assert torch.equal(task.inputs, same.inputs)
    assert torch.equal(task.model.eval()(task.inputs), same.model.eval()(same.inputs))
    task.model.train()
    loss = task.loss()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in task.model.parameters())


def test_the_auxiliary_classifiers_are_trained() -> None:
    task = googlenet(batch_size=1).to("meta")
    task.loss().backward()
    assert all(p.grad is not None for p in task.model.parameters())


def test_images_too_small() -> None:
    with pytest.raises(InvalidValueError, match="image_size"):
        AlexNet(image_size=66)
    with pytest.raises(InvalidValueError, match="multiple of 32"):
        VGG11(image_size=33)
