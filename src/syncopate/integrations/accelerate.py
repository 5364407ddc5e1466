"""Accelerate: an accelerator whose ``prepare`` distributes models where it wrapped them in DDP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.groups import trained_ids
from syncopate.errors import EngineError

_BY_DDP = "MULTI_"
"""How the names of Accelerate's distributed types begin under which it wraps models in DDP."""


class SyncopateAccelerator(Accelerator):
    """An ``Accelerator`` with gradients that Syncopate exchanges.

    Give ``prepare`` a model and its optimizers in one call: what is prepared without an optimizer
    trains by the ``allreduce`` exchange alone. In one process nothing is exchanged, as without it.

    Args:
        args: of ``Accelerator``.
        distribute_options: keywords of :func:`syncopate.distribute`, such as
            ``{"exchange": "sharded"}``.
        named: of ``Accelerator``.

    Example:
        >>> accelerator = SyncopateAccelerator(mixed_precision="bf16")  # doctest: +SKIP
        >>> model, optimizer = accelerator.prepare(model, optimizer)  # doctest: +SKIP
    """

    def __init__(
        self, *args: Any, distribute_options: Mapping[str, Any] | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._distribute_options = dict(distribute_options or {})

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, optimizers, data and schedules, and distribute the models.

        Args:
            args: what is to be prepared.
            device_placement: for each of them whether it is moved to its device.

        Returns:
            The same in the same order, prepared; alone where it is one.

        Raises:
            EngineError: a model that cannot be distributed, or another parallelism than DDP's.
        """
        placed = dict(enumerate(device_placement or ()))
        optimizers = [each for each in args if isinstance(each, Optimizer)]
        ready = [
            prepare_distributed(self, each, optimizers, self._distribute_options, placed.get(place))
            if isinstance(each, nn.Module)
            else each
            for place, each in enumerate(args)
        ]
        return super().prepare(*ready, device_placement=device_placement)


def prepare_distributed(
    accelerator: Accelerator,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    options: Mapping[str, Any],
    device_placement: bool | None = None,
) -> nn.Module:
    """Prepare a model for an accelerator, but for DDP, and distribute it.

    A model without trainable parameters, one that is distributed already, and any model in one
    process are returned as they are.

    Args:
        accelerator: that is going to train the model.
        model: on any device.
        optimizers: those that train parameters of the model are given to ``distribute``.
        options: keywords of ``distribute``.
        device_placement: whether the model is moved to its device; as the accelerator does when
            left out.

    Raises:
        EngineError: the model cannot be distributed, or the accelerator shards it itself.
    """
    trained = {id(each) for each in model.parameters() if each.requires_grad}
    if not accelerator.use_distributed or not trained or hasattr(model, "syncopate"):
        return model
    kind = accelerator.distributed_type.name
    if not kind.startswith(_BY_DDP):
        raise EngineError(
            f"Accelerate is set up for {kind}, which exchanges gradients by itself; leave its "
            "plugin out, or train with Accelerate's own Accelerator"
        )
    # Device and precision; it marks the model as prepared, so what follows wraps it in nothing.
    prepared: nn.Module = accelerator.prepare_model(model, device_placement, evaluation_mode=True)
    bare = [getattr(each, "optimizer", each) for each in optimizers]
    own = [each for each in bare if trained & trained_ids(each)]
    distribute(prepared, own or None, **options)
    return prepared
