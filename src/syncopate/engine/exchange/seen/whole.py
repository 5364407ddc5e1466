"""Whole: ``parameter.grad`` is the average of all ranks, on the memory of its bucket."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Gradients, Missing


class Holders:
    """Finds the gradients that a script keeps over ``zero_grad``."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._unheld = self._references()

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
