"""Sent gradients: what ``parameter.grad`` is once servers have the gradient.

[Note: a gradient that was sent]
Servers have taken it, and this rank never sees the average. So ``parameter.grad`` may be zeroed or
set to None, and everything else that would look at its values, or change them, is refused: clipping
norms (servers do that), a gradient scaler. For the same reason a step follows each backward that is
synchronised, and at the learning rate at which it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Gradients, Missing
from syncopate.engine.exchange.proxies import gradients
from syncopate.engine.exchange.proxies.gradients import Partial, PartialGradient
from syncopate.engine.exchange.proxies.partial_gradients import PartialGradients
from syncopate.engine.exchange.proxies.weights import WITHOUT_VALUES, tensors_in
from syncopate.engine.exchange.serving.submissions import Submissions
from syncopate.errors import EngineError

_ZEROING = (Tensor.zero_, torch._foreach_zero_)

_ALLOWED = frozenset(
    (
        *WITHOUT_VALUES,
        *_ZEROING,
        *gradients.DESCRIPTIONS,
        *gradients.LIKE,
        Tensor.untyped_storage,
        Tensor.detach,
        Tensor.detach_,
        Tensor.data.__get__,  # type: ignore[attr-defined]
    )
)
"""What may be done with a gradient that was sent; see [Note: a gradient that was sent]."""


class SentGradient(PartialGradient):
    """What ``parameter.grad`` is once servers have the gradient."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in WITHOUT_VALUES:
            for gradient in tensors_in((args, kwargs or {})):
                if isinstance(gradient, SentGradient):
                    gradient._require(func)
        return super().__torch_function__(func, types, args, kwargs)

    def _require(self, func: Any) -> None:
        """Refuse what servers would have to do; let nothing change that is on its way."""
        if (exchange := self.owner()) is None:
            return
        exchange.complete()
        if func in _ZEROING:
            exchange.settle(self)
        elif func not in _ALLOWED and exchange.averaged and id(self.whole) not in exchange.zeroed:
            raise EngineError(
                f"{getattr(func, '__name__', func)} was asked of the gradient of "
                f"{self.parameter_name!r}, which servers have taken: no rank has the average, and "
                "changes to it (clipping, scaling) have no effect on the servers. Let servers clip "
                "by KVStore(Rules(clip_norm=...)), leave it out, or train with exchange='sharded'"
            )


class SentGradients(PartialGradients):
    """Servers have the gradients, and may take zeros for those that a rank's backward left out."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, SentGradient)
        self._submissions = layout.shared(Submissions)
        layout.lend(self._held, "settle", self._settle)

    def _settle(self, gradient: PartialGradient) -> None:
        self._submissions.settle(self._held.around(gradient))

    def adapt(self, entered: int | None = None) -> None:
        """Refuse to add to a gradient that servers have taken."""
        held = self._held
        self._submissions.require_sound()
        held.absent = set()
        for trainable, view in held.all():
            known = trainable.index in self._submissions.trained and held.averaged
            if not known or id(view.whole) in held.zeroed:
                continue
            if view.is_place_of(trainable.parameter.grad):
                raise EngineError(
                    f"the gradient of {trainable.name!r} is one that servers have taken, and this "
                    "backward would add to it; call zero_grad() before"
                )
        held.averaged = False
        held.zeroed.clear()


class UntoldGradients(Gradients):
    """Servers have the gradients that this rank has, and ranks do not say which those are.

    Where others reached a parameter this rank sends no zeros for it.
    """

    def __init__(self, layout: Layout) -> None:
        self._sent, self._held = SentGradients(layout), layout.shared(Partial)

    def adapt(self, entered: int | None = None) -> None:
        """Refuse to add to a gradient that servers have taken."""
        self._sent.adapt(entered)

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them, and hold back what may have accumulated of their gradients."""
        self._held.absent = set(indices)
        return [(index, None) for index in indices]

    def averaged(self) -> None:
        """Note that servers have them."""
        self._sent.averaged()
