"""Decoupled: an all-reduce in two halves, of which the second hides behind the next forward.

Gradients are reduce-scattered while backward runs, and their averages are gathered behind its end,
in the order in which the next forward needs them (DeAR: Zhang et al. 2023). On the wire that is
what a sharded exchange sends, and it hides behind the same computation. But every rank gets every
average and updates all weights with all of the optimizer's state: a program does what it does under
DistributedDataParallel.

[Note: looks]
Every rank launches both halves during backward and at its end. So nothing that a script does later
is a collective of all ranks: a look at a gradient, a weight or the optimizer's state, on one rank
or on all, in any thread, waits for what is under way on this rank (``seen/weights.py``), a *flight*
(``flights.py``).

[Note: deferred steps]
An optimizer's step notes its hyper-parameters, and the flights whose gradients it would use. Their
parameters are updated when the flight arrives: before the first layer that needs one of them, in
the thread of forward. What has arrived before the step, the step updates itself. An optimizer of
which it is not known that it updates each parameter by itself takes its whole step at once, when
all flights have arrived.

[Note: what the ranks say]
Behind the last reduce-scatter all ranks sum up a note: whose backward failed, whom it reached, the
buffers that ride along, and the sum of squares of every gradient, to which each rank contributes
that of its shards. So the 2-norm of a gradient is known to every rank before the gradient is.

[Note: buffers]
As under DDP a training forward begins with rank 0's buffers, as they are then. Where the model has
some the ranks agree on them there, on a channel of its own: on the others gathers are under way.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, Place, build_buckets
from syncopate.engine.checks.agreement import explained
from syncopate.engine.exchange.base import Exchange, Launched, Missing, Note, arrived
from syncopate.engine.exchange.deferral import Deferral
from syncopate.engine.exchange.flights import Averaging, Flight, Waiter, narrowed, widened
from syncopate.engine.exchange.seen import averages, weights
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError
from syncopate.plan import Plan, pulled_in
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.base import chunk_offsets


class Decoupled(Exchange):
    """The ``decoupled`` exchange; arguments as :class:`Exchange`'s."""

    ends_with_backward = False

    # -- set-up ---------------------------------------------------------------------------------

    def _prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self.lock = threading.RLock()
        self.flights: dict[int, Flight] = {}
        self._note: Any = None
        self._said: Said | None = None
        self._main = threading.get_ident()
        self._given: dict[int, int] = {}
        for place, optimizer in enumerate(optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._given.setdefault(id(parameter), place)

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        count, device = len(self._trainables), self._trainables[0].parameter.device
        ranks = self.communicator.world_size
        tail = Tail(count, self.communicator.rank, ranks, self._module_buffers, torch.float32)
        self._notes = torch.zeros(tail.elements + count, dtype=torch.float32, device=device)
        self.squares = self._notes[tail.elements :]
        tail.attach(self._notes)
        algorithm = NATIVE if self._notes.is_cuda else "recursive_doubling"
        self._note_recipe = Recipe("all_reduce", algorithm)
        self._buffers_channel = plan.channels if self._module_buffers.exchanged else 0
        self.communicator.widen(self._buffers_channel + 1)
        place = {each.index: self._given.get(id(each.parameter), -1) for each in self._trainables}
        buckets = build_buckets(
            plan, self._trainables, 0, lambda trainable: Place(apart=place[trainable.index])
        )
        for part in chain(*(bucket.parts for bucket in buckets)):
            for message in part.messages:
                if message.pull is not None:
                    message.bounds = chunk_offsets(message.gradients.numel(), ranks)
        self._pulled_in = pulled_in(plan.pull_order, len(plan.buckets))
        return buckets, tail

    def _take_over(self) -> None:
        self._index_of_view = {id(view): index for index, view in enumerate(self.grads)}
        self._part_of: dict[int, FlatBuffer] = {}
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}
        self._aliases: dict[int, Tensor] = {}
        self._narrow: dict[int, Tensor] = {}
        messages: dict[int, list[tuple[FlatBuffer, Message]]] = defaultdict(list)
        for part in chain(*(bucket.parts for bucket in self.buckets)):
            for trainable, view in zip(part.trainables, part.views, strict=True):
                self._part_of[trainable.index] = part
                # What waits for nobody: the view itself may be told to.
                self._aliases[trainable.index] = view.detach()
            if part.wire_dtype != part.wire.dtype:
                self._narrow[id(part)] = torch.empty_like(part.wire, dtype=part.wire_dtype)
            for message in part.messages:
                self._pieces[id(message)] = self._own_pieces(part, message)
                messages[message.bucket].append((part, message))
        ordered = [one for index in self._pulled_in for one in messages[index]]
        self._pulled = [(part, message) for part, message in ordered if message.pull is not None]
        model = self._module_buffers.model
        # Its compiled code reads parameters that nobody else sees it read.
        self._opaque = any(isinstance(each, torch.jit.ScriptModule) for each in model.modules())
        self._hooks = self._prehooks()
        self._deferral = Deferral(self, self._optimizers, self._trainables)

    def _own_pieces(self, part: FlatBuffer, message: Message) -> list[tuple[int, int, int]]:
        """Return of which parameters this rank sums up squares of a message, and where they lie.

        Index, first element in the message, and one past the last; real elements.
        """
        bounds = chunk_offsets(message.gradients.numel(), self.communicator.world_size)
        low, high = bounds[self.communicator.rank : self.communicator.rank + 2]
        real = 2 if part.gradients.is_complex() else 1
        found, begin = [], -real * message.start
        for trainable in part.trainables:
            end = begin + real * trainable.parameter.numel()
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                found.append((trainable.index, start, stop))
            begin = end
        return found

    def _prehooks(self) -> list[RemovableHandle]:
        """Let no backward add to a gradient that is on its way, wherever it enters the model."""
        hooks: list[RemovableHandle] = []
        self._nodes: list[Any] = []
        for trainable in self._trainables:
            parameter = trainable.parameter
            with torch.enable_grad():
                node: Any = parameter.view_as(parameter).grad_fn
            accumulates = node.next_functions[0][0]
            # The garbage collector does not see through a node to its hooks.
            hooks.append(accumulates.register_prehook(Waiter(self, self.key_of(trainable.index))))
            self._nodes.append(accumulates)  # a parameter does not keep it
        return hooks

    def key_of(self, index: int) -> int:
        """Return the name of the flight that brings a gradient."""
        return id(self._part_of[index])

    # -- forward --------------------------------------------------------------------------------

    @property
    def meets_in_forward(self) -> bool:
        """Whether the model has buffers to exchange."""
        return self._module_buffers.exchanged

    def refresh_buffers(self) -> None:
        """Exchange buffers with all ranks, which begin a forward too."""
        self._deferral.forget()
        if self._opaque:
            self.ready()
        try:
            self._module_buffers.refresh(self.communicator, self._buffers_channel)
        except CollectiveError as error:
            raise explained(error) from error

    def ready(self) -> None:
        """Wait for all flights."""
        for key in list(self.flights):
            self.arrive(key)

    @torch.no_grad()
    def arrive(self, key: int) -> None:
        """Wait for a flight, and do what is to be done then; once, in whatever thread."""
        if key not in self.flights:
            return
        with self.lock:
            flight = self.flights.get(key)
            if flight is None or flight.arriving:
                return
            flight.arriving = True
            try:
                self._land(flight)
            finally:
                flight.arriving = False
            del self.flights[key]
            weights.release(flight.awaited)

    def _land(self, flight: Flight) -> None:
        part, began_s = flight.part, time.perf_counter()
        while flight.works:
            try:
                flight.works[0]()
            except CollectiveError as error:
                raise explained(error) from error
            flight.works.pop(0)
        came_s = time.perf_counter()
        if part.gradients.is_cpu and flight.steps:  # a device's stream waits, and not the host
            self.waits.append((part.messages[0].bucket, began_s, came_s))
        # A forward may run in inference mode, or under autocast; a step does not.
        kind = part.gradients.device.type
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
            while flight.actions:
                flight.actions.pop(0)()
        if part.gradients.is_cpu and flight.steps:
            self.updates.append((part.messages[0].bucket, came_s, time.perf_counter()))

    # -- backward -------------------------------------------------------------------------------

    def adapt(self, entered: int | None = None) -> None:
        """Let a backward begin when nothing is under way that it would change."""
        self._main = threading.get_ident()
        self._deferral.forget()
        self.ready()
        self._let_go()
        self._index_of_view = {id(view): index for index, view in enumerate(self.grads)}

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``; behind the last one, the note and all gathers."""
        self._launch(bucket, empty=empty)
        if note is None:
            return
        self._tail.fill(note.unreached, failed=note.failed, forwards=note.forwards)
        for copied in self._copies:  # [Note: gathered aside]
            copied()
        self._gather()

    def _gather(self) -> None:
        """Launch the note, and the gathers in the order in which forward needs them."""
        rank = self.communicator.rank
        averagings: dict[int, Averaging] = {}
        for launched in self.pushes:
            message, part = launched.message, launched.part
            scale = None if part.averaged_before else self._scale
            start, stop = 0, message.gradients.numel()
            if message.bounds is not None:
                start, stop = message.bounds[rank : rank + 2]
            averagings[id(message)] = Averaging(launched, start, stop, scale)
        measure = partial(self._measure, averagings)
        on_device = self._notes.is_cuda
        if on_device:  # the stream waits, in its order
            measure()
        self._said = None
        self._note = self.communicator.run(
            self._note_recipe,
            self._notes,
            before=None if on_device else measure,
            async_op=True,
        )
        flights = {id(launched.part): Flight(launched.part) for launched in self.pushes}
        for part, message in self._pulled:
            flights[id(part)].works.append(self._gathered(part, message, averagings[id(message)]))
        for launched in self.pushes:
            if launched.message.pull is None:
                flights[id(launched.part)].works.append(averagings[id(launched.message)])
        for key, flight in flights.items():
            flight.awaited = [self.grads[each.index] for each in flight.part.trainables]
            weights.expect(flight.awaited, Waiter(self, key), averages.AwaitedAverage)
        self.flights = flights

    def _gathered(
        self, part: FlatBuffer, message: Message, averaging: Averaging
    ) -> Callable[[], object]:
        """Launch the gather of what ``message`` carries; return what waits for it."""
        assert message.pull is not None
        assert message.bounds is not None
        on_device = part.gradients.is_cuda
        carried, before = message.gradients, averaging
        if (narrow := self._narrow.get(id(part))) is not None:
            first = message.gradients.storage_offset() - part.wire.storage_offset()
            carried = narrow[first : first + message.gradients.numel()]
            own = carried[slice(*message.bounds[self.communicator.rank :][:2])]
            before = partial(narrowed, averaging, own)  # type: ignore[assignment]
        if on_device:
            before()
        handle = self.communicator.run(
            message.pull,
            carried,
            bounds=message.bounds,
            before=None if on_device else before,
            async_op=True,
        )
        self.pulls.append(Launched(part, message, handle, carried.nbytes))
        return handle.wait if narrow is None else partial(widened, handle, carried, message)

    @torch.no_grad()
    def _measure(self, averagings: dict[int, Averaging]) -> None:
        """Make averages of this rank's sums, and sum up their squares for the note."""
        self.squares.zero_()
        indices: list[int] = []
        pieces: list[Tensor] = []
        for launched in self.pushes:
            averagings[id(launched.message)]()
            for index, start, stop in self._pieces[id(launched.message)]:
                indices.append(index)
                pieces.append(launched.message.gradients[start:stop])
        if pieces:
            norms = [norm.float() for norm in torch._foreach_norm(pieces)]
            at = torch.tensor(indices, device=self.squares.device)
            self.squares.index_add_(0, at, torch.stack(norms).square_())

    def hears_now(self, missing: bool) -> bool:
        """Whether the end of backward waits for what the ranks say.

        It does where this rank reached fewer parameters than others may have: their gradients
        appear. Parameters that no optimizer here trains have their averages then, as under DDP.
        """
        for key, flight in list(self.flights.items()):
            trained = (self._given.get(id(each.parameter)) for each in flight.part.trainables)
            if None in trained:
                self.arrive(key)
        return missing

    def wait(self) -> Said:
        """Wait for the note; averages may come later, and buffers with the next forward."""
        said = self._hear()
        self._tail.deliver(put=False)
        return said

    def _hear(self) -> Said:
        if self._said is None:
            arrived(self._note)
            self._said = self._tail.said()
        return self._said

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them with their gradients, which the sums will overwrite."""
        grads = [self._trainables[index].parameter.grad for index in indices]
        kept = [None if grad is None else grad.clone() for grad in grads]
        return list(zip(indices, kept, strict=True))

    def restore(self, missing: Missing) -> None:
        """Leave a gradient untouched that no rank reached; hand out the others."""
        reached = self._tail.reached()
        for index, before in missing:
            if reached[index]:
                self._trainables[index].parameter.grad = self.grads[index]
            elif before is not None:
                self.later(index, partial(self._aliases[index].copy_, before))

    # -- looks at gradients ----------------------------------------------------------------------

    def index_of(self, gradient: Tensor) -> int | None:
        """Return the index of the parameter whose average comes to ``gradient``."""
        return self._index_of_view.get(id(gradient))

    def memory_of(self, index: int) -> Tensor:
        """Return the place of an average, to look at which waits for nobody."""
        return self._aliases[index]

    def later(self, index: int, action: Callable[[], object]) -> None:
        """Do something to a gradient when it has arrived; now, where it has."""
        with self.lock:
            flight = self.flights.get(id(self._part_of[index]))
            if flight is not None and not flight.arriving:
                flight.actions.append(action)
                return
        with torch.no_grad():
            action()

    def square_of(self, index: int) -> Tensor | None:
        """Return the sum of squares of a gradient on its way; None where it must be looked at.

        It must be where something is to be done to it first, and where a float32 cannot tell.
        """
        with self.lock:
            flight = self.flights.get(id(self._part_of[index]))
            if flight is None or flight.actions:
                return None
        self.heed()
        self._hear()
        square = self.squares[index]
        known = _LEAST_SQUARE <= square.item() < float("inf")
        return square if known else None

    def heed(self) -> None:
        """Hear what the ranks said, and refuse a step that has failed; in the thread of training.

        Other threads just wait: the training is to hear of it.
        """
        if threading.get_ident() == self._main:
            self.complete()

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave for later what can be (``deferral.py``)."""
        self._deferral.begin(optimizer)

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Let flights update what the step left to them."""
        self._deferral.end(optimizer)

    def leave(self) -> None:
        """Let everything arrive, and give optimizers plain state."""
        super().leave()
        self._deferral.give_back()
        try:
            self.ready()
        finally:
            for hook in self._hooks:
                hook.remove()
            self._deferral.leave()


_LEAST_SQUARE = 1e-30
"""Below it a float32 has lost digits, or all of them."""
