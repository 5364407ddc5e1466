"""What a local update of SSD-SGD costs beside torch's own SGD step, on gradients of real sizes.

The rules (``glu``, ``sgd``, ``dc-asgd-a``) update all weights of a model in flat buffers of DDP's
sizes, as they do in training. Beside them stand steps of ``torch.optim.SGD`` over the parameters,
``foreach`` and ``fused``: with momentum, which is what a delay's global update is, and plain. All
decay weights. Contenders take turns within one process, so that drift of the machine meets them
alike; reported are medians. *Bytes* are what an element must move at least: each array read once,
and written once where it changes. The *bound* is that at the rate of a measured triad
``a = b + s c``, whose arrays are as large as the model's weights.

    python benchmarks/local_update.py
    python benchmarks/local_update.py --models resnet50 --threads 1 --json local_update.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from syncopate.artifacts.plan import filled
from syncopate.delay import DC_ASGD_A, GLU, SGD, Delay
from syncopate.engine.exchange.delay.rules import Flat, apply, hyper_of
from syncopate.output import write_output
from syncopate.shown import markdown_table
from syncopate.units import format_bytes, format_seconds
from syncopate.zoo import char_gpt, resnet50
from syncopate.zoo.alexnet import AlexNet
from syncopate.zoo.vgg import VGG11

ITEM = 4
WARMUP = 2
GROUP = {"lr": 1e-6, "weight_decay": 1e-4}
MOMENTUM = {"momentum": 0.9}
BASE = "sgd momentum fused"
"""What the others are compared with."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: resnet50(1).model,
    "vgg11": VGG11,
    "alexnet": AlexNet,
    "char-gpt": lambda: char_gpt(1).model,
}


class Contender(NamedTuple):
    """One way of updating.

    Attributes:
        update: does it once.
        arrays: how many arrays of a model's size it must read or write.
    """

    update: Callable[[], Any]
    arrays: int


def flats_of(sizes: Sequence[int], *, before: bool, squares: bool) -> list[Flat]:
    """Return what a rule works on: a flat buffer for each of DDP's buckets."""
    ends = filled([ITEM * size for size in reversed(sizes)])
    backward = list(reversed(sizes))
    found = []
    for start, stop in pairwise((0, *ends)):
        count = sum(backward[start:stop])
        weights = torch.randn(count)
        empty = weights[:0]
        found.append(
            Flat(
                weights,
                torch.randn(count) * 1e-3,
                weights + 1e-3 if before else empty,
                torch.full((count,), 1e-6) if squares else empty,
            )
        )
    return found


def by_rule(rule: str, sizes: Sequence[int]) -> Callable[[], None]:
    """Return the local update of all weights by ``rule``."""
    hyper = hyper_of(Delay(k=4, local_update=rule), GROUP | MOMENTUM)
    flats = flats_of(sizes, before=rule != SGD, squares=rule == DC_ASGD_A)

    def update() -> None:
        for flat in flats:
            apply(flat, [(0, flat.weights.numel(), hyper)])

    return update


def by_torch(shapes: Sequence[torch.Size], **how: Any) -> Callable[[], Any]:
    """Return torch's SGD step on parameters of these shapes."""
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return torch.optim.SGD(parameters, **GROUP, **how).step


def contenders(shapes: Sequence[torch.Size]) -> dict[str, Contender]:
    """Return all ways of updating weights of these shapes, and two of moving as many bytes."""
    sizes = [shape.numel() for shape in shapes]
    one, other, third = (torch.randn(sum(sizes)) for _ in range(3))
    torch_s = partial(by_torch, shapes)
    return {
        "copy": Contender(lambda: one.copy_(other), 2),
        "triad": Contender(lambda: torch.add(other, third, alpha=0.5, out=one), 3),
        BASE: Contender(torch_s(fused=True, **MOMENTUM), 5),
        "sgd momentum foreach": Contender(torch_s(foreach=True, **MOMENTUM), 5),
        "sgd plain fused": Contender(torch_s(fused=True), 3),
        "sgd plain foreach": Contender(torch_s(foreach=True), 3),
        GLU: Contender(by_rule(GLU, sizes), 4),
        SGD: Contender(by_rule(SGD, sizes), 3),
        DC_ASGD_A: Contender(by_rule(DC_ASGD_A, sizes), 6),
    }


def measure(ways: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Return the durations of all contenders in seconds, taken in turns."""
    durations: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(WARMUP + rounds):
        for name, way in ways.items():
            start_s = time.perf_counter()
            way.update()
            if turn >= WARMUP:
                durations[name].append(time.perf_counter() - start_s)
    return durations


def summarize(
    elements: int, ways: dict[str, Contender], durations: dict[str, list[float]]
) -> dict[str, dict[str, float]]:
    """Return of each contender the median, its rate, its bound and its ratio to ``BASE``."""
    medians = {name: statistics.median(times_s) for name, times_s in durations.items()}
    nbytes = {name: ITEM * way.arrays * elements for name, way in ways.items()}
    triad_bytes_per_s = nbytes["triad"] / medians["triad"]
    return {
        name: {
            "median_s": median,
            "bytes_per_element": ITEM * ways[name].arrays,
            "bytes_per_s": nbytes[name] / median,
            "bound_s": nbytes[name] / triad_bytes_per_s,
            "ratio_to_fused": median / medians[BASE],
            "ratio_to_foreach": median / medians["sgd momentum foreach"],
        }
        for name, median in medians.items()
    }


def table_of(model: str, elements: int, rows: dict[str, dict[str, float]]) -> str:
    """Return what was measured of one model, in Markdown."""
    title = f"**{model}**, {elements / 1e6:.1f} million elements, {format_bytes(ITEM * elements)}"
    heads = ("update", "median", f"/ `{BASE}`", "/ its `foreach`", "bytes", "rate", "bound")
    lines = [
        (
            name,
            format_seconds(row["median_s"]),
            f"{row['ratio_to_fused']:.2f}",
            f"{row['ratio_to_foreach']:.2f}",
            f"{row['bytes_per_element']:.0f}",
            f"{row['bytes_per_s'] / 1e9:.1f} GB/s",
            format_seconds(row["bound_s"]),
        )
        for name, row in rows.items()
    ]
    return f"{title}\n\n{markdown_table(heads, lines)}".rstrip()


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=25, help="turns of each contender")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch's threads")
    parser.add_argument("--quick", action="store_true", help="one small model, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--markdown", type=Path, help="where to write the tables")
    found = parser.parse_args(words)
    if found.quick:
        found.models, found.rounds = ["char-gpt"], 2
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    asked = options(words)
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    tables: list[str] = []
    found: dict[str, Any] = {}
    for name in asked.models:
        shapes = [parameter.shape for parameter in MODELS[name]().parameters()]
        elements = sum(shape.numel() for shape in shapes)
        ways = contenders(shapes)
        durations = measure(ways, asked.rounds)
        rows = summarize(elements, ways, durations)
        tables.append(table_of(name, elements, rows))
        print(f"{tables[-1]}\n", flush=True)
        found[name] = {"elements": elements, "updates": rows, "samples_s": durations}
    facts = {
        "models": found,
        "rounds": asked.rounds,
        "threads": asked.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    if asked.json:
        write_output(asked.json, json.dumps(facts).encode() + b"\n")
    if asked.markdown:
        write_output(asked.markdown, ("\n\n".join(tables) + "\n").encode())


if __name__ == "__main__":
    main()
