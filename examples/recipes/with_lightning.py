"""Lightning, with gradients that Syncopate exchanges.

    torchrun --nproc-per-node 2 examples/recipes/with_lightning.py
    torchrun --nproc-per-node 2 examples/recipes/with_lightning.py --ddp

Any Lightning script. docs/recipes.md says what differs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from syncopate.integrations import SyncopateStrategy
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


class Recogniser(pl.LightningModule):
    """ResNet-20 for handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet20().model

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        return functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    """Train some epochs, and test on rank 0."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 on digits with Lightning.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ddp", action="store_true", help="use Lightning's own strategy")
    parser.add_argument("--save", type=Path, help="where rank 0 writes the weights")
    arguments = parser.parse_args()

    data = digits()
    torch.manual_seed(0)
    model = Recogniser()
    trainer = pl.Trainer(
        strategy="ddp" if arguments.ddp else SyncopateStrategy(),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_epochs=arguments.epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    training = TensorDataset(data.train_inputs, data.train_targets)
    trainer.fit(model, DataLoader(training, batch_size=32, shuffle=True, drop_last=True))
    if trainer.is_global_zero:
        print(f"{trainer.global_step} steps, test accuracy {data.test_accuracy(model.net):.1%}")
        if arguments.save is not None:
            torch.save(model.net.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
