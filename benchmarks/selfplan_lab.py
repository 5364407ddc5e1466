"""Self-planning on full-size work: ``distribute`` without arguments beside DDP, on emulated hosts.

    python benchmarks/selfplan_lab.py                        # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/selfplan_lab.py --hosts 8 --json out.json
    python benchmarks/selfplan_lab.py --ratio 2              # computation twice as long as the wire
    python benchmarks/selfplan_lab.py --work resnet20        # real computation

Started plainly it makes a lab (network namespaces, shaped links) and runs itself on every host,
twice: the first run measures and keeps a plan, the second starts with it. The replayed workload has
all 161 tensors of ResNet-50 at their full size (102 MB); it computes by sleeping, layer by layer as
long as the layer's share of the operations, and its gradients are real and so is their traffic.
``resnet20`` computes for real; its hosts share this machine's processors.

The first run trains until self-planning has settled, and notes every step. Then the model takes
turns with DistributedDataParallel at 25, 5 and 1 MB. A step is timed from call to call on each
rank; what is printed is the median over turns of the slowest rank's mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contest.profiles import RESNET50_S, resnet50_profile
from emulated import hosts
from syncopate.artifacts.cluster import robust_mean
from syncopate.cli.demo.measure import Contender, measure
from syncopate.collectives import Communicator
from syncopate.costs.model.bound import iteration_bound_s
from syncopate.engine.distribute import distribute
from syncopate.engine.selfplan import cache
from syncopate.output import write_output
from syncopate.units import format_seconds, parse_rate
from syncopate.zoo import replay, resnet20

DDP_MB = (25, 5, 1)
WIRE_S = 1.28
"""What the gradients of the replayed model take on four hosts at 1 Gbit/s, at line rate."""

SECOND_STEPS = 6
_MOST_STEPS = 400


Train = Callable[[], object]
Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]


def made(options: argparse.Namespace) -> Made:
    """Return a model of the work asked for, its optimizer, and what a forward with loss is."""
    if options.work == "resnet20":
        task = resnet20()
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.01)
        return task.model, optimizer, lambda model: dataclasses.replace(task, model=model).loss()
    wire_s = WIRE_S * parse_rate("1gbit") / parse_rate(options.rate)
    model = replay(resnet50_profile(options.ratio * wire_s if options.ratio else RESNET50_S))
    inputs = torch.ones(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda model: model(inputs)


def training(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], Tensor]
) -> Train:
    """Return one iteration as users write it."""

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def timed(step: Train, count: int, until: Callable[[], bool] = lambda: False) -> list[float]:
    """Train at most ``count`` steps, until told to end; return what each took."""
    seconds = []
    for _ in range(count):
        start_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start_s)
        if until():
            break
    return seconds


def rank_main(options: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 writes what it found."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, optimizer, loss = made(options)
    start_s = time.perf_counter()
    ours, optimizer = distribute(model, optimizer)
    started_s = time.perf_counter() - start_s
    step = training(ours, optimizer, loss)
    engine = ours.syncopate
    report: dict[str, Any] = {"start_s": started_s}
    if options.second:
        report["steps_s"] = timed(step, SECOND_STEPS)
        report["plan"] = json.loads(engine.plan.to_json())
    else:
        report["steps_s"] = timed(step, _MOST_STEPS, lambda: not engine.planning)
        report |= compared(options, step, engine)
    if dist.get_rank() == 0:
        write_output(options.out, json.dumps(report).encode())
    engine.detach()
    dist.destroy_process_group()


def compared(options: argparse.Namespace, step: Train, engine: Any) -> dict[str, Any]:
    """Let the plan that stayed and DDP take turns; return the samples and what is known."""
    contenders = [Contender("syncopate", lambda: None, step)]
    for mb in DDP_MB:
        peer, optimizer, loss = made(options)
        wrapped = DistributedDataParallel(peer, bucket_cap_mb=mb)
        train = training(wrapped, optimizer, loss)
        # DDP cuts its buckets anew after its first steps.
        for _ in range(3):
            train()
        contenders.append(Contender(f"ddp {mb} MB", lambda: None, train))
    with Communicator() as communicator:
        samples = measure(
            contenders,
            communicator,
            rounds=options.rounds,
            iterations=options.iterations,
            warmup=1,
        )
    where = cache.folder()
    kept = (
        next((cache.Settled.load(path) for path in where.glob("*.json")), None) if where else None
    )
    return {
        "samples_s": samples,
        "plan": json.loads(engine.plan.to_json()),
        "workload": json.loads(engine.workload.to_json()),
        "kept": json.loads(kept.to_json()) if kept else None,
        "bound_s": iteration_bound_s(engine.workload, kept.cluster) if kept else None,
    }


def tell(options: argparse.Namespace, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Print what both runs found."""
    medians_s = {name: statistics.median(s) for name, s in first["samples_s"].items()}
    ours_s = medians_s.pop("syncopate")
    best = min(medians_s, key=lambda name: medians_s[name])
    kept = first["kept"] or {"name": "none kept"}
    prediction = first["plan"].get("prediction") or {}
    print(f"{options.hosts} hosts at {options.rate}, {options.work}, ratio {options.ratio or '-'}")
    print(f"  stayed: {kept['name']}, {len(first['plan']['buckets'])} buckets")
    print(f"  syncopate   {format_seconds(ours_s)} a step")
    for name, seconds in medians_s.items():
        print(f"  {name:11s} {format_seconds(seconds)}   {seconds / ours_s:.3f}x")
    print(f"  best DDP is {best}: {medians_s[best] / ours_s:.3f}x")
    if prediction:
        expected_s = prediction["iteration_s"]
        print(
            f"  predicted   {format_seconds(expected_s)} ({expected_s / ours_s - 1:+.1%}), bound "
            f"{format_seconds(prediction['bound_s'])} ({prediction['bound_s'] / ours_s:.1%} of it)"
        )
    steps = first["steps_s"]
    settled, slowest = len(steps), max(steps[1:])
    print(
        f"  planning: {settled} steps in {format_seconds(sum(steps))}, the longest "
        f"{format_seconds(slowest)}"
    )
    for turns in kept.get("contest", ()):
        expected = turns["plan"].get("prediction") or {}
        print(
            f"    {turns['name']:16s} {len(turns['plan']['buckets']):3d} buckets, expected "
            f"{format_seconds(expected.get('iteration_s', 0.0))}, measured "
            f"{format_seconds(robust_mean(turns['samples_s']))} ({len(turns['samples_s'])} steps)"
        )
    same = second["plan"]["buckets"] == first["plan"]["buckets"]
    print(
        f"  second run: start {format_seconds(second['start_s'])}, first steps "
        f"{', '.join(format_seconds(s) for s in second['steps_s'])}; "
        f"{'the same plan' if same else 'ANOTHER PLAN'}"
    )


def main() -> int:
    """Start the lab twice, or be one of its ranks."""
    parser = hosts.parser("Self-planning on full-size work in the lab.")
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link")
    parser.add_argument("--work", choices=("resnet50", "resnet20"), default="resnet50")
    parser.add_argument("--ratio", type=float, help="computation over the wire's time")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--iterations", type=int, default=3, help="counted steps of a turn")
    parser.add_argument("--quick", action="store_true", help="a small model, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.work, options.rounds = "resnet20", 1
    if options.rank:
        rank_main(options)
        return 0
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ[cache.VARIABLE] = folder
        for name in ("first", "second"):
            out = Path(folder) / f"{name}.report"
            more = ["--out", str(out), *(["--second"] if name == "second" else [])]
            code = hosts.run(__file__, options, rank_main, more=more)
            if code or not out.exists():
                return code
            reports.append(json.loads(out.read_text()))
    tell(options, *reports)
    if options.json:
        facts = {k: v for k, v in vars(options).items() if k not in ("json", "out", "rank")}
        facts["torch"] = str(torch.__version__)
        found = {"options": facts, "first": reports[0], "second": reports[1]}
        write_output(options.json, json.dumps(found, indent=1).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
