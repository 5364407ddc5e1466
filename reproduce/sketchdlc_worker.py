r"""SketchDLC's two networks, and what a worker of a parameter server does with them.

    syncopate ps local --servers 1 --workers 2 -- \
        python reproduce/sketchdlc_worker.py lenet5 --iterations 20

Both are those of MXNet's examples, which is what the lengths of Tables 6 and 7 say. So LeNet-5 is
the one with 20 and 50 channels, eight tensors and 431,080 parameters, and ResNet-50 the one that
normalises before it convolves, 157 tensors. The models of ``syncopate.zoo`` are others: LeCun's
LeNet-5, and the ResNet-50 of the first paper; its convolutions are the same.

LeNet-5 trains on scikit-learn's digits, scaled to the 28 x 28 pixels of MNIST. ResNet-50's forward
and backward are slept: as long as the paper's phases 1 and 2, spread over its tensors by their
multiply-adds.

[Note: MXNet's order] A gradient is pushed as soon as backward has it. Its weights are asked for
when the server has said that it got the push. The next forward begins when all weights are there.
Every key has a slice of its own, so that a push is one message.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

from syncopate import KVStore
from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import SGD, Rules
from syncopate.units import MIB
from syncopate.zoo import digits, replay
from syncopate.zoo.task import seeded

LENET5, RESNET50 = "lenet5", "resnet50"
SLICE_BYTES = 16 * MIB
"""More than the largest tensor has, so that none is cut."""

FORWARD_S, BACKWARD_S = 0.2143, 0.4622
"""Phases 1 and 2 of ResNet-50, the means of Fig. 9; together 676 ms, as the text says."""

BATCH = 64
_RULES = Rules(mode="ssgd", optimizer=SGD(lr=0.05, momentum=0.9))
_IMAGE = 28
_STAGES = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
"""Units, channels and pixels along a side, of ResNet-50's stages."""


class Parameter(NamedTuple):
    """A tensor that is pushed and pulled.

    Attributes:
        name: as MXNet calls it.
        numel: its elements.
        operations: multiply-adds of one image forward; 0 where they are not needed.
    """

    name: str
    numel: int
    operations: float = 0.0


class LeNet(nn.Module):
    """LeNet-5 as MXNet's and Caffe's examples have it, for images of shape (N, 1, 28, 28)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, 10) of ``images``."""
        features = functional.max_pool2d(torch.tanh(self.conv1(images)), 2)
        features = functional.max_pool2d(torch.tanh(self.conv2(features)), 2)
        logits: Tensor = self.fc2(torch.tanh(self.fc1(features.flatten(1))))
        return logits


def lenet5_parameters() -> tuple[Parameter, ...]:
    """Return LeNet-5's parameters by key."""
    with torch.device("meta"):
        named = LeNet().named_parameters()
    return tuple(Parameter(name, tensor.numel()) for name, tensor in named)


def resnet50_parameters() -> tuple[Parameter, ...]:
    """Return ResNet-50's parameters by key: MXNet's, with batch normalisation first.

    Source: He et al., Identity Mappings in Deep Residual Networks, 2016; images of 224 x 224.
    """
    found: list[Parameter] = []

    def norm(name: str, channels: int, side: int) -> None:
        for part in ("gamma", "beta"):
            found.append(Parameter(f"{name}_{part}", channels, channels * side**2))

    def conv(name: str, channels: tuple[int, int], kernel: int, side: int) -> None:
        numel = channels[0] * channels[1] * kernel**2
        found.append(Parameter(f"{name}_weight", numel, numel * side**2))

    norm("bn_data", 3, 224)
    conv("conv0", (3, 64), 7, 112)
    norm("bn0", 64, 112)
    inputs, before = 64, 56
    for stage, (units, width, side) in enumerate(_STAGES, start=1):
        for unit in range(1, units + 1):
            name = f"stage{stage}_unit{unit}"
            norm(f"{name}_bn1", inputs, before)
            conv(f"{name}_conv1", (inputs, width), 1, before)
            norm(f"{name}_bn2", width, before)
            conv(f"{name}_conv2", (width, width), 3, side)
            norm(f"{name}_bn3", width, side)
            conv(f"{name}_conv3", (width, 4 * width), 1, side)
            if unit == 1:
                conv(f"{name}_sc", (inputs, 4 * width), 1, side)
            inputs, before = 4 * width, side
    norm("bn1", inputs, before)
    found.append(Parameter("fc1_weight", 1000 * inputs, 1000 * inputs))
    found.append(Parameter("fc1_bias", 1000, 1000))
    return tuple(found)


