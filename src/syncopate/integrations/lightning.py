"""Lightning: a strategy that trains with Syncopate where ``strategy="ddp"`` trains with DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

from syncopate.engine.distribute import distribute
from syncopate.errors import SyncopateError


class SyncopateStrategy(DDPStrategy):
    """Lightning's ``DDPStrategy``, with gradients that Syncopate exchanges.

    Args:
        options: keywords of :func:`syncopate.distribute`, such as ``exchange="sharded"``.

    Example:
        >>> trainer = pl.Trainer(strategy=SyncopateStrategy(), devices=2)  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._module: Any = None

    def configure_ddp(self) -> None:
        """Leave the model as it is: it is distributed when its optimizer is there."""

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Distribute the model with the optimizers that it configures.

        Raises:
            EngineError: the model cannot be distributed.
        """
        super().setup_optimizers(trainer)
        self._module = self.lightning_module
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(_closure_first)
        distribute(self._module, self.optimizers, **self._options)

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
        """Give back a plain model and plain optimizers."""
        self._module.syncopate.detach()

    def on_exception(self, exception: BaseException) -> None:
        """Tell the other ranks, and give back a plain model, which may be fitted again.

        It has the weights of the last step. Optimizers may have lost what other ranks kept of them.
        """
        super().on_exception(exception)
        engine = getattr(self._module, "syncopate", None)
        if engine is None or not isinstance(exception, Exception):
            return
        with suppress(SyncopateError):
            engine.ready()  # what this rank does not take part in any more, no rank gets
        if (detector := engine.communicator.detector) is not None:
            detector.say_ended(exception)
        with suppress(SyncopateError):
            engine.detach()


def _closure_first(_: object, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run forward and backward before the step; Lightning has them run inside of it."""
    options.pop("closure", lambda: None)()
    return args, options
