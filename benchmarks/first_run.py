"""What a first run costs: ``distribute`` without a kept plan, step by step, beside DDP.

    python benchmarks/first_run.py                       # 500 steps on 4 ranks, five turns
    python benchmarks/first_run.py --busy 4              # beside four processes that compute
    python benchmarks/first_run.py --ranks 2 --steps 50 --json first_run.json

ResNet-20 trains on digits, on ranks of this machine, with default arguments: with DDP, and with
Syncopate and an empty cache, in turns. Times count from before the model is wrapped. After some
numbers of steps the table has the medians over turns of both totals, the median, the least and the
largest of the ratios within a turn, and the longest step over the median step. The first step is
left out of that: in it both set up. The last row has the whole command, from its start to its end.
The plan that stays is printed with every turn.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.output import write_output
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits

DDP, FIRST = "DDP", "first run"
SHOWN = (10, 50, 200, 500)

Steps = list[float]
"""Seconds of the start, then of each step."""

_COMPUTING = "while True: sum(range(10**6))"


def rank_main(options: argparse.Namespace) -> None:
    """Train on one rank; rank 0 writes the seconds of the start and of every step."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    model, data = resnet20().model, digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    dist.barrier()
    seconds, since_s = Steps(), time.perf_counter()
    if options.how == DDP:
        model = DistributedDataParallel(model)
    else:
        model, optimizer = syncopate.distribute(model, optimizer)
    seconds.append(time.perf_counter() - since_s)
    epoch = 0
    while len(seconds) <= options.steps:
        for inputs, targets in data.batches(32, epoch=epoch, rank=rank, world_size=ranks):
            since_s = time.perf_counter()
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - since_s)
        epoch += 1
    if rank == 0:
        write_output(options.out, json.dumps(seconds[: options.steps + 1]).encode())
    dist.destroy_process_group()


def train(options: argparse.Namespace, how: str, cache: Path) -> tuple[Steps, float, str]:
    """Run one training; return its seconds, those of the command, and what Syncopate said."""
    out = cache / "seconds"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(options.ranks), __file__, "--how", how]
    command += ["--steps", str(options.steps), "--out", str(out)]
    # Bytecode of this package is kept, as that of torch is.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    since_s = time.perf_counter()
    done = subprocess.run(
        command,
        env=kept | {"SYNCOPATE_CACHE": str(cache / "plans")},
        capture_output=True,
        text=True,
        check=False,
    )
    lasted_s = time.perf_counter() - since_s
    if done.returncode:
        raise SystemExit(f"{how} ended with {done.returncode}:\n{done.stderr}")
    said = [line for line in done.stderr.splitlines() if line.startswith("syncopate: ")]
    return json.loads(out.read_text()), lasted_s, "\n".join(said)


@contextlib.contextmanager
def computing(count: int) -> Iterator[None]:
    """Let ``count`` other processes compute in the block."""
    others = [subprocess.Popen([sys.executable, "-c", _COMPUTING]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def tell(samples: dict[str, list[Steps]], commands: dict[str, Steps], steps: int) -> None:
    """Print totals, ratios and the longest steps after some numbers of steps."""
    print(
        f"{'steps':>6s}{'DDP':>10s}{'first run':>12s}{'ratio':>8s}{'turns':>12s}"
        "   longest step over the median"
    )
    for count in [*(shown for shown in SHOWN if shown < steps), steps]:
        totals_s = {how: [sum(run[: count + 1]) for run in runs] for how, runs in samples.items()}
        longest = {
            how: statistics.median(
                max(run[2 : count + 1]) / statistics.median(run[2 : count + 1]) for run in runs
            )
            for how, runs in samples.items()
        }
        print(
            f"{count:6d}{_compared(totals_s)}"
            f"   DDP {longest[DDP]:.1f}, first run {longest[FIRST]:.1f}"
        )
    print(f"{'all':>6s}{_compared(commands)}   the whole command")


def _compared(totals_s: dict[str, list[float]]) -> str:
    """Return the columns of both medians, and of the ratios by turn: median, least and most."""
    ratios = [first / ddp for ddp, first in zip(totals_s[DDP], totals_s[FIRST], strict=True)]
    return (
        f"{statistics.median(totals_s[DDP]):8.2f} s{statistics.median(totals_s[FIRST]):10.2f} s"
        f"{statistics.median(ratios):7.2f}x  {min(ratios):4.2f}-{max(ratios):4.2f}"
    )


def main() -> int:
    """Run both in turns, or be one of their ranks."""
    parser = argparse.ArgumentParser(description="What a first run costs, beside DDP.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute")
    parser.add_argument("--quick", action="store_true", help="one short turn, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--how", choices=(DDP, FIRST), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.how:
        rank_main(options)
        return 0
    if options.quick:
        options.steps, options.rounds = 20, 1
    compileall.compile_dir(Path(syncopate.__file__).parent, quiet=1)
    samples: dict[str, list[Steps]] = {DDP: [], FIRST: []}
    commands: dict[str, Steps] = {DDP: [], FIRST: []}
    with computing(options.busy):
        for turn in range(options.rounds):
            # What drifts meets both: every other turn begins with the other one.
            for how in (DDP, FIRST) if turn % 2 == 0 else (FIRST, DDP):
                with tempfile.TemporaryDirectory() as folder:
                    seconds, lasted_s, said = train(options, how, Path(folder))
                samples[how].append(seconds)
                commands[how].append(lasted_s)
                print(f"{how}: {sum(seconds):.2f} s\n{said}".rstrip(), flush=True)
                if options.json:
                    found = {
                        "ranks": options.ranks,
                        "busy": options.busy,
                        "seconds": samples,
                        "commands_s": commands,
                    }
                    write_output(options.json, json.dumps(found).encode() + b"\n")
    tell(samples, commands, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