PARAMETERS = {LENET5: lenet5_parameters, RESNET50: resnet50_parameters}
"""Network -> makes its parameters, in the order of their keys."""


def resnet50_workload() -> Workload:
    """Return ResNet-50 as it is replayed."""
    parameters = resnet50_parameters()
    total = sum(one.operations for one in parameters)
    tensors = tuple(
        GradientTensor(
            name=one.name,
            numel=one.numel,
            forward_s=one.operations / total * FORWARD_S,
            backward_s=one.operations / total * BACKWARD_S,
        )
        for one in reversed(parameters)
    )
    slack = 1 + 1e-9  # sums of shares may exceed the whole by a rounding
    return Workload(
        model="ResNet-50",
        tensors=tensors,
        forward_s=FORWARD_S * slack,
        backward_s=BACKWARD_S * slack,
    )


class Learned(Artifact, frozen=True, kw_only=True):
    """What worker 0 tells at its end: the loss of its first and of its last batch."""

    KIND: ClassVar[str] = "sketchdlc worker"

    first_loss: float
    last_loss: float


class Loop:
    """A model that trains through a parameter server, key by key; see [Note: MXNet's order].

    Args:
        model: its parameters in the order of their keys.
        store: of this worker.
        pool: of one thread, which asks for weights while backward goes on.
    """

    def __init__(self, model: nn.Module, store: KVStore, pool: ThreadPoolExecutor) -> None:
        self._model = model
        self._store, self._pool = store, pool
        self._pulls: list[Future] = []
        # Servers number tensors in the order of their names.
        named = {f"{key:03d} {name}": p for key, (name, p) in enumerate(model.named_parameters())}
        store.init({name: parameter.detach() for name, parameter in named.items()})
        for name, parameter in named.items():
            parameter.register_post_accumulate_grad_hook(self._pusher(name))

    def step(self, loss_of: Callable[[nn.Module], Tensor]) -> float:
        """Train one iteration; return its loss."""
        self._model.zero_grad()
        loss = loss_of(self._model)
        loss.backward()
        for pull in self._pulls:
            pull.result().wait()
        self._pulls.clear()
        return loss.item()

    def _pusher(self, name: str) -> Callable[[Tensor], None]:
        def push(parameter: Tensor) -> None:
            assert parameter.grad is not None
            handle = self._store.push(name, parameter.grad)

            def pull() -> object:
                handle.wait()
                return self._store.pull(name, parameter.detach())

            self._pulls.append(self._pool.submit(pull))

        return push


def _images(rank: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a worker's batches of digits for ever, scaled to 28 x 28."""
    data = digits()
    for epoch in count():
        for inputs, targets in data.batches(BATCH, epoch=epoch, rank=rank, world_size=workers):
            yield functional.interpolate(inputs, size=(_IMAGE, _IMAGE), mode="bilinear"), targets


def train(network: str, iterations: int, store: KVStore) -> Learned:
    """Train a network on this worker; return what it learned.

    Args:
        network: ``"lenet5"`` or ``"resnet50"``.
        iterations: how many.
        store: of this worker.
    """
    if network == LENET5:
        with seeded(0):
            model: nn.Module = LeNet()
        batches = _images(store.rank, store.num_workers)
    else:
        model, batches = replay(resnet50_workload()), None

    def loss_of(trained: nn.Module) -> Tensor:
        if batches is None:
            return trained()
        inputs, targets = next(batches)
        return functional.cross_entropy(trained(inputs), targets)

    progress = Progress(console=Console(stderr=True), disable=store.rank != 0, transient=True)
    with ThreadPoolExecutor(1) as pool, progress:
        loop = Loop(model, store, pool)
        steps = progress.track(range(iterations), description=f"{network}, {iterations} iterations")
        losses = [loop.step(loss_of) for _ in steps]
    return Learned(first_loss=losses[0], last_loss=losses[-1])


def main(words: Sequence[str] | None = None) -> None:
    """Be a worker of the job that the environment describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=tuple(PARAMETERS))
    parser.add_argument("--iterations", type=int, default=20, help="how many (20)")
    parser.add_argument("--told", type=Path, metavar="FILE", help="where worker 0 writes its loss")
    options = parser.parse_args(words)
    if options.iterations < 1:
        parser.error("--iterations must be at least 1")
    torch.set_num_threads(1)
    with KVStore(_RULES, limits=Limits(slice_bytes=SLICE_BYTES)) as store:
        learned = train(options.network, options.iterations, store)
        if store.rank == 0 and options.told is not None:
            learned.save(options.told)


if __name__ == "__main__":
    main()
