"""Owned: gradients are summed where their owner is, who updates; the new weights come back.

What ``sharded`` and ``rooted`` have in common. Every rank owns a range of what each message
carries, which may be empty or all of it. What a plan has all-reduced every rank owns, and nothing
is pulled of it. Parameters are views of flat buffers of weights, laid out as those of the
gradients. For an optimizer's step the parameters in its groups are exchanged for *pieces*: this
rank's ranges of them, as parameters with gradients, several of a parameter that travels in parts.
So the optimizer's state is that of the pieces. Between steps the groups hold the parameters.

A piece is one-dimensional where the optimizer goes by element. Where it looks at whole tensors, a
parameter is in one rank's range or in none, and its piece has its shape and strides.

A step ends by launching the pulls of what its optimizer trains, in the order of the plan: what the
next forward needs first comes first. It does not wait; whoever looks at a parameter does
(``exchange/seen/weights.py``).

[Note: several optimizers]
A step launches the pulls of its own optimizer's parameters and no others, so that it does not
matter whether the others step in the same iteration, before or after, or at all: what no step has
changed is not pulled. As of any collective, all ranks take the same steps in the same order.
Parameters of different optimizers have different flat buffers, so that nothing is pulled twice, and
a step does not wait for the pulls of the step before it.

[Note: what was accumulated before]
A gradient that nobody set to None holds the average in its owner's part alone. In the next sum the
owner's part counts once per rank and the others' not at all, so that what comes out is the old
average and the mean of what was added, as it is where every rank holds the whole average.

A backward that does not come through the model's outputs is noticed when its first gradient has
been added. Where that was added to zeros it is this rank's contribution. Where it was added to an
average, it is lost in what the collective left of the other parts, and the backward is refused.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from syncopate.engine.buckets import (
    BucketBuffers,
    FlatBuffer,
    Message,
    Place,
    Trainable,
    build_buckets,
    view_like,
)
from syncopate.engine.checks.agreement import explained
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.base import Exchange, Launched, Missing, Note, Work, arrived
from syncopate.engine.exchange.optimizer_state import OwnedState, Piece
from syncopate.engine.exchange.optimizers import kind_of, trained_by
from syncopate.engine.exchange.seen import weights
from syncopate.engine.exchange.seen.gradients import PartialGradient
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError, EngineError
from syncopate.plan import Plan, pulled_in
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.shards import adjoined
from syncopate.workload import TENSOR


class Owned(Exchange):
    """An exchange in which ranks own ranges; arguments as :class:`Exchange`'s.

    Attributes:
        pieces: per parameter this rank's pieces of it, if any.
        trained: per parameter who updates it, and how.
        state: the state of optimizers, in pieces.
    """

    state: OwnedState

    gradient_kind = PartialGradient
    ends_with_backward = False
    updates_whole = False
    meets_in_forward = False

    def own_range(self, message: Message) -> tuple[int, int]:
        """Return which elements of a flat buffer this rank owns of those that ``message`` carries.

        The first, and one past the last.
        """
        return (message.start, message.stop) if message.pull is None else self._share_of(message)

    @abstractmethod
    def _share_of(self, message: Message) -> tuple[int, int]:
        """Return this rank's range of a message that is pulled."""

    # -- set-up ---------------------------------------------------------------------------------

    def _prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.averaged = False
        self.zeroed, self.carried, self.gathered, self._absent = (set[int]() for _ in range(4))
        self._around: dict[int, FlatBuffer] = {}
        self.trained = trained_by(self._trainables, optimizers)

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        for trainable in self._trainables:
            if trainable.parameter.is_complex():
                raise EngineError(
                    f"{trainable.name!r} is complex, which the {plan.exchange} exchange does not "
                    "carry; use exchange='allreduce'"
                )
        tail = Tail(
            len(self._trainables),
            self.communicator.rank,
            self.communicator.world_size,
            self._module_buffers,
            torch.float32,
        )
        device = self._trainables[0].parameter.device
        self._notes = torch.zeros(tail.elements, dtype=torch.float32, device=device)
        tail.attach(self._notes)
        algorithm = NATIVE if self._notes.is_cuda else "recursive_doubling"
        self._note_recipe = Recipe("all_reduce", algorithm)
        self._pulled_in = pulled_in(plan.pull_order, len(plan.buckets))
        return build_buckets(plan, self._trainables, 0, self._place), tail

    def _place(self, trainable: Trainable) -> Place:
        """Return where in its bucket a gradient lies."""
        return Place(apart=self.trained[trainable.index])

    def _take_over(self) -> None:
        self.pieces: list[tuple[Piece, ...]] = [()] * len(self._trainables)
        self._weights: dict[int, Tensor] = {}
        self._part_of: dict[int, int] = {}
        self._flat: dict[int, FlatBuffer] = {}
        self._index = {id(trainable.parameter): trainable.index for trainable in self._trainables}
        self._places: list[Tensor] = [torch.empty(0)] * len(self._trainables)
        self._given: list[int] = []
        self._stepper: torch.optim.Optimizer | None = None
        self._compiled = weights.read_below_torch(self._module_buffers.model)
        self._stepping: set[int] = set()
        self._pending: dict[int, list[Work]] = {}
        self._arriving = threading.RLock()
        self._note: Any = None
        messages: dict[int, list[tuple[FlatBuffer, Message]]] = defaultdict(list)
        for part in chain(*(bucket.parts for bucket in self.buckets)):
            self._adopt(part)
            for message in part.messages:
                messages[message.bucket].append((part, message))
        launched = [one for index in self._pulled_in for one in messages[index]]
        self._pulled = [(part, message) for part, message in launched if message.pull is not None]
        self.state = OwnedState(self.communicator, self.buckets, self.pieces)

    def _adopt(self, part: FlatBuffer) -> None:
        """Move the weights of one flat buffer into one, and cut this rank's pieces."""
        flat = torch.empty_like(part.gradients)
        owned = adjoined(self.own_range(message) for message in part.messages)
        offset = 0
        for place, trainable in enumerate(part.trainables):
            parameter, whole = trainable.parameter, part.views[place]
            view = view_like(parameter, flat, offset)
            view.copy_(parameter.data)
            parameter.data = self._places[trainable.index] = view
            end = offset + parameter.numel()
            ranges = [(max(low, offset), min(high, end)) for low, high in owned]
            ranges = [(start, stop) for start, stop in ranges if stop > start]
            own = tuple(part.gradients[start:stop] for start, stop in ranges)
            gradient = self.gradient_kind.of(trainable.name, whole, own, self)
            gradient.replicated = part.replicated
            part.grads[place] = self.grads[trainable.index] = gradient
            self._around[id(whole)] = part
            weights_of, averages = [flat[start:stop] for start, stop in ranges], own
            if ranges and self.trained[trainable.index].kind == TENSOR:
                assert ranges == [(offset, end)]
                weights_of, averages = [view], (whole,)
            self.pieces[trainable.index] = tuple(
                Piece(trainable, start - offset, nn.Parameter(weight), average)
                for (start, _), weight, average in zip(ranges, weights_of, averages, strict=True)
            )
            offset = end
            self._part_of[trainable.index] = id(part)
        self._weights[id(part)], self._flat[id(part)] = flat, part

    # -- forward --------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """Put back what the ranks agreed on in the last step; meets nobody."""
        self._make_up_for_step()
        if self.communicator.rank != self._module_buffers.source:
            self._module_buffers.restore()

    def ready(self) -> None:
        """Wait until every weight has come back."""
        for key in list(self._pending):
            self._arrive(key)

    def _arrive(self, key: int) -> None:
        """Wait for the weights of one flat buffer, of the identity ``key``, in any thread."""
        with self._arriving:
            if pending := self._pending.get(key):
                self._await(pending, self._flat[key])
                weights.release(self._flat[key].parameters)
                del self._pending[key]

    # -- backward -------------------------------------------------------------------------------

    def adapt(self, entered: int | None = None) -> None:
        """See [Note: what was accumulated before]."""
        if not self.averaged:
            return
        for trainable, view in zip(self._trainables, self.grads, strict=True):
            assert isinstance(view, PartialGradient)
            zero = id(view.whole) in self.zeroed
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
            own = [each * self.communicator.world_size for each in view.own]
            view.whole.zero_()
            for each, average in zip(view.own, own, strict=True):
                each.copy_(average)
            self.carried.add(id(view.whole))
        self.averaged = False
        self.zeroed.clear()
        self.gathered.clear()

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket`` towards their owners."""
        self._launch(bucket, empty=empty)
        if note is not None:
            self._tail.fill(note.unreached, failed=note.failed, forwards=note.forwards)
            for copied in self._copies:  # see [Note: gathered aside]
                copied()
            self._note = self.communicator.run(self._note_recipe, self._notes, async_op=True)

    def wait(self) -> Said:
        """Wait for every push, and make averages of this rank's sums."""
        said = self._average(self.pushes)
        self._hand_out()
        self._deliver()
        return said

    def _average(self, pushes: Iterable[Launched]) -> Said:
        for part, message, handle, *_ in pushes:
            arrived(handle)
            if not part.averaged_before:
                part.gradients[slice(*self.own_range(message))].mul_(self._scale)
        arrived(self._note)
        return self._tail.said()

    def _hand_out(self) -> None:
        self.averaged = True
        self.zeroed.clear()
        self.carried.clear()

    def _deliver(self) -> None:
        """Give buffers the values that rode along."""
        self._tail.deliver()

    def everyone(self, values: Tensor) -> Tensor:
        """Return every rank's ``values``, one-dimensional, one rank a row; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        ranks, rank = self.communicator.world_size, self.communicator.rank
        table = values.new_zeros(ranks, values.numel())
        table[rank] = values
        try:
            self.communicator.run(self._note_recipe, table.view(-1))
        except CollectiveError as error:
            raise explained(error) from error
        return table

    def make_whole(self, gradient: PartialGradient) -> None:
        """Bring the averages of a flat buffer here from their owners; all ranks call it.

        Args:
            gradient: one that lies in it.

        Raises:
            CollectiveError: a rank is lost or late, or did not ask.
        """
        if id(gradient.whole) in self.gathered:
            return
        part = self._around[id(gradient.whole)]
        try:
            for message in part.messages:
                if message.pull is not None:
                    self.communicator.run(message.pull, message.gradients, bounds=message.bounds)
        except CollectiveError as error:
            raise explained(error) from error
        self.gathered.update(map(id, part.views))

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them with the gradients they had, and let others' averages be seen there.

        A rank learns whom the others reached when the averages arrive. Who lists the gradients
        before, as clipping does, must list the same ones on every rank.
        """
        self._absent, found = set(indices), list[tuple[int, Tensor | None]]()
        for index in indices:
            parameter, view = self._trainables[index].parameter, self.grads[index]
            found.append((index, parameter.grad))
            if parameter.grad is None:
                assert isinstance(view, PartialGradient)
                view.whole.zero_()
                parameter.grad = view
        return found

    def restore(self, missing: Missing) -> None:
        """Take away again what nobody reached and had no gradient before."""
        reached = self._tail.reached()
        for index, before in missing:
            if before is None and not reached[index]:
                self._trainables[index].parameter.grad = None

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Put this rank's pieces into the groups of ``optimizer``."""
        if self.state.is_plain(optimizer):
            self._require_whole_gradients(optimizer)
            return
        parts = self._trained_parts(optimizer)
        if self._stepper is not None:
            self._make_up_for_step(again=self._stepper is optimizer)
        # What is still on its way out must not change.
        for key in parts:
            self._arrive(key)
        self._take_in(parts)
        self.state.cut(optimizer)
        groups.exchange(optimizer, self, self._standing_for)
        self._stepping, self._stepper = parts, optimizer

    def _take_in(self, parts: Container[int]) -> None:
        """Bring parameters that were given other memory (``parameter.data = ...``) back into ours.

        Nobody is told when that happens, and a step would update what nobody looks at.
        """
        for trainable, place in zip(self._trainables, self._places, strict=True):
            if self._part_of[trainable.index] not in parts:
                continue
            parameter = trainable.parameter
            if parameter.data_ptr() != place.data_ptr():
                place.copy_(parameter.data)
                parameter.data = place

    def _trained_parts(self, optimizer: torch.optim.Optimizer) -> set[int]:
        """Return the identities of the flat buffers with parameters of ``optimizer``.

        Raises:
            EngineError: it needs a whole tensor of which every rank may own a part.
        """
        whole = kind_of(optimizer) == TENSOR
        found = set()
        for held in groups.parameters_of(optimizer):
            for parameter in held:
                if (index := self._index.get(id(parameter))) is None:
                    continue
                found.add(self._part_of[index])
                if whole and self.trained[index].kind != TENSOR:
                    raise EngineError(
                        f"{self._trainables[index].name!r} was given to "
                        f"{type(optimizer).__name__}, which looks at whole tensors, after this "
                        "plan had spread its elements over the ranks. Call "
                        "model.syncopate.install(model.syncopate.plan) after a group is added"
                    )
        return found

    def _require_whole_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step on whole state that would take this rank's parts for whole gradients."""
        for group in optimizer.param_groups:
            if any(isinstance(parameter.grad, PartialGradient) for parameter in group["params"]):
                raise EngineError(
                    "inside `with model.syncopate.whole_state(optimizer):` the optimizer saves and "
                    "loads whole state, and this step is one of training; step outside"
                )

    def _standing_for(self, parameter: Tensor) -> list[Tensor]:
        """Return what an optimizer updates in the place of ``parameter``."""
        index = self._index.get(id(parameter))
        if index is None:
            return [parameter]
        pieces, view, gradient = self.pieces[index], self.grads[index], parameter.grad
        if not pieces:
            return []
        assert isinstance(view, PartialGradient)
        if gradient is not None and not view.is_place_of(gradient):
            # Somebody gave it a gradient of their own, the same on every rank.
            view.whole.copy_(gradient)
        if gradient is not None:
            for piece in pieces:
                piece.parameter.grad = piece.gradient
            self._given.append(index)
        return [piece.parameter for piece in pieces]

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Launch the updated weights, in the order of the plan."""
        if self.state.is_plain(optimizer):
            return  # every rank has updated all of them
        groups.put_back(optimizer)
        self._finish_step()

    def _finish_step(self) -> None:
        self._stepper = None
        for piece in chain(*(self.pieces[index] for index in self._given)):
            piece.parameter.grad = None
        self._given.clear()
        self._share_buffers()
        for part in chain(*(bucket.parts for bucket in self.buckets)):
            if part.replicated and id(part) in self._stepping:
                weights.renew(part.parameters)
        with self._arriving:  # nobody takes one message of a flat buffer for all of it
            for part, message in self._pulled:
                if id(part) in self._stepping:
                    self._pull(part, message)
        self._stepping = set()
        if self._compiled:
            self.ready()

    def _share_buffers(self) -> None:
        """Agree on the buffers with all ranks, which end the same step."""
        try:
            self._module_buffers.refresh(self.communicator)
        except CollectiveError as error:
            raise explained(error) from error

    def _make_up_for_step(self, *, again: bool = False) -> None:
        """Do after a step that raised what the ranks did on which it did not.

        Until now its optimizer held pieces: where it was told to zero gradients, it zeroed theirs.

        Args:
            again: the same optimizer steps anew, and exchanges its groups itself.
        """
        if self._stepper is None:
            return
        if not again:
            groups.put_back(self._stepper)
        for index in self._given:
            for piece in self.pieces[index]:
                if piece.parameter.grad is None:
                    piece.trainable.parameter.grad = None
        self._finish_step()

    def _pull(self, part: FlatBuffer, message: Message) -> None:
        """Launch the updated weights of one flat buffer that ``message`` carries."""
        assert message.pull is not None
        pulled = self._weights[id(part)][message.start : message.stop]
        handle = self.communicator.run(message.pull, pulled, bounds=message.bounds, async_op=True)
        self.pulls.append(Launched(part, message, handle))
        self._expect(part, handle)

    def _expect(self, part: FlatBuffer, work: Work) -> None:
        """Let whoever looks at the weights of a flat buffer wait for what brings them."""
        with self._arriving:
            pending = self._pending.setdefault(id(part), [])
            pending.append(work)
            if len(pending) == 1:
                weights.expect(weights.renew(part.parameters), _Waiter(self, id(part)))

    def leave(self) -> None:
        """Give every parameter memory of its own, and optimizers whole state."""
        super().leave()
        if self._stepper is not None:
            groups.put_back(self._stepper)
        self.ready()
        self.state.make_all_whole()
        for parameter in (trainable.parameter for trainable in self._trainables):
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
            if isinstance(parameter.grad, PartialGradient):
                parameter.grad = None


class _Waiter:
    """Waits for the weights of a flat buffer, as long as anybody trains the model."""

    def __init__(self, exchange: Owned, key: int) -> None:
        self._exchange = weakref.ref(exchange)
        self._key = key

    def wait(self) -> None:
        """Wait for them."""
        if (found := self._exchange()) is not None:
            found._arrive(self._key)

    def met_compiler(self) -> None:
        """Let every step wait for all weights from now on."""
        if (found := self._exchange()) is not None:
            found._compiled = True
