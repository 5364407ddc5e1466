"""What the engine costs where it has nothing to gain: many tiny parameters on one rank.

Plain PyTorch, DDP, DDP with gradients as bucket views, and Syncopate train copies of one model,
interleaved, so that drift of the machine meets all of them alike. Reported are the median step
and what each adds to plain PyTorch. Syncopate runs DDP's own buckets (25 MiB), so the figures
compare machinery and not plans.

    python benchmarks/engine_overhead.py
    python benchmarks/engine_overhead.py --parameters 800 --rounds 20 --json engine_overhead.json
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from syncopate.engine.distribute import distribute
from syncopate.engine.selfplan.ddp_buckets import first_plan
from syncopate.output import write_output
from syncopate.units import format_seconds

WIDTH = 8
BATCH = 16
WARMUP = 5

Step = Callable[[], None]


def build_model(parameters: int) -> nn.Sequential:
    """Return a chain of tiny linear layers, each with a weight and a bias."""
    layers: list[nn.Module] = []
    for _ in range(max(parameters // 2, 1)):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def build_step(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> Step:
    """Return one whole training step."""

    def step() -> None:
        optimizer.zero_grad()
        model(data).mean().backward()
        optimizer.step()

    return step


def contenders(parameters: int) -> dict[str, Step]:
    """Return the four ways of training, each with its own copy of the model."""
    base = build_model(parameters)
    data = torch.randn(BATCH, WIDTH)
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "plain": lambda model: model,
        "ddp": DistributedDataParallel,
        "ddp_bucket_view": lambda model: DistributedDataParallel(
            model, gradient_as_bucket_view=True
        ),
    }
    steps = {}
    for name, wrap in wrappers.items():
        model = copy.deepcopy(base)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        steps[name] = build_step(wrap(model), optimizer, data)
    model = copy.deepcopy(base)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tensors = [(name, p.numel(), "float32") for name, p in model.named_parameters()]
    model, optimizer = distribute(model, optimizer, plan=first_plan("tiny", tensors, 1))
    steps["syncopate"] = build_step(model, optimizer, data)
    return steps


def measure(steps: dict[str, Step], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Return the durations of every contender's steps in seconds, taken in turns."""
    durations: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(WARMUP):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            for _ in range(repeats):
                start_s = time.perf_counter()
                step()
                durations[name].append(time.perf_counter() - start_s)
    return durations


def summarize(durations: dict[str, list[float]], parameters: int) -> dict[str, object]:
    """Return medians, overheads over plain PyTorch and Syncopate's ratio to each DDP."""
    medians = {name: statistics.median(times_s) for name, times_s in durations.items()}
    overheads = {name: median - medians["plain"] for name, median in medians.items()}
    return {
        "parameters": parameters,
        "steps": len(durations["plain"]),
        "median_s": medians,
        "overhead_s": overheads,
        "overhead_ratio_to_ddp": overheads["syncopate"] / overheads["ddp"],
        "overhead_ratio_to_ddp_bucket_view": overheads["syncopate"] / overheads["ddp_bucket_view"],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def print_summary(summary: dict[str, object], durations: dict[str, list[float]]) -> None:
    """Print the table for people."""
    medians = {name: statistics.median(times_s) for name, times_s in durations.items()}
    print(f"{summary['parameters']} parameters, one rank, {summary['steps']} steps each, medians")
    for name, median in medians.items():
        over = format_seconds(median - medians["plain"]) if name != "plain" else "-"
        print(f"  {name:<16} {format_seconds(median):>10} per step   overhead {over:>10}")
    print(f"  Syncopate's overhead is {summary['overhead_ratio_to_ddp']:.2f} x DDP's, ", end="")
    print(f"{summary['overhead_ratio_to_ddp_bucket_view']:.2f} x DDP's with bucket views")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parameters", type=int, default=400, help="number of parameters")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contender")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 3
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    durations = measure(contenders(arguments.parameters), arguments.rounds, arguments.steps)
    summary = summarize(durations, arguments.parameters)
    print_summary(summary, durations)
    if arguments.json:
        write_output(
            arguments.json, json.dumps(summary | {"samples_s": durations}).encode() + b"\n"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
