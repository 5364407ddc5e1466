"""Data-parallel training of ResNet-20 on handwritten digits, with DDP or with Syncopate.

    torchrun --nproc-per-node 4 examples/train.py
    torchrun --nproc-per-node 4 examples/train.py --ddp

The two differ in the lines marked below: one import and one call. Everything else is what any
training script with DistributedDataParallel looks like.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import syncopate  # <- Syncopate, 1 of 2
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


def main() -> None:
    """Train, then test on rank 0."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 on handwritten digits.")
    parser.add_argument("--ddp", action="store_true", help="use DistributedDataParallel")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        data = digits()
    except syncopate.SyncopateError as error:  # scikit-learn is missing
        sys.exit(f"error: {error}" if rank == 0 else 1)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))

    start_s = time.perf_counter()
    model = resnet20().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    if arguments.ddp:
        model = DistributedDataParallel(model)
    else:
        model, optimizer = syncopate.distribute(model, optimizer)  # <- Syncopate, 2 of 2

    steps = 0
    for epoch in range(arguments.epochs):
        batches = data.batches(arguments.batch_size, epoch=epoch, rank=rank, world_size=world_size)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            steps += 1
        if rank == 0:
            # DDP's own forward would wait for the other ranks, which do not test.
            tested = model.module if arguments.ddp else model
            accuracy = data.test_accuracy(tested)
            print(
                f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy:.2%}, "
                f"{steps} steps in {time.perf_counter() - start_s:.2f} s"
            )
    if rank == 0:
        print(f"{steps} steps on {world_size} ranks in {time.perf_counter() - start_s:.2f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
