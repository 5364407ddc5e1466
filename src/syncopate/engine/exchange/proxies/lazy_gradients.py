"""Lazy gradients: ``parameter.grad`` is the average of all ranks, and comes with the first look.

What a script may ask of it without waiting is in ``averages.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from syncopate.engine.exchange import groups
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Gradients, Missing
from syncopate.engine.exchange.proxies.whole_gradients import Holders, kept
from syncopate.engine.exchange.pull.averages import Squares
from syncopate.engine.exchange.pull.flights import Flights

_LEAST_SQUARE = 1e-30
"""Below it a float32 has lost digits, or all of them."""


class AwaitedGradients(Gradients):
    """Every rank has every average when its flight has arrived."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._flights, self._squares = layout.shared(Flights), layout.shared(Squares)
        self._holders = layout.shared(Holders)
        self.memory_of, self.later = self._flights.memory_of, self._flights.later
        trained = groups.trained_ids(*layout.optimizers)
        untrained = [each for each in layout.trainables if id(each.parameter) not in trained]
        self._untrained = {self._flights.key_of(each.index) for each in untrained}
        self._main = threading.get_ident()
        self._index_views()
        layout.lend(self._flights, "owner", self)

    def _index_views(self) -> None:
        self._index_of = {id(view): index for index, view in enumerate(self._layout.grads)}

    def adapt(self, entered: int | None = None) -> None:
        """Let a backward begin when nothing is under way that it would change."""
        self._main = threading.get_ident()
        self._flights.ready()
        self._holders.let_go()
        self._holders.look()
        self._index_views()

    def hears_now(self, missing: bool) -> bool:
        """Whether the end of backward waits for what the ranks say.

        It does where this rank reached fewer parameters than others may have: their gradients
        appear. Parameters that no optimizer here trains have their averages then, as under DDP, and
        so have gradients of the script's own.
        """
        for key in self._untrained:
            self._flights.arrive(key)
        return missing or bool(self._holders.own)

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them with their gradients, which the sums will overwrite."""
        return kept(self._layout, indices)

    def restore(self, missing: Missing) -> None:
        """Leave a gradient untouched that no rank reached; hand out the others."""
        reached = self._layout.notes.reached()
        for index, before in missing:
            if reached[index]:
                self._layout.trainables[index].parameter.grad = self._layout.grads[index]
            elif before is not None:
                self.later(index, partial(self.memory_of(index).copy_, before))

    def handed_out(self) -> None:
        """Let gradients of the script's own have the averages."""
        for index in self._holders.own:
            self._flights.arrive(self._flights.key_of(index))
        self._holders.hand_back()

    # -- what ``averages`` asks ------------------------------------------------------------------

    def index_of(self, gradient: Tensor) -> int | None:
        """Return the index of the parameter whose average comes to ``gradient``."""
        return self._index_of.get(id(gradient))

    def square_of(self, index: int) -> Tensor | None:
        """Return the sum of squares of a gradient on its way; None where it must be looked at.

        It must be where something is to be done to it first, and where a float32 cannot tell.
        """
        with self._flights.lock:
            flight = self._flights.get(self._flights.key_of(index))
            if flight is None or flight.actions:
                return None
        self.heed()
        self._layout.notes.hear()
        square = self._squares.sums[index]
        known = _LEAST_SQUARE <= square.item() < float("inf")
        return square if known else None

    def heed(self) -> None:
        """Hear what the ranks said, and refuse a step that has failed; in the thread of training.

        Other threads just wait: the training is to hear of it.
        """
        if threading.get_ident() == self._main:
            self._layout.complete()
