r"""Data-parallel training that goes on from its last checkpoint, on as many ranks as there are.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 3 \
        --max-restarts 1 examples/resume.py --file last.pt --die-at 12

Rank 0 writes a checkpoint every few steps. When a worker dies, as one does here at step 12 of the
first start, torchrun ends the others and starts all of them again. Started once more on two ranks,
training goes on from the same file: the batch of all ranks together stays the same, and so do the
losses. ``docs/checkpoints.md`` says why the variable is there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import syncopate
from syncopate.zoo.data import digits

GLOBAL_BATCH = 24


def main() -> None:
    """Train, and print the mean loss of all ranks at every step."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits, with checkpoints.")
    parser.add_argument("--file", type=Path, required=True, help="the checkpoint")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--die-at", type=int, default=-1, help="a step at which one rank dies")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        data = digits()
    except syncopate.SyncopateError as error:  # scikit-learn is missing
        sys.exit(f"error: {error}" if rank == 0 else 1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = syncopate.distribute(
        model, optimizer, exchange="sharded", deterministic=True
    )

    first = 0
    if arguments.file.exists():
        # Every rank loads whole tensors, and keeps its own part of the optimizer's state.
        saved = torch.load(arguments.file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]

    batches = list(data.batches(GLOBAL_BATCH // world_size, rank=rank, world_size=world_size))
    for step in range(first, arguments.steps):
        if step == arguments.die_at and rank == 1 and restarts() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batches[step]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"start {restarts()}, step {step}: loss {mean.item():.6f}", flush=True)
        if (step + 1) % arguments.every == 0:
            # Every rank takes part; rank 0 gets the whole of it, and alone writes.
            state = model.syncopate.state_dict(optimizer)
            if rank == 0:
                write(arguments.file, {**state, "step": step + 1})
    dist.destroy_process_group()


def restarts() -> int:
    """How often torchrun has started the workers again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def write(path: Path, state: dict[str, object]) -> None:
    """Write a checkpoint; a reader meanwhile finds the one before."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
