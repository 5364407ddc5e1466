"""A script that trains by torch's fully_shard, and the one line that gives it a plan.

    torchrun --nproc-per-node 4 benchmarks/unmodified/train_fsdp.py --out runs/a
    torchrun --nproc-per-node 4 benchmarks/unmodified/train_fsdp.py --out runs/b --plan plan.json

Every rank writes the seconds of its counted steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import syncopate
from syncopate.output import write_output
from syncopate.zoo import CharGPT, Task, python_text
from syncopate.zoo.task import seeded, token_loss

CONTEXT, SIZE = 64, 4


def build() -> Task:
    """Return a GPT of characters with 25 million weights, and a batch."""
    text = python_text()
    with seeded(0):
        model = CharGPT(len(text.vocabulary), context=CONTEXT, width=512, layers=8, heads=8)
    inputs, targets = next(text.batches(SIZE, CONTEXT))
    return Task(model, inputs, targets, token_loss, "GPT, width 512, 8 blocks")


def main() -> int:
    """Be one rank."""
    found = argparse.ArgumentParser(description="Train by fully_shard.")
    add = found.add_argument
    add("--plan", help="train by this plan")
    add("--warmup", type=int, default=3, help="steps before those that count (3)")
    add("--steps", type=int, default=6, help="counted steps (6)")
    add("--out", type=Path, required=True, metavar="DIR", help="for the seconds of each rank")
    options = found.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task = build()
    if options.plan is None:
        for block in task.model.blocks:
            fully_shard(block)
        fully_shard(task.model)
    else:
        syncopate.fsdp2(task.model, plan=options.plan)
    optimizer = torch.optim.AdamW(task.model.parameters())
    steps_s = []
    for number in range(options.warmup + options.steps):
        dist.barrier()
        began_s = time.perf_counter()
        optimizer.zero_grad()
        task.loss().backward()
        optimizer.step()
        if number >= options.warmup:
            steps_s.append(time.perf_counter() - began_s)
    write_output(options.out / f"rank{dist.get_rank()}.json", json.dumps(steps_s).encode())
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
