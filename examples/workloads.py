"""Writes workloads of well-known models on a GPU, made from published figures instead of a profile.

    python examples/workloads.py          # writes examples/workloads/*.json

Gradients are those of the architecture. What one GPU takes for an iteration is published: ResNet-50
and BERT-Large on an RTX 2080 Ti (HKBU-HPML/ddl-benchmarks, results of 2020-05-29, rows of one GPU).
A third of it is forward, and layers share it by their multiply-adds; both are assumptions. With
another model in these functions, or times of a profiler, the same makes a workload by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from syncopate.artifacts.workload import GradientTensor, Workload

FOLDER = Path(__file__).with_suffix("")

FORWARD = 1 / 3
"""The part of computation that is forward: backward takes two multiply-adds for each of its."""


class Parameter(NamedTuple):
    """A parameter in forward order: its elements, and the multiply-adds of a sample."""

    name: str
    numel: int
    operations: float


def resnet50() -> Iterator[Parameter]:
    """Yield ResNet-50 (He et al. 2016) for images of 224 x 224 pixels."""
    yield from _convolution("conv1", "bn1", 3, 64, 7, side=112)
    width, side = 64, 56
    for stage, (inner, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            before = side
            if block == 0 and stage > 1:
                side //= 2
            yield from _convolution(f"{name}.conv1", f"{name}.bn1", width, inner, 1, side=before)
            yield from _convolution(f"{name}.conv2", f"{name}.bn2", inner, inner, 3, side=side)
            yield from _convolution(f"{name}.conv3", f"{name}.bn3", inner, 4 * inner, 1, side=side)
            if block == 0:
                down = f"{name}.downsample"
                yield from _convolution(f"{down}.0", f"{down}.1", width, 4 * inner, 1, side=side)
            width = 4 * inner
    yield from _linear("fc", width, 1000, 1)


def bert_large(tokens: int = 64) -> Iterator[Parameter]:
    """Yield BERT-Large (Devlin et al. 2019): 24 layers of 1024, without the head's own words."""
    hidden, layers, words, positions = 1024, 24, 30_522, 512
    for name, rows in (("word", words), ("position", positions), ("token_type", 2)):
        yield Parameter(f"embeddings.{name}_embeddings.weight", rows * hidden, tokens * hidden)
    yield from _norm("embeddings.LayerNorm", hidden, tokens)
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from _linear(f"{name}.attention.self.{part}", hidden, hidden, tokens)
        yield from _linear(f"{name}.attention.output.dense", hidden, hidden, tokens)
        yield from _norm(f"{name}.attention.output.LayerNorm", hidden, tokens)
        yield from _linear(f"{name}.intermediate.dense", hidden, 4 * hidden, tokens)
        yield from _linear(f"{name}.output.dense", 4 * hidden, hidden, tokens)
        yield from _norm(f"{name}.output.LayerNorm", hidden, tokens)
    yield from _linear("pooler.dense", hidden, hidden, 1)


def _convolution(
    name: str, norm: str, channels: int, made: int, kernel: int, *, side: int
) -> Iterator[Parameter]:
    numel = channels * made * kernel**2
    yield Parameter(f"{name}.weight", numel, numel * side**2)
    yield from _norm(norm, made, side**2)


def _linear(name: str, rows: int, columns: int, tokens: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", rows * columns, rows * columns * tokens)
    yield Parameter(f"{name}.bias", columns, columns * tokens)


def _norm(name: str, features: int, tokens: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", features, features * tokens)
    yield Parameter(f"{name}.bias", features, features * tokens)


def workload(model: str, parameters: Iterator[Parameter], batch: int, per_s: float) -> Workload:
    """Return a model's workload.

    Args:
        model: its name.
        parameters: in forward order; gradients become ready the other way round.
        batch: samples in an iteration.
        per_s: samples per second of one GPU by itself.
    """
    found = list(parameters)[::-1]
    total = sum(one.operations for one in found)
    compute_s = batch / per_s
    forward_s, backward_s = FORWARD * compute_s, (1 - FORWARD) * compute_s
    tensors = tuple(
        GradientTensor(
            name=one.name,
            numel=one.numel,
            forward_s=round(forward_s * one.operations / total, 9),
            backward_s=round(backward_s * one.operations / total, 9),
        )
        for one in found
    )
    return Workload(
        model=model,
        tensors=tensors,
        forward_s=max(forward_s, sum(tensor.forward_s for tensor in tensors)),
        backward_s=max(backward_s, sum(tensor.backward_s for tensor in tensors)),
        metadata={
            "batch": str(batch),
            "device": "RTX 2080 Ti",
            "source": f"{per_s:g} samples/s of one GPU (HKBU-HPML/ddl-benchmarks, 2020-05-29); "
            "layers by multiply-adds, a third forward",
        },
    )


def workloads() -> dict[str, Workload]:
    """Return the workloads by the names of their files."""
    return {
        "resnet50": workload("ResNet-50", resnet50(), 64, 253.1),
        "bert_large": workload("BERT-Large", bert_large(), 8, 49.0),
    }


if __name__ == "__main__":
    for name, made in workloads().items():
        print(f"wrote {made.save(FOLDER / f'{name}.json')}: {made.nbytes / 1e6:.1f} MB")
