"""Flights: averages on their way to this rank, and who waits for them.

A *flight* is one flat buffer on its way, with what is to be done when it has arrived.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from syncopate.engine.buckets import FlatBuffer, Message
from syncopate.engine.exchange.base import Launched
from syncopate.errors import EngineError


class Carrier(Protocol):
    """The exchange whose flights they are."""

    def arrive(self, key: int) -> None:
        """Wait for a flight and do what is to be done then, unless it has arrived."""


class Flight:
    """One flat buffer on its way.

    Args:
        part: the flat buffer.

    Attributes:
        part: as given.
        works: what to wait for, in order.
        actions: what to do when it has arrived, in order.
        awaited: tensors whose values depend on it.
        steps: whether some action updates weights.
        arriving: whether somebody sees to it now.
    """

    def __init__(self, part: FlatBuffer) -> None:
        self.part = part
        self.works: list[Callable[[], object]] = []
        self.actions: list[Callable[[], object]] = []
        self.awaited: list[Tensor] = []
        self.steps = False
        self.arriving = False


class Averaging:
    """Makes averages of what a collective summed up on this rank, once.

    Args:
        launched: the collective.
        start: first element of the sums, in the message.
        stop: one past the last.
        scale: sums are multiplied by it; None where gradients were before.
    """

    def __init__(self, launched: Launched, start: int, stop: int, scale: float | None) -> None:
        self._launched = launched
        self.sums = launched.message.gradients[start:stop]
        self._scale = scale
        self._lock = threading.Lock()
        self._done = False

    @torch.no_grad()
    def __call__(self) -> None:
        """Wait for the sums, and scale them.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        with self._lock:
            if not self._done:
                self._launched.handle.wait()
                if self._scale is not None:
                    self.sums.mul_(self._scale)
                self._done = True


class Waiter:
    """Waits for a flight, as long as anybody trains the model."""

    def __init__(self, exchange: Carrier, key: int) -> None:
        self._exchange = weakref.ref(exchange)
        self._key = key

    @property
    def exchange(self) -> Carrier:
        """Who brings what is awaited.

        Raises:
            EngineError: nobody does any more.
        """
        if (found := self._exchange()) is None:
            raise EngineError(
                "model and optimizer are gone while the last step of this parameter was on its "
                "way, so its value is not known. Keep the model as long as its parameters, or call "
                "its .syncopate.ready() before it goes"
            )
        return found

    def wait(self) -> None:
        """Wait for it."""
        self.exchange.arrive(self._key)

    def __call__(self, _: Any) -> None:
        """Wait for it before autograd adds to a gradient."""
        if (found := self._exchange()) is not None:
            found.arrive(self._key)

    def met_compiler(self) -> None:
        """Do nothing: the exchange hears of it, too."""


@torch.no_grad()
def narrowed(averaging: Averaging, own: Tensor) -> None:
    """Write this rank's averages where they travel from, in fewer bits."""
    averaging()
    own.copy_(averaging.sums)


@torch.no_grad()
def widened(handle: Any, carried: Tensor, message: Message) -> None:
    """Wait for averages in fewer bits; every rank takes them, their owner too."""
    handle.wait()
    message.gradients.copy_(carried)
