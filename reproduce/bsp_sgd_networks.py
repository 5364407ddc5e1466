"""The networks of LP's Table 2 as workloads: AlexNet and GoogLeNet, in the paper's figures.

The paper prints the bytes of a network and the computation of an iteration, and nothing of layers.
Bytes are spread over the layers as their parameters are, computation as their multiply-adds are
(AlexNet) or their backward took on a K80 (GoogLeNet); a third of it is forward. 1 MB is 10^6 bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

import mg_wfbp
from syncopate.artifacts.workload import GradientTensor, Workload

DATA = Path(__file__).parent / "data"
_FORWARD = 1 / 3
_SLACK = 1 + 1e-9


class _Layer(NamedTuple):
    """One layer: its name, and its part of bytes and of computation in any unit."""

    name: str
    parameters: int
    work: float


def rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table by column, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def network(name: str, nbytes: float, compute_s: float) -> Workload:
    """Return one of the paper's networks.

    Args:
        name: ``"AlexNet"`` or ``"GoogLeNet"``.
        nbytes: of all its gradients.
        compute_s: forward and backward of an iteration.
    """
    layers = {"AlexNet": _alexnet, "GoogLeNet": _googlenet}[name]()
    numel, work = nbytes / 4 / sum(layer.parameters for layer in layers), _total(layers)
    forward_s, backward_s = compute_s * _FORWARD, compute_s * (1 - _FORWARD)
    tensors = tuple(
        GradientTensor(
            name=f"{layer.name}.weight",
            numel=max(1, round(layer.parameters * numel)),
            forward_s=forward_s * layer.work / work,
            backward_s=backward_s * layer.work / work,
        )
        for layer in layers
    )
    return Workload(
        model=name,
        tensors=tensors,
        forward_s=forward_s * _SLACK,
        backward_s=backward_s * _SLACK,
    )


def shrunk(workload: Workload, seconds: float, nbytes: float) -> Workload:
    """Return a workload whose times and whose sizes are these shares of what they were."""
    faster = workload.scaled(seconds)
    return structs.replace(
        faster,
        tensors=tuple(
            structs.replace(tensor, numel=max(1, round(tensor.numel * nbytes)))
            for tensor in faster.tensors
        ),
    )


def _total(layers: Sequence[_Layer]) -> float:
    return sum(layer.work for layer in layers)


def _alexnet() -> list[_Layer]:
    return [
        _Layer(row["layer"], int(row["parameters"]), float(row["multiply_adds"]))
        for row in rows(DATA / "alexnet.csv")
    ]


def _googlenet() -> list[_Layer]:
    return [
        _Layer(tensor.name.replace(" ", ""), tensor.numel, tensor.backward_s)
        for tensor in mg_wfbp.googlenet().tensors
    ]
