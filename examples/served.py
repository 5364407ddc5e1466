"""Training of ResNet-20 on handwritten digits with a parameter server.

    syncopate ps local --servers 2 --workers 4 -- python examples/served.py

starts a scheduler, two servers and four workers on this machine. What differs from
examples/train.py is the ``KVStore``, which is the exchange. See docs/paramserver.md.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress
from torch.nn import functional

import syncopate
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


def main() -> None:
    """Train with a progress line, then test on rank 0."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 with a parameter server.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        data = digits()
    except syncopate.SyncopateError as error:  # scikit-learn is missing
        sys.exit(f"error: {error}" if rank == 0 else 1)

    model = resnet20().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    progress = Progress(console=Console(stderr=True), disable=rank != 0)
    with syncopate.KVStore() as store, progress:
        model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        steps = len(data.train_targets) // (arguments.batch_size * world_size)
        task = progress.add_task("training", total=arguments.epochs * steps)
        for epoch in range(arguments.epochs):
            batches = data.batches(
                arguments.batch_size, epoch=epoch, rank=rank, world_size=world_size
            )
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                progress.advance(task)
            progress.update(task, description=f"epoch {epoch + 1}: loss {loss.item():.4f}")
    if rank == 0:
        print(f"test accuracy on {world_size} workers: {data.test_accuracy(model):.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
