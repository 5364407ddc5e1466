"""Fewer exchanges, trained: synchronous SGD, SSD-SGD and local SGD at equal steps and equal time.

    python benchmarks/local_training.py            # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/local_training.py --works text --steps 400 --json local_training.json

Started plainly it makes a lab (network namespaces, shaped links) and runs itself on every host.
Each variant trains the same model from the same weights on the same batches: what the accuracy
study of SSD-SGD trains (`reproduce/ssd_sgd.py`). Every so many steps the clock stops and the global
weights are tested. *Equal time* is what the variant that is done first took; what another had
reached by then is its last test before. Hosts share this machine's processors, so that computation
takes longer than on hosts of their own, and exchanges weigh less.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import syncopate
from emulated import hosts
from syncopate.output import write_output
from syncopate.units import format_seconds
from syncopate.zoo.task import seeded

sys.path.append(str(Path(__file__).parents[1] / "reproduce"))

from ssd_sgd_runs import WORKLOADS, Workload, one_bucket

BATCH_SIZE = 16
LR = {"digits": 0.05, "text": 0.2}
TESTS = 8
"""How often each training is tested."""

Delays = syncopate.Delay | syncopate.LocalSGD | None


class Point(NamedTuple):
    """One test of a training.

    Attributes:
        step: after how many steps.
        seconds: that training took until then, without tests.
        accuracy: in [0, 1].
    """

    step: int
    seconds: float
    accuracy: float


def variants(steps: int) -> dict[str, Delays | str]:
    """Return the ways of training so many steps, with a tenth of them for warming up."""
    warm_up = steps // 10
    return {
        "ssgd (DDP)": "ddp",
        "ssd-sgd, k = 4": syncopate.Delay(k=4, warm_up=warm_up + 3 - warm_up % 4),
        "local SGD, H = 4": syncopate.LocalSGD(period=4, warm_up=warm_up),
        "local SGD, H = 8": syncopate.LocalSGD(period=8, warm_up=warm_up),
    }


def endless(work: Workload, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's batches, epoch after epoch."""
    for epoch in count():
        yield from work.batches(BATCH_SIZE, epoch, rank, ranks)


def build(
    work: Workload, name: str, how: Delays | str
) -> tuple[Any, torch.optim.Optimizer, Callable[[], float]]:
    """Return model, optimizer and what tests the global weights, which all ranks call."""
    with seeded(0):
        model: Any = work.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR[name], momentum=0.9)
    if isinstance(how, str):
        return DistributedDataParallel(model), optimizer, lambda: work.accuracy(model)
    plan = None
    if isinstance(how, syncopate.Delay):
        plan = one_bucket(model, dist.get_world_size())
    model, optimizer = syncopate.distribute(
        model, optimizer, plan=plan, delay=how, deterministic=True, cache=False
    )

    def tested() -> float:
        with model.syncopate.global_weights():
            return work.accuracy(model)

    return model, optimizer, tested


def train(work: Workload, name: str, how: Delays | str, steps: int) -> list[Point]:
    """Train so many steps; return the tests, timed by this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, optimizer, tested = build(work, name, how)
    batches = endless(work, rank, ranks)
    points, spent_s = [], 0.0
    dist.barrier()
    begun_s = time.perf_counter()
    for step in range(1, steps + 1):
        inputs, targets = next(batches)
        work.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(steps // TESTS, 1) == 0 or step == steps:
            dist.barrier()
            spent_s += time.perf_counter() - begun_s
            points.append(Point(step, spent_s, tested()))
            dist.barrier()
            begun_s = time.perf_counter()
    if not isinstance(how, str):
        model.syncopate.detach()
    return points


def by_then(points: Sequence[Point], seconds: float) -> Point | None:
    """Return the last test before a time; None where there was none."""
    return next((point for point in reversed(points) if point.seconds <= seconds), None)


def table_of(name: str, found: dict[str, list[Point]]) -> str:
    """Return what was found on one work, in Markdown."""
    first_s = min(points[-1].seconds for points in found.values())
    steps = next(iter(found.values()))[-1].step
    lines = [
        f"| {name} | {steps} steps take | accuracy then | after {format_seconds(first_s)}: step "
        "| accuracy |",
        "| --- | --- | --- | --- | --- |",
    ]
    for title, points in found.items():
        then = by_then(points, first_s)
        last = points[-1]
        equal = "- | -" if then is None else f"{then.step} | {then.accuracy:.1%}"
        lines.append(
            f"| {title} | {format_seconds(last.seconds)} | {last.accuracy:.1%} | {equal} |"
        )
    return "\n".join(lines)


def rank_main(asked: argparse.Namespace) -> None:
    """Train all variants of all works as one rank; rank 0 prints and writes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    everything: dict[str, Any] = {}
    for name in asked.works:
        work = WORKLOADS[name]()
        found = {
            title: train(work, name, how, asked.steps)
            for title, how in variants(asked.steps).items()
        }
        everything[name] = {title: [p._asdict() for p in points] for title, points in found.items()}
        if dist.get_rank() == 0:
            print(f"{table_of(name, found)}\n", flush=True)
    if dist.get_rank() == 0 and asked.json:
        facts = {
            "works": everything,
            "hosts": asked.hosts,
            "rate": asked.rate,
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        write_output(asked.json, json.dumps(facts).encode() + b"\n")
    dist.destroy_process_group()


def main() -> int:
    """Parse, and run as every host."""
    parser = hosts.parser("Synchronous SGD, SSD-SGD and local SGD, trained on emulated hosts.")
    parser.add_argument("--rate", default="1gbit", help="of each host's link")
    parser.add_argument("--works", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    parser.add_argument("--json", type=Path, help="where rank 0 writes every test")
    asked = parser.parse_args()
    if asked.quick:
        asked.steps = 16
    return hosts.run(__file__, asked, rank_main)


if __name__ == "__main__":
    sys.exit(main())
