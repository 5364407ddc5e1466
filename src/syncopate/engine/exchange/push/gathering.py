"""Gathering: gradients are brought into their places in a bucket.

[Note: gathered aside]
Gradients are copied into their bucket on a thread of their own, so that backward goes on at once.
The collective's own thread waits for the copy when its turn has come. Where backward ends before
the averages are there, it ends when the copies are: from then on ``parameter.grad`` is what it is
to be, at the first look. On a device the copy is on the stream of backward, where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, in_turn
from syncopate.engine.exchange.layout import Layout
from syncopate.units import MIB

ASIDE_BYTES = 2 * MIB
"""A smaller buffer is gathered before another thread has woken up on a busy machine."""

Calls = Sequence[Callable[[], None]]


class Gathering:
    """Brings the gradients of an exchange into their places.

    Attributes:
        wanted: says whether gradients are exchanged in the iteration that runs.
        keeping: returns what else is to be done with the gradients of a flat buffer once they are
            there and before they travel, one call for each message; or nothing.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._copies: list[Callable[[], object]] = []
        self.wanted: Callable[[], bool] = lambda: True
        self.keeping: Callable[[FlatBuffer], Calls] = lambda part: ()

    def begin(self) -> None:
        """Begin a backward."""
        self._copies = []

    def gather(self, bucket: BucketBuffers) -> None:
        """Bring the gradients of ``bucket`` into their places, where they are exchanged.

        Raises:
            EngineError: a gradient is sparse.
        """
        for part in bucket.parts if self.wanted() else ():
            for gather in part.gathering():
                gather()

    def of(self, part: FlatBuffer) -> list[Callable[[], None]]:
        """Return what brings gradients into their places, one call a message; or nothing.

        Raises:
            EngineError: a gradient is sparse.
        """
        gathering, kept = part.gathering(), list(self.keeping(part))
        if not (gathering and kept):
            return gathering or kept
        return [partial(in_turn, *both) for both in zip(gathering, kept, strict=True)]

    def lasts(self, part: FlatBuffer) -> bool:
        """Whether it is worth the while of another thread."""
        return part.gradients.is_cpu and part.nbytes >= ASIDE_BYTES

    def aside(self, gather: Callable[[], None]) -> Callable[[], object]:
        """Begin to gather beside the backward, one after the other; return what waits for it."""
        copied = self._layout.thread("gather").submit(gather).result
        self._copies.append(copied)
        return copied

    def wait(self) -> None:
        """Wait for what this backward gathers aside."""
        for copied in self._copies:
            copied()
