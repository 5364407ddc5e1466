"""Fewer exchanges, trained: SSGD, SSD-SGD, local SGD and DiLoCo at equal steps and equal time.

    python benchmarks/local_training.py            # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/local_training.py --works text --steps 400 --json local_training.json
    pip install torchft                            # for DiLoCo, which the table lacks without

Started plainly it makes a lab (network namespaces, shaped links) and runs itself on every host.
Each variant trains the same model from the same weights on the same batches: what the accuracy
study of SSD-SGD trains (`reproduce/ssd_sgd.py`). Every so many steps the clock stops and the global
weights are tested. *Equal time* is what the variant that is done first took; what another had
reached by then is its last test before. Hosts share this machine's processors, so that computation
takes longer than on hosts of their own, and exchanges weigh less.

All take a tenth of the steps synchronously first, and step by SGD with momentum 0.9 at one learning
rate. DiLoCo is torchft's, with its lighthouse and managers; its outer optimizer is the paper's,
Nesterov SGD at 0.7 with momentum 0.9 (`benchmarks/contest/diloco.py` says all that is set). It is
trained a second time with AdamW for its inner steps, as in its paper, at a learning rate of 0.001.
Streaming DiLoCo has two fragments, whose means overlap two inner steps, of which half stays.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import syncopate
from contest import diloco
from emulated import hosts
from syncopate.output import write_output
from syncopate.shown import markdown_table
from syncopate.units import format_seconds
from syncopate.zoo.task import seeded

sys.path.append(str(Path(__file__).parents[1] / "reproduce"))

from ssd_sgd_runs import WORKLOADS, Workload, one_bucket

BATCH_SIZE = 16
LR = {"digits": 0.05, "text": 0.2}
ADAMW_LR = 1e-3
TESTS = 8
"""How often each training is tested."""

Way = syncopate.Delay | syncopate.LocalSGD | diloco.DiLoCo | None
"""How to train; None for DDP."""


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


def variants(steps: int) -> dict[str, Way]:
    """Return the ways of training so many steps, with a tenth of them for warming up."""
    warm_up = steps // 10
    return {
        "ssgd (DDP)": None,
        "ssd-sgd, k = 4": syncopate.Delay(k=4, warm_up=warm_up + 3 - warm_up % 4),
        "local SGD, H = 4": syncopate.LocalSGD(period=4, warm_up=warm_up),
        "local SGD, H = 8": syncopate.LocalSGD(period=8, warm_up=warm_up),
        "DiLoCo, H = 8 (torchft)": diloco.DiLoCo(period=8, warm_up=warm_up),
        "DiLoCo, H = 8, AdamW (torchft)": diloco.DiLoCo(8, warm_up, adamw_lr=ADAMW_LR),
        "streaming DiLoCo, H = 8 (torchft)": streaming(warm_up),
        "streaming DiLoCo, H = 8, AdamW (torchft)": streaming(warm_up, ADAMW_LR),
    }


def streaming(warm_up: int, adamw_lr: float | None = None) -> diloco.DiLoCo:
    """Return DiLoCo of two fragments, each of whose means takes two inner steps."""
    return diloco.DiLoCo(8, warm_up, adamw_lr, fragments=2, overlap=2, kept=0.5)


def endless(work: Workload, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's batches, epoch after epoch."""
    for epoch in count():
        yield from work.batches(BATCH_SIZE, epoch, rank, ranks)


