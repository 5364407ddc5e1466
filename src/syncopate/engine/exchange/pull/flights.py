"""Flights: averages on their way to this rank, and the waits for them.

A *flight* is one flat buffer on its way, with what is to be done when it has arrived.

[Note: signal handlers]
A handler runs on the main thread, at any line: also where that waits for a flight. So a look in a
handler waits for the flight itself and lands it, and the wait that it interrupted finds that done.
A handler that interrupts the landing sees an update half done, as one that interrupts an
optimizer's step under DDP does.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.buckets import FlatBuffer
from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.notes import SentNotes
from syncopate.engine.exchange.proxies import weights
from syncopate.errors import EngineError

_LEAST_SQUARE = 1e-30
"""Below it a float32 has lost digits, or all of them."""


@dataclass(eq=False)
class Flight:
    """One flat buffer on its way.

    Attributes:
        part: the flat buffer.
        works: what to wait for.
        unpacking: brings averages that came in fewer bits into their places; all ranks take them,
            their owner too.
        actions: what to do when it has arrived, in order.
        awaited: tensors whose values depend on it.
        steps: whether some action updates weights.
        landing: whether a thread sees to it, now that it has come.
    """

    part: FlatBuffer
    works: list[Callable[[], object]] = field(default_factory=list)
    unpacking: list[Callable[[], object]] = field(default_factory=list)
    actions: list[Callable[[], object]] = field(default_factory=list)
    awaited: list[Tensor] = field(default_factory=list)
    steps: bool = False
    landing: bool = False


class Flights:
    """The flights of an exchange; waits raise CollectiveError where a rank is lost or late.

    Attributes:
        lock: held while one lands, and while they depart.
        training_thread: the thread of the last backward.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.lock = threading.RLock()
        self.training_thread = threading.get_ident()
        self._under_way: dict[int, Flight] = {}
        self._index_of: dict[int, int] = {}
        # To look at these waits for nothing; the views themselves may be told to wait.
        places = [layout.places[trainable.index] for trainable in layout.trainables]
        self._aliases = [part.views[place].detach() for part, place in places]

    def key_of(self, index: int) -> int:
        """Return the name of the flight that brings the gradient of a parameter."""
        return id(self._layout.places[index][0])

    def memory_of(self, index: int) -> Tensor:
        """Return the place of an average, without waiting for it."""
        return self._aliases[index]

    def get(self, key: int) -> Flight | None:
        """Return the flight of that name, if it is under way."""
        return self._under_way.get(key)

    def any(self) -> bool:
        """Whether some flight is under way."""
        return bool(self._under_way)

    def depart(self, flights: Mapping[int, Flight], kind: type[weights.Pending]) -> None:
        """Let looks at gradients of these flights wait for them; until then each is a ``kind``."""
        with self.lock:  # a look of another thread waits for what it finds under way
            self._under_way = dict(flights)
            self._index_of = {id(view): index for index, view in enumerate(self._layout.grads)}
            for key, flight in flights.items():
                flight.awaited = [self._layout.grads[each.index] for each in flight.part.trainables]
                weights.expect(flight.awaited, Waiter(self, key), kind)

    def ready(self) -> None:
        """Wait for all flights."""
        for key in list(self._under_way):
            self.arrive(key)

    def drop(self) -> None:
        """Let go of gradients that never come, because a rank is lost."""
        with self.lock:
            for flight in self._under_way.values():
                awaited = {id(gradient) for gradient in flight.awaited}
                weights.release(flight.awaited)
                for trainable in flight.part.trainables:
                    if id(trainable.parameter.grad) in awaited:
                        trainable.parameter.grad = None
            self._under_way = {}

    @torch.no_grad()
    def arrive(self, key: int) -> None:
        """Wait for a flight, and do what is to be done then; once, in any thread."""
        if key not in self._under_way:
            return
        with self.lock:
            flight = self._under_way.get(key)
            if flight is None or flight.landing:
                return
            began_s = time.perf_counter()
            with explaining():
                for wait in flight.works:
                    wait()
            if self._under_way.get(key) is not flight:  # [Note: signal handlers]
                return
            flight.landing = True
            try:
                self._land(flight, began_s)
            finally:
                flight.landing = False
            del self._under_way[key]
            weights.release(flight.awaited)

    def _land(self, flight: Flight, began_s: float) -> None:
        part, came_s = flight.part, time.perf_counter()
        bucket, traffic = part.messages[0].bucket, self._layout.traffic
        if part.gradients.is_cpu and flight.steps:  # a device's stream waits, and not the host
            traffic.waits.append((bucket, began_s, came_s))
        # A forward may run in inference mode, or under autocast; a step does not.
        kind = part.gradients.device.type
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
            for doing in (flight.unpacking, flight.actions):
                while doing:
                    doing.pop(0)()
        if part.gradients.is_cpu and flight.steps:
            traffic.updates.append((bucket, came_s, time.perf_counter()))

    def later(self, index: int, action: Callable[[], object]) -> None:
        """Do something to a gradient when it has arrived; now, where it has."""
        with self.lock:
            flight = self._under_way.get(self.key_of(index))
            if flight is not None and not flight.landing:
                flight.actions.append(action)
                return
        with torch.no_grad():
            action()

    def index_of(self, gradient: Tensor) -> int | None:
        """Return the index of the parameter whose average comes to ``gradient``."""
        return self._index_of.get(id(gradient))

    def square_of(self, index: int) -> Tensor | None:
        """Return the sum of squares of a gradient on its way; None where it must be looked at.

        It must be where something is to be done to it first, and where a float32 cannot tell.
        """
        with self.lock:
            flight = self._under_way.get(self.key_of(index))
            if flight is None or flight.actions:
                return None
        self.heed()
        notes = self._layout.notes
        assert isinstance(notes, SentNotes)
        notes.hear()
        square = notes.beside[index]
        known = _LEAST_SQUARE <= square.item() < float("inf")
        return square if known else None

    def heed(self) -> None:
        """In the training's thread, refuse a step in which a rank's backward has failed.

        Other threads just wait: the training is to hear of it.
        """
        if threading.get_ident() == self.training_thread:
            self._layout.complete()


class Waiter:
    """Waits for a flight, as long as the model or an optimizer lives."""

    def __init__(self, flights: Flights, key: int) -> None:
        self._flights = weakref.ref(flights)
        self._key = key

    @property
    def flights(self) -> Flights:
        """Those that it waits for; raises EngineError where model and optimizer are gone."""
        if (found := self._flights()) is None:
            raise EngineError(
                "model and optimizer are gone while the last step of this parameter was on its "
                "way, so its value is not known. Keep the model as long as its parameters, or call "
                "its .syncopate.ready() before it goes"
            )
        return found

    def wait(self) -> None:
        """Wait for it.

        Raises:
            EngineError: model and optimizer are gone.
        """
        self.flights.arrive(self._key)

    def __call__(self, _: Any) -> None:
        """Wait for it before autograd adds to a gradient."""
        if (found := self._flights()) is not None:
            found.arrive(self._key)
