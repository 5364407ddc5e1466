"""Pulled averages: the second half of an all-reduce, which hides behind the next forward.

Gradients are reduce-scattered while backward runs, and their averages are gathered behind its end,
in the order in which the next forward needs them (DeAR: Zhang et al. 2023). On the wire that is
what a sharded exchange sends, and it hides behind the same computation. But every rank gets every
average and updates all weights with all of the optimizer's state: a program does what it does under
DistributedDataParallel.

[Note: looks]
Every rank launches both halves during backward and at its end. So nothing that a script does later
is a collective of all ranks: a look at a gradient, a weight or the optimizer's state, on one rank
or on all, in any thread, waits for what is under way on this rank (``proxies/weights.py``), a
*flight* (``flights.py``).

[Note: squares]
Along with the note behind the last reduce-scatter all ranks sum up the squares of every gradient,
to which each rank contributes that of its shares. So the 2-norm of a gradient is known to every
rank before the gradient is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.accumulators import accumulator
from syncopate.engine.buckets import FlatBuffer, Message, Trainable
from syncopate.engine.exchange.layout import Launched, Layout
from syncopate.engine.exchange.notes import SentNotes
from syncopate.engine.exchange.parts import Pull
from syncopate.engine.exchange.proxies.averages import AwaitedAverage
from syncopate.engine.exchange.pull.flights import Flight, Flights, Waiter
from syncopate.engine.exchange.push.reduced import Averaging, averagings
from syncopate.schedules.base import chunk_offsets


def squared(layout: Layout) -> SentNotes:
    """Return notes that bring the squares of all gradients along; see [Note: squares]."""
    return SentNotes(layout, beside=len(layout.trainables))


class Squares:
    """Sums of squares of gradients, which travel along with the note; see [Note: squares].

    Attributes:
        sums: one for each parameter, of all ranks once the note has come.
    """

    def __init__(self, layout: Layout) -> None:
        assert isinstance(layout.notes, SentNotes)
        self._layout, self._averagings = layout, layout.shared(averagings)
        self.sums = layout.notes.beside
        self._pieces = {
            id(message): self._own_pieces(part, message)
            for part in layout.parts
            for message in part.messages
        }
        layout.lend(layout.notes, "before", self._measure)

    def _own_pieces(self, part: FlatBuffer, message: Message) -> list[tuple[int, int, int]]:
        """Return of which parameters this rank sums up squares of a message, and where they lie.

        Index, first element in the message, and one past the last; real elements.
        """
        ranks = self._layout.communicator
        # Of what every rank has whole each contributes a part, too.
        bounds = chunk_offsets(message.gradients.numel(), ranks.world_size)
        low, high = bounds[ranks.rank : ranks.rank + 2]
        real = 2 if part.gradients.is_complex() else 1
        found = []
        for trainable, offset in part.offsets():
            begin = real * (offset - message.start)
            end = begin + real * trainable.parameter.numel()
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                found.append((trainable.index, start, stop))
        return found

    @torch.no_grad()
    def _measure(self) -> None:
        """Make averages of this rank's sums, and sum up their squares for the note."""
        self.sums.zero_()
        indices: list[int] = []
        pieces: list[Tensor] = []
        for launched in self._layout.traffic.pushes:
            self._averagings[id(launched.message)]()
            for index, start, stop in self._pieces[id(launched.message)]:
                indices.append(index)
                pieces.append(launched.message.gradients[start:stop])
        if pieces:
            norms = [norm.float() for norm in torch._foreach_norm(pieces)]
            at = torch.tensor(indices, device=self.sums.device)
            self.sums.index_add_(0, at, torch.stack(norms).square_())


class PulledAverages(Pull):
    """Gathers averages of gradients behind a backward."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._averagings, self._flights = layout.shared(averagings), layout.shared(Flights)
        layout.shared(Squares)
        self._narrow = {
            id(part): torch.empty_like(part.wire, dtype=part.wire_dtype)
            for part in layout.parts
            if part.wire_dtype != part.wire.dtype
        }
        self._nodes: list[Any] = []
        for trainable in layout.trainables:
            self._guard(trainable)

    def _guard(self, trainable: Trainable) -> None:
        """Let no backward add to a gradient that is on its way, wherever it enters the model."""
        accumulates = accumulator(trainable.parameter)
        # The garbage collector does not see through a node to its hooks.
        waiter = Waiter(self._flights, self._flights.key_of(trainable.index))
        self._layout.ending.callback(accumulates.register_prehook(waiter).remove)
        self._nodes.append(accumulates)  # a parameter does not keep it

    def begin(self) -> None:
        """Wait for all flights: a rank that makes up for a refused forward has looked at none.

        The buckets are filled anew, and what is on its way there would be lost, with its updates.
        """
        self._flights.ready()

    def pushed(self) -> None:
        """Launch the gathers in the order in which forward needs them."""
        flights = {id(one.part): Flight(one.part) for one in self._layout.traffic.pushes}
        for part, message in self._layout.pulled:
            self._gather(flights[id(part)], message)
        for launched in self._layout.traffic.pushes:
            if launched.message.pull is None:
                flights[id(launched.part)].works.append(self._layout.notes.arrive)
        self._flights.depart(flights, AwaitedAverage)

    def _gather(self, flight: Flight, message: Message) -> None:
        """Launch the gather of what ``message`` carries of a flight."""
        assert message.pull is not None
        assert message.bounds is not None
        part, averaging = flight.part, self._averagings[id(message)]
        on_device, ranks = part.gradients.is_cuda, self._layout.communicator
        carried, before = message.gradients, averaging
        if (narrow := self._narrow.get(id(part))) is not None:
            first = message.gradients.storage_offset() - part.wire.storage_offset()
            carried = narrow[first : first + message.gradients.numel()]
            own = carried[slice(*message.bounds[ranks.rank :][:2])]
            before = partial(_narrowed, averaging, own)  # type: ignore[assignment]
            flight.unpacking.append(partial(message.gradients.copy_, carried))
        if on_device:
            before()
        handle = ranks.run(
            message.pull,
            carried,
            bounds=message.bounds,
            before=None if on_device else before,
            async_op=True,
        )
        self._layout.traffic.pulls.append(Launched(part, message, handle, carried.nbytes))
        flight.works.append(handle.wait)

    def ready(self) -> None:
        """Wait for all flights."""
        self._flights.ready()

    def leave(self) -> None:
        """Let go of flights that never come."""
        self._flights.drop()


@torch.no_grad()
def _narrowed(averaging: Averaging, own: Tensor) -> None:
    """Write this rank's averages where they travel from, in fewer bits."""
    averaging()
    own.copy_(averaging.sums)
