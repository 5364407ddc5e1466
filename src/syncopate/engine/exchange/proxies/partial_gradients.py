"""Partial gradients: ``parameter.grad`` is the average on this rank's share (``gradients.py``).

[Note: what was accumulated before]
A gradient that was not set to None holds the average in its owner's part alone. In the next sum the
owner's part counts once per rank and the others' not at all, so that what comes out is the old
average and the mean of what was added, as it is where every rank holds the whole average.

A backward that does not come through the model's outputs is noticed when its first gradient has
been added. Where that was added to zeros it is this rank's contribution. Where it was added to an
average, it is lost in what the collective left of the other parts, and the backward is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Gradients, Missing
from syncopate.engine.exchange.proxies.gradients import Partial, PartialGradient
from syncopate.errors import EngineError


class PartialGradients(Gradients):
    """Each rank has the averages of what it owns."""

    def __init__(self, layout: Layout, kind: type[PartialGradient] = PartialGradient) -> None:
        self._layout = layout
        self._held = layout.shared(Partial)
        self._held.make(kind)

    def adapt(self, entered: int | None = None) -> None:
        """See [Note: what was accumulated before]."""
        held = self._held
        if not held.averaged:
            return
        for trainable, view in held.all():
            zero = id(view.whole) in held.zeroed
            # Where every rank has the average, it is what every rank contributes to the next.
            if zero or view.replicated or not view.is_place_of(trainable.parameter.grad):
                continue
            if trainable.index == entered:
                raise EngineError(
                    "backward did not come through what the model returned, but through a part of "
                    f"it, and added to the average that {trainable.name!r} had as its gradient, "
                    "of which this rank holds a part alone. Call zero_grad() before, or train "
                    "through the model itself"
                )
            own = [each * self._layout.communicator.world_size for each in view.own]
            view.whole.zero_()
            for each, average in zip(view.own, own, strict=True):
                each.copy_(average)
            held.carried.add(id(view.whole))
        held.averaged = False
        held.zeroed.clear()
        held.gathered.clear()

    def averaged(self) -> None:
        """Note that gradients are averages from now on."""
        self._held.averaged = True
        self._held.zeroed.clear()
        self._held.carried.clear()

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them with their gradients; those without one get zeros until averages come.

        A rank learns which gradients the others reached when the averages arrive. Code that lists
        gradients before, as clipping does, must list the same ones on every rank.
        """
        self._held.absent = set(indices)
        found: list[tuple[int, Tensor | None]] = []
        for index in indices:
            parameter, view = self._layout.trainables[index].parameter, self._held.at(index)
            found.append((index, parameter.grad))
            if parameter.grad is None:
                view.whole.zero_()
                parameter.grad = view
        return found

    def restore(self, missing: Missing) -> None:
        """Remove the gradients of parameters that no rank reached and that had none before."""
        reached = self._layout.notes.reached()
        for index, before in missing:
            if before is None and not reached[index]:
                self._layout.trainables[index].parameter.grad = None
