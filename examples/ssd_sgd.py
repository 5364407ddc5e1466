"""SSD-SGD on handwritten digits: weights are pulled every k steps, while ranks train on.

    torchrun --nproc-per-node 4 examples/ssd_sgd.py
    torchrun --nproc-per-node 4 examples/ssd_sgd.py --k 5 --local-update sgd
    torchrun --nproc-per-node 4 examples/ssd_sgd.py --k 0                      # synchronous

What differs from examples/train.py is one argument of ``distribute``, and a block around what is to
see the global weights: between pulls every rank trains on its own. See docs/ssd_sgd.md.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional

import syncopate
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


def main() -> None:
    """Train, and test after each epoch."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 with SSD-SGD.")
    parser.add_argument("--k", type=int, default=4, help="steps of delay (4); 0 for none")
    parser.add_argument("--local-update", default="glu", help="glu, sgd or dc-asgd-a (glu)")
    parser.add_argument("--warm-up", type=int, default=100, help="synchronous steps, about (100)")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        data = digits()
    except syncopate.SyncopateError as error:  # scikit-learn is missing
        sys.exit(f"error: {error}" if rank == 0 else 1)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))

    model = resnet20().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    delay = None
    if arguments.k:
        # The warm-up has a multiple of k steps, of which the last one has the number warm_up.
        steps = -(-arguments.warm_up // arguments.k) * arguments.k
        delay = syncopate.Delay(
            k=arguments.k, warm_up=steps - 1, local_update=arguments.local_update
        )
    model, optimizer = syncopate.distribute(model, optimizer, delay=delay)

    for epoch in range(arguments.epochs):
        batches = data.batches(arguments.batch_size, epoch=epoch, rank=rank, world_size=world_size)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        own = data.test_accuracy(model)
        with model.syncopate.global_weights():
            accuracy = data.test_accuracy(model)
        if rank == 0:
            print(
                f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy:.2%}, with "
                f"rank 0's own weights {own:.2%}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
