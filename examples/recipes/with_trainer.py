"""Transformers' Trainer, with gradients that Syncopate exchanges.

    torchrun --nproc-per-node 2 examples/recipes/with_trainer.py
    torchrun --nproc-per-node 2 examples/recipes/with_trainer.py --ddp

Any script with a Trainer. docs/recipes.md says what differs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from syncopate.integrations import SyncopateTrainer
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


class Recogniser(nn.Module):
    """ResNet-20 for handwritten digits, with the loss as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet20().model

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        return {"loss": functional.cross_entropy(self.net(inputs), labels)}


def main() -> None:
    """Train some epochs, and test on rank 0."""
    parser = argparse.ArgumentParser(description="Train ResNet-20 on digits with a Trainer.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ddp", action="store_true", help="use Transformers' own Trainer")
    parser.add_argument("--save", type=Path, help="where rank 0 writes the weights")
    arguments = parser.parse_args()

    data = digits()
    torch.manual_seed(0)
    model = Recogniser()
    samples = zip(data.train_inputs, data.train_targets, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = (Trainer if arguments.ddp else SyncopateTrainer)(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=arguments.epochs,
                per_device_train_batch_size=32,
                dataloader_drop_last=True,
                gradient_accumulation_steps=2,
                max_grad_norm=1.0,
                learning_rate=1e-3,
                use_cpu=not torch.cuda.is_available(),
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=[{"inputs": image, "labels": label} for image, label in samples],
        )
        trainer.train()
    if trainer.is_world_process_zero():
        accuracy = data.test_accuracy(model.net.cpu())
        print(f"{trainer.state.global_step} steps, test accuracy {accuracy:.1%}")
        if arguments.save is not None:
            torch.save(model.net.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
