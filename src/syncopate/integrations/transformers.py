"""Transformers: a Trainer that distributes its model where it makes its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from syncopate.integrations.accelerate import prepare_distributed


class SyncopateTrainer(Trainer):
    """A ``Trainer`` with gradients that Syncopate exchanges.

    Mix it into another trainer by naming it first: ``class Mine(SyncopateTrainer,
    Seq2SeqTrainer)``. In one process nothing is exchanged, as without it.

    Args:
        args: of ``Trainer``.
        distribute_options: keywords of :func:`syncopate.distribute`, such as
            ``{"exchange": "sharded"}``.
        named: of ``Trainer``.

    Example:
        >>> SyncopateTrainer(model=model, args=arguments, train_dataset=data)  # doctest: +SKIP
    """

    def __init__(
        self, *args: Any, distribute_options: Mapping[str, Any] | None = None, **named: Any
    ) -> None:
        self._distribute_options = dict(distribute_options or {})
        super().__init__(*args, **named)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer, and distribute the model with it.

        Raises:
            EngineError: the model cannot be distributed, or another parallelism than DDP's.
        """
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        prepare_distributed(self.accelerator, self.model, [optimizer], self._distribute_options)
        return optimizer
