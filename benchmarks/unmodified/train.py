"""A script that trains by DistributedDataParallel, and the one line that gives it a plan.

    torchrun --nproc-per-node 4 benchmarks/unmodified/train.py --model resnet20 --out runs/a
    torchrun --nproc-per-node 4 benchmarks/unmodified/train.py --model resnet20 --out runs/b \
        --plan plan.json

``--backend syncopate`` names that backend of ``torch.distributed`` in place of Gloo, and
``--cluster`` tells it what the network is like; nothing else of the script changes.

Every rank writes the seconds of its counted steps, and with ``--profile`` what torch.profiler saw
of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))

import syncopate
from contest.turn import stepper
from contest.works import OPTIMIZERS, WORKS, make, replayed
from syncopate.output import write_output


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(description="Train by DistributedDataParallel.")
    add = found.add_argument
    add("--model", choices=tuple(WORKS), default="resnet50")
    add("--bucket-mb", type=float, help="of DDP; its own when left out")
    add("--plan", help="train by this plan, in DDP")
    add("--backend", default="gloo", help="of torch.distributed (gloo)")
    add("--cluster", help="by which the backend `syncopate` chooses algorithms")
    add("--warmup", type=int, default=3, help="steps before those that count (3)")
    add("--steps", type=int, default=4, help="counted steps (4)")
    add("--profile", type=Path, metavar="DIR", help="let torch.profiler record the counted steps")
    add("--out", type=Path, required=True, metavar="DIR", help="for the seconds of each rank")
    add("--quick", action="store_true", help="small batches")
    return found


def main() -> int:
    """Be one rank."""
    options = parser().parse_args()
    torch.set_num_threads(1)
    known = None if options.cluster is None else syncopate.Cluster.load(options.cluster)
    dist.init_process_group(options.backend, pg_options=known)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    work = WORKS[options.model]
    workload = replayed(work, None, ranks, 1.0)
    trained = make(work, workload, rank=rank, world_size=ranks, quick=options.quick)
    optimizer_class, settings = OPTIMIZERS[work.optimizer]
    if options.plan is None:
        model = DistributedDataParallel(trained.model, bucket_cap_mb=options.bucket_mb)
    else:
        model = syncopate.ddp(trained.model, plan=options.plan)
    step = stepper(trained, model, optimizer_class(model.parameters(), **settings))
    dist.barrier()
    for _ in range(options.warmup):
        step()
    recording = options.profile is not None
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True) if recording else nullcontext() as seen:
        steps_s = [step() for _ in range(options.steps)]
    if seen is not None:
        options.profile.mkdir(parents=True, exist_ok=True)
        seen.export_chrome_trace(str(options.profile / f"rank{rank}.json"))
    write_output(options.out / f"rank{rank}.json", json.dumps(steps_s).encode())
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # what torch.profiler has seen is freed slowly


if __name__ == "__main__":
    sys.exit(main())
