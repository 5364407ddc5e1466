"""Lazy gradients: ``parameter.grad`` is the average of all ranks, and comes with the first look.

What a script may ask of it without waiting is in ``averages.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from syncopate.engine.exchange import groups
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Gradients, Missing
from syncopate.engine.exchange.proxies.whole_gradients import Holders, kept
from syncopate.engine.exchange.pull.flights import Flights


class AwaitedGradients(Gradients):
    """Every rank has every average when its flight has arrived."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._flights, self._holders = layout.shared(Flights), layout.shared(Holders)
        trained = groups.trained_ids(*layout.optimizers)
        untrained = [each for each in layout.trainables if id(each.parameter) not in trained]
        self._untrained = {self._flights.key_of(each.index) for each in untrained}

    def adapt(self, entered: int | None = None) -> None:
        """Wait for all flights before a backward that would change what they bring."""
        self._flights.training_thread = threading.get_ident()
        self._flights.ready()
        self._holders.let_go()
        self._holders.look()

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
                self._flights.later(index, partial(self._flights.memory_of(index).copy_, before))

    def handed_out(self) -> None:
        """Let gradients of the script's own have the averages."""
        for index in self._holders.own:
            self._flights.arrive(self._flights.key_of(index))
        self._holders.hand_back()
