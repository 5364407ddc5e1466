"""Whole gradients: ``parameter.grad`` is the average of all ranks, on the memory of its bucket.

[Note: gradients of the script's own]
A script may make gradients itself, such as views of one flat tensor, and hold on to them: autograd
adds to them in place, and so they are to have the averages. They are brought into the bucket as
any, and when the averages are there, copied back.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Gradients, Missing
from syncopate.engine.torch_compat import storage_holders


class Holders:
    """Finds the gradients that a script holds on to.

    Attributes:
        own: per index of a parameter the gradient of the script's own that was there before the
            backward; see [Note: gradients of the script's own].
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._unheld = self._references()
        self.own: dict[int, Tensor] = {}
        self._buckets = {part.gradients.untyped_storage()._cdata for part in layout.parts}

    def look(self) -> None:
        """Find gradients of the script's own, before a backward adds to them."""
        layout = self._layout
        found = [
            (each.index, each.parameter)
            for each, ours in zip(layout.trainables, layout.grads, strict=True)
            if (grad := each.parameter.grad) is not None and grad is not ours
        ]
        grad = None  # else it would count as a holder
        self.own = {}
        if not found:
            return
        held = {index: _held_by(parameter) for index, parameter in found}
        # Gradients may share memory with each other.
        shared = Counter(_storage_of(parameter) for _, parameter in found)
        for index, parameter in found:
            storage, (references, storages) = _storage_of(parameter), held[index]
            if storage in self._buckets:
                continue  # the script has given a parameter the gradient of another
            if references > _ALONE[0] or storages - shared[storage] + 1 > _ALONE[1]:
                assert parameter.grad is not None
                self.own[index] = parameter.grad

    def hand_back(self) -> None:
        """Let gradients of the script's own have the averages, which are here."""
        own, self.own = self.own, {}
        for index, gradient in own.items():
            parameter, average = self._layout.trainables[index].parameter, self._layout.grads[index]
            if parameter.grad is average:
                gradient.copy_(average)
                parameter.grad = gradient

    def let_go(self) -> None:
        """Give gradients that the script keeps memory of their own.

        What the next backward makes gets other views of the bucket.
        """
        layout, counts = self._layout, self._references()
        for index in [n for n, one in enumerate(counts) if one > self._unheld[n]]:
            part, place = layout.places[index]
            before = layout.grads[index]
            if layout.trainables[index].parameter.grad is before:
                continue
            view = before.detach()
            before.data = before.clone()
            part.views[place] = part.grads[place] = layout.grads[index] = view

    def _references(self) -> list[int]:
        """Return how many hold each gradient."""
        return list(map(sys.getrefcount, self._layout.grads))


def _held_by(parameter: Tensor) -> tuple[int, int]:
    """Return how many hold the gradient of ``parameter``, and how many its memory."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout != torch.strided:
        return 0, 0
    return sys.getrefcount(gradient), storage_holders(gradient.untyped_storage())


def _alone() -> tuple[int, int]:
    parameter = torch.zeros(1)
    parameter.grad = torch.zeros(1)
    return _held_by(parameter)


_ALONE = _alone()
"""What :func:`_held_by` says of a gradient that its parameter alone holds."""


def _storage_of(parameter: Tensor) -> int:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.untyped_storage()._cdata if gradient.layout == torch.strided else 0


def kept(layout: Layout, indices: Sequence[int]) -> Missing:
    """Return parameters with copies of their gradients, which sums will overwrite."""
    grads = [layout.trainables[index].parameter.grad for index in indices]
    copies = [None if grad is None else grad.clone() for grad in grads]
    return list(zip(indices, copies, strict=True))


class WholeGradients(Gradients):
    """Every rank has every average as soon as backward returns."""

    ends_with_backward = True

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._holders = layout.shared(Holders)

    def adapt(self, entered: int | None = None) -> None:
        """Take leave of gradients that the script keeps."""
        self._holders.let_go()
        self._holders.look()

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them with their gradients, which the sums will overwrite."""
        return kept(self._layout, indices)

    def restore(self, missing: Missing) -> None:
        """Leave a gradient untouched that no rank reached; hand out the others."""
        reached = self._layout.notes.reached()
        for index, before in missing:
            parameter, view = self._layout.trainables[index].parameter, self._layout.grads[index]
            if reached[index]:
                parameter.grad = view
            elif before is not None:
                view.copy_(before)

    def handed_out(self) -> None:
        """Let gradients of the script's own have the averages."""
        self._holders.hand_back()
