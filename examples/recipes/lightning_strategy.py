"""Lightning: a strategy that trains with Syncopate where ``strategy="ddp"`` trains with DDP.

    torchrun --nproc-per-node 2 examples/recipes/lightning_strategy.py
    torchrun --nproc-per-node 2 examples/recipes/lightning_strategy.py --ddp

Copy the class; the rest is any Lightning script. docs/recipes.md says what differs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import syncopate
from syncopate.zoo import resnet20
from syncopate.zoo.data import digits


class SyncopateStrategy(DDPStrategy):
    """Lightning's strategy for DDP, with gradients that Syncopate exchanges.

    Args:
        options: of :func:`syncopate.distribute`, such as ``exchange="sharded"`` or ``plan=``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._module: Any = None

    def configure_ddp(self) -> None:
        """Leave the model as it is: it is distributed when its optimizer is there."""

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Distribute the model with the optimizer that it configures."""
        super().setup_optimizers(trainer)
        self._module = self.lightning_module
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(_closure_first)
        syncopate.distribute(self._module, self.optimizers, **self._options)

    def training_step(self, *inputs: Any, **named: Any) -> Any:
        """Call the model, which is what Syncopate sees, to run its ``training_step``."""
        module = self._module
        with self.precision_plugin.train_step_context():
            if not module.automatic_optimization:
                # Backward and step run inside: the model must not be in a forward then.
                return module.training_step(*inputs, **named)
            return self._forward_redirection(module, module, "training_step", *inputs, **named)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Keep gradients local, which ``accumulate_grad_batches`` asks for."""
        with self._module.no_sync():
            yield

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return whole state for a checkpoint, on rank 0, which writes it; all ranks call this."""
        if not hasattr(self._module, "syncopate"):
            return dict(super().optimizer_state(optimizer))
        state = self._module.syncopate.state_dict(optimizer)
        return state["optimizer"] if state else {}

    def on_train_end(self) -> None:
        """Give back a plain model and a plain optimizer."""
        self._module.syncopate.detach()


def _closure_first(_: object, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run forward and backward before the step; Lightning has them run inside of it."""
    options.pop("closure", lambda: None)()
    return args, options


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