class Training(NamedTuple):
    """What is trained, and looked at by all ranks together.

    Attributes:
        model: or what is called in its place.
        optimizer: of it.
        accuracy: tests the global weights.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    accuracy: Callable[[], float]


@contextmanager
def training(work: Workload, name: str, how: Way) -> Iterator[Training]:
    """Yield a training from the same weights every time; it is ended with the block."""
    with seeded(0):
        model: Any = work.build()
    optimizer: torch.optim.Optimizer
    if isinstance(how, diloco.DiLoCo) and how.adamw_lr is not None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=how.adamw_lr)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR[name], momentum=0.9)
    if how is None:
        yield Training(DistributedDataParallel(model), optimizer, lambda: work.accuracy(model))
        return

    def tested(whole: Callable[[], AbstractContextManager[None]]) -> float:
        with whole():
            return work.accuracy(model)

    if isinstance(how, diloco.DiLoCo):
        with diloco.training(model, optimizer, how) as trained:
            yield Training(trained, optimizer, lambda: tested(trained.global_weights))
        return
    plan = one_bucket(model, dist.get_world_size()) if isinstance(how, syncopate.Delay) else None
    model, optimizer = syncopate.distribute(
        model, optimizer, plan=plan, delay=how, deterministic=True, cache=False
    )
    yield Training(model, optimizer, lambda: tested(model.syncopate.global_weights))
    model.syncopate.detach()


def train(work: Workload, training: Training, steps: int) -> list[Point]:
    """Train so many steps; return the tests, timed by this rank."""
    model, optimizer, accuracy = training
    batches = endless(work, dist.get_rank(), dist.get_world_size())
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
            points.append(Point(step, spent_s, accuracy()))
            dist.barrier()
            begun_s = time.perf_counter()
    return points


def by_then(points: Sequence[Point], seconds: float) -> Point | None:
    """Return the last test before a time; None where there was none."""
    return next((point for point in reversed(points) if point.seconds <= seconds), None)


def table_of(
    name: str, found: dict[str, list[Point]], missing: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return what was found on one work, in Markdown, and why variants are missing."""
    first_s = min(points[-1].seconds for points in found.values())
    steps = next(iter(found.values()))[-1].step
    heads = (name, f"{steps} steps take", "accuracy then", f"after {format_seconds(first_s)}: step")
    rows = []
    for title, points in found.items():
        then = by_then(points, first_s)
        last = points[-1]
        equal = ("-", "-") if then is None else (str(then.step), f"{then.accuracy:.1%}")
        rows.append((title, format_seconds(last.seconds), f"{last.accuracy:.1%}", *equal))
    rows += [(title, why, "-", "-", "-") for title, why in missing.items()]
    return markdown_table((*heads, "accuracy"), rows).rstrip()


def missing_of(ways: Mapping[str, Way]) -> dict[str, str]:
    """Return why some of the variants cannot be trained here."""
    obstacle = diloco.why_not()
    asked = [title for title, how in ways.items() if isinstance(how, diloco.DiLoCo)]
    return dict.fromkeys(asked, obstacle) if obstacle else {}


def rank_main(asked: argparse.Namespace) -> None:
    """Train all variants of all works as one rank; rank 0 prints and writes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    everything: dict[str, Any] = {}
    ways = variants(asked.steps)
    missing = missing_of(ways)
    for name in asked.works:
        work = WORKLOADS[name]()
        found = {}
        for title in (title for title in ways if title not in missing):
            with training(work, name, ways[title]) as begun:
                found[title] = train(work, begun, asked.steps)
        everything[name] = {title: [p._asdict() for p in points] for title, points in found.items()}
        if dist.get_rank() == 0:
            print(f"{table_of(name, found, missing)}\n", flush=True)
    if dist.get_rank() == 0 and asked.json:
        facts = {
            "works": everything,
            "missing": missing,
            "hosts": asked.hosts,
            "rate": asked.rate,
            "torch": torch.__version__,
            "torchft": None if missing else version("torchft"),
            "machine": platform.machine(),
        }
        write_output(asked.json, json.dumps(facts).encode() + b"\n")
    dist.destroy_process_group()


def main() -> int:
    """Parse, and run as every host."""
    parser = hosts.parser(
        "Synchronous SGD, SSD-SGD, local SGD and DiLoCo, trained on emulated hosts; DiLoCo where "
        "torchft is installed (pip install torchft)."
    )
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
