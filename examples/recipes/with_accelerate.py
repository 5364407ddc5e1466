"""Accelerate, with gradients that Syncopate exchanges.

    torchrun --nproc-per-node 2 examples/recipes/with_accelerate.py
    torchrun --nproc-per-node 2 examples/recipes/with_accelerate.py --ddp

The loop is any loop with Accelerate. docs/recipes.md says what differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from syncopate.integrations import SyncopateAccelerator
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


def main() -> None:
    """Train some epochs, and test on rank 0."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 on digits with Accelerate.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ddp", action="store_true", help="use Accelerate's own accelerator")
    parser.add_argument("--save", type=Path, help="where rank 0 writes the weights")
    arguments = parser.parse_args()

    kind = Accelerator if arguments.ddp else SyncopateAccelerator
    accelerator = kind(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    data = digits()
    torch.manual_seed(0)
    model = resnet20().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = TensorDataset(data.train_inputs, data.train_targets)
    batches = DataLoader(training, batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    steps = 0
    for _ in range(arguments.epochs):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                accelerator.backward(functional.cross_entropy(model(inputs), targets))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    steps += 1
                optimizer.step()
                optimizer.zero_grad()

    if accelerator.is_main_process:
        trained = accelerator.unwrap_model(model).cpu()
        print(f"{steps} steps, test accuracy {data.test_accuracy(trained):.1%}")
        if arguments.save is not None:
            torch.save(trained.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
