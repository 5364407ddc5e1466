"""What updating whole weights takes longer than a share, on all ranks of a machine at once.

Decoupled and all-reduced plans update all weights on every rank; a sharded plan updates a p-th of
them on each. Both are measured here without communication, in turns, by the optimizer and the sizes
of the models that `training.py` trains. All ranks update at the same time, as they do in a lab,
where they share the machine's processors and memory. A turn takes from one barrier to the next.

    python benchmarks/whole_update.py
    python benchmarks/whole_update.py --model vgg16 --ranks 8 --json whole_update.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from contest.works import OPTIMIZERS, WORKS
from syncopate.output import write_output
from syncopate.units import format_seconds
from syncopate.zoo import replay

WHOLE, SHARE = "whole", "a share"
WARMUP = 2


def optimizer_of(name: str, parts: int) -> torch.optim.Optimizer:
    """Return a model's optimizer, over a ``parts``-th of each of its parameters."""
    work = WORKS[name]
    if work.make is not None:
        quick = False
        model: nn.Module = work.make(0, 1, quick).model
    else:
        assert work.profile is not None
        model = replay(work.profile(work.compute_s))
    sizes = [-(-parameter.numel() // parts) for parameter in model.parameters()]
    weights = [nn.Parameter(torch.randn(size)) for size in sizes]
    for one in weights:
        one.grad = torch.randn_like(one) * 1e-3
    kind, how = OPTIMIZERS[work.optimizer]
    return kind(weights, **how)


def rank_main(options: argparse.Namespace) -> None:
    """Update on one rank; rank 0 writes the seconds of every turn."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    contenders = {
        how: optimizer_of(options.rank_of, parts) for how, parts in ((WHOLE, 1), (SHARE, ranks))
    }
    seconds: dict[str, list[float]] = {WHOLE: [], SHARE: []}
    for turn in range(WARMUP + options.turns):
        for how, optimizer in contenders.items():
            dist.barrier()
            since_s = time.perf_counter()
            optimizer.step()
            dist.barrier()
            if turn >= WARMUP:
                seconds[how].append(time.perf_counter() - since_s)
    if rank == 0:
        write_output(options.out, json.dumps(seconds).encode())
    dist.destroy_process_group()


def measured(name: str, options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of all turns with a model."""
    out = folder / f"{name}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(options.ranks), __file__, "--rank-of", name]
    command += ["--turns", str(options.turns), "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, list[float]] = json.loads(out.read_text())
    return found


def main() -> int:
    """Measure each model in a job of its own, or be a rank of one."""
    parser = argparse.ArgumentParser(description="What a whole update takes longer than a share.")
    parser.add_argument("--model", nargs="+", choices=sorted(WORKS), default=["resnet50", "vgg16"])
    parser.add_argument("--ranks", type=int, default=4, help="that update at once")
    parser.add_argument("--turns", type=int, default=7, help="of each")
    parser.add_argument("--quick", action="store_true", help="one small turn, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options)
        return 0
    if options.quick:
        options.model, options.ranks, options.turns = ["resnet20"], 2, 1
    samples: dict[str, dict[str, list[float]]] = {}
    print(f"{'model':10s}{'whole':>12s}{'a share':>12s}{'longer by':>12s}")
    for name in options.model:
        with tempfile.TemporaryDirectory() as folder:
            samples[name] = measured(name, options, Path(folder))
        whole_s, share_s = (statistics.median(samples[name][how]) for how in (WHOLE, SHARE))
        columns = (whole_s, share_s, whole_s - share_s)
        print(f"{name:10s}" + "".join(f"{format_seconds(one):>12s}" for one in columns), flush=True)
        if options.json:
            found = {"ranks": options.ranks, "seconds": samples}
            write_output(options.json, json.dumps(found).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
