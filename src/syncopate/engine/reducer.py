"""Reducer: launches buckets during backward and waits for them at its end.

MG-WFBP's Algorithm 2 on autograd's own hooks: every parameter's hook marks its gradient ready; a
bucket is launched when all its gradients are ready and all earlier buckets of the plan are
launched; there is one wait, at the end of backward and so before clipping and the optimizer.

[Note: The path of a hook]
The hook runs once per parameter and backward, so its common path is four lines on captured lists.
``ready[i]`` is 1 for "nothing to do for this one": every entry is 1 while no synchronised backward
runs, and all are set to 0 when one begins. Whatever is out of the ordinary (the first gradient of a
backward, one that is not to be synchronised, one that is timed, one that comes twice) therefore
finds a 1 and takes the other path.

[Note: Where a backward begins]
The model's outputs carry a hook that fires when backward reaches them and decides as the *forward*
decided (inside or outside ``no_sync``), as DDP does. A backward that enters elsewhere, because a
submodule was called on its own, begins at its first ready gradient. The end is a callback of
autograd's graph task. With re-entrant checkpointing the outputs belong to the outer task, whose
end is the real one.

[Note: A model that is dropped]
Hooks do not hold the reducer: the garbage collector does not see through a parameter to its hooks,
and would keep buffers and sockets for ever. Model and optimizer hold it. Where both are gone and a
layer is trained on all the same, its hooks say that nobody exchanges its gradients any more.

[Note: A backward that raises]
The other ranks launch all their buckets and wait. The failed rank notices at its next forward (or
backward): it launches what it had not launched, marked as failed, so that all ranks stay in step;
the others raise an error that names it, and nobody steps on half a gradient. A forward that is
refused on one rank alone is made up for in the same way.

[Note: A backward that never began]
Where the error comes between forward and backward, in the loss, the failed rank notices nothing: it
goes on, one step ahead of the others, and its next gradients would be averaged with their last. So
every rank says how many training forwards since the backward before had no part in this one. Where
all ranks say the same, several forwards are how this program trains. Otherwise all of them refuse
the step and are in step again. A model with buffers finds it sooner: the rank is in the exchange
before a forward while the others are in their buckets, which ends the communicator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from syncopate.calibration.stamps import clock_for
from syncopate.collectives import Communicator, Handle
from syncopate.engine import ownership
from syncopate.engine.agreement import explained
from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Trainable
from syncopate.engine.join import Move
from syncopate.engine.state import Buffers
from syncopate.engine.step import Push, Step
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError, EngineError


class State(IntEnum):
    """What the current backward does with its gradients."""

    IDLE = 0
    """No backward runs."""
    SYNC = 1
    """Buckets are launched as they become ready."""
    HELD = 2
    """Ready times are noted; every bucket is launched at the end."""
    SKIP = 3
    """Gradients accumulate locally (``no_sync``)."""


class Reducer:
    """Averages the gradients of ``trainables`` over the ranks in every backward.

    Args:
        trainables: every parameter whose gradient is exchanged.
        buffers: the module's buffers, kept at rank 0's values.
        communicator: joins the ranks.

    Attributes:
        paused: gradients of forwards that run meanwhile are not exchanged.
        held: launch every bucket at the end of backward and time the gradients.
        listeners: called with each :class:`Step` when its backward has been synchronised, on every
            rank alike, and so free to communicate.
        communicator: joins the ranks.
        announce: called before each exchange, where ranks may run out of inputs.
        clock: stamps the steps.
    """

    def __init__(
        self,
        trainables: Sequence[Trainable],
        buffers: Buffers,
        communicator: Communicator,
    ) -> None:
        self.paused = False
        self.held = False
        self.listeners: list[Callable[[Step], None]] = []
        self.communicator = communicator
        self.announce: Callable[[Move], None] | None = None
        self._present: Sequence[int] = range(communicator.world_size)
        self.clock = clock_for(trainables[0].parameter.device)
        self._stamp = self.clock.stamp
        self._trainables = tuple(trainables)
        self._module_buffers = buffers
        self._owes_failure = False
        self._counted = False
        self._forwards = 0
        self._unreached: set[int] = set()
        self._absent = False
        self._state = State.IDLE
        self._task = -1
        self._step = Step()
        self._ready = bytearray(b"\1" * len(trainables))
        self._timed = bytearray(len(trainables))
        self._kept = bytearray(len(trainables))
        self._bucket_of: list[int] = [0] * len(trainables)
        self._left: list[int] = []
        self._buckets: tuple[BucketBuffers, ...] = ()
        self._next = 0
        self._pushes: list[tuple[BucketBuffers, FlatBuffer, Handle]] = []
        self._hooks: list[RemovableHandle] = [
            trainable.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(trainable.index)
            )
            for trainable in trainables
        ]
        parameters: list[weakref.ref[Tensor]] = [weakref.ref(t.parameter) for t in trainables]
        weakref.finalize(self, ownership.orphan, parameters, self._hooks).atexit = False

    # -- set-up ---------------------------------------------------------------------------------

    def install(self, buckets: Sequence[BucketBuffers], tail: Tail) -> None:
        """Use ``buckets`` from the next backward on; call it between iterations.

        Raises:
            EngineError: a backward is running.
        """
        if self._state in (State.SYNC, State.HELD):
            raise EngineError("a plan can be installed between iterations, not while backward runs")
        self._buckets = tuple(buckets)
        self._tail = tail
        tail.attach(self._buckets[-1].parts[-1].tail)
        self._left[:] = [0] * len(buckets)
        self._sizes = [bucket.size for bucket in buckets]
        self._views: list[Tensor | None] = [None] * len(self._trainables)
        for bucket in buckets:
            for part in bucket.parts:
                for trainable, view in zip(part.trainables, part.views, strict=True):
                    self._bucket_of[trainable.index] = bucket.index
                    self._views[trainable.index] = view
        self._scale = 1.0 / self.communicator.world_size

    def remove(self) -> None:
        """Take every hook off the parameters."""
        while self._hooks:
            self._hooks.pop().remove()
        self.listeners = []
        self._state = State.IDLE

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        # [Note: The path of a hook]
        # [Note: A model that is dropped]
        ready, left, bucket_of = self._ready, self._left, self._bucket_of
        reducer, name = weakref.ref(self), self._trainables[index].name

        def alive() -> Reducer:
            if (found := reducer()) is None:
                raise ownership.dropped(name)
            return found

        def hook(_: Tensor) -> None:
            if ready[index]:
                alive()._otherwise(index)
                return
            ready[index] = 1
            bucket = bucket_of[index]
            left[bucket] -= 1
            if not left[bucket]:
                alive()._advance()

        return hook

    # -- forward --------------------------------------------------------------------------------

    def forward_begins(self, training: bool, require: Callable[[], None]) -> None:
        """Prepare for a forward in mode ``training``, unless ``require()`` refuses it."""
        if torch._C._current_graph_task_id() != -1:
            # Activation checkpointing computes the model again, in the midst of a backward.
            return
        self._abandon()
        self._counted = training and not self.paused
        try:
            require()
        except EngineError:
            self._absent = self._counted
            raise
        if self._counted:
            self._exchange_buffers()
        self._step.forward_start = self._stamp()

    def forward_ends(self, outputs: Sequence[Tensor]) -> None:
        """Watch the tensors that ``forward`` returned for the backward to come."""
        begin = self._begin_skip if self.paused else self._begin_sync
        # A leaf would keep the hook for ever, and backward through the model starts elsewhere.
        inner = [tensor for tensor in outputs if tensor.grad_fn is not None]
        if inner and self._counted and torch._C._current_graph_task_id() == -1:
            self._forwards += 1
            self._unreached.add(self._forwards)
            begin = partial(self._begin_counted, self._forwards)
        for tensor in inner:
            tensor.register_hook(begin)  # type: ignore[no-untyped-call]

    def _exchange_buffers(self) -> None:
        if self.announce is not None and self._module_buffers.exchanged:
            self.announce(Move.FORWARD)
        try:
            self._module_buffers.refresh(self.communicator)
        except CollectiveError as error:
            raise explained(error) from error

    # -- backward -------------------------------------------------------------------------------

    def _begin_sync(self, _: Any = None) -> None:
        self._begin(State.HELD if self.held else State.SYNC)

    def _begin_counted(self, forward: int, _: Any) -> None:
        """Begin the backward of a forward that :attr:`_unreached` holds."""
        self._unreached.discard(forward)
        self._begin_sync()

    def _begin_skip(self, _: Any = None) -> None:
        self._begin(State.SKIP)

    def _begin(self, state: State) -> None:
        task = torch._C._current_graph_task_id()
        if self._state != State.IDLE:
            if task == self._task:
                return
            self._abandon()
        self._state = state
        self._task = task
        self._step.backward_start = self._stamp()
        if state == State.SKIP:
            Variable._execution_engine.queue_callback(self._end_skip)
            return
        if state == State.SYNC:
            self._ready[:] = bytes(len(self._ready))
        else:
            self._timed[:] = bytes(len(self._timed))
        self._left[:] = self._sizes
        self._next = 0
        self._pushes = []
        Variable._execution_engine.queue_callback(self._end)

    def _otherwise(self, index: int) -> None:
        """Handle a gradient off the common path ([Note: The path of a hook])."""
        if self._state == State.IDLE:
            if self.paused:
                self._begin_skip()
            else:
                self._begin_sync()
        if self._state == State.SKIP:
            self._kept[index] = 1
        elif self._state == State.SYNC and not self._ready[index]:
            self._ready[index] = 1
            self._left[self._bucket_of[index]] -= 1
            self._advance()
        elif self._state == State.HELD and not self._timed[index]:
            self._timed[index] = 1
            self._step.ready.append((index, self._stamp()))
        else:
            raise EngineError(
                f"the gradient of {self._trainables[index].name!r} became ready twice in one "
                "backward. Re-entrant activation checkpointing of a shared parameter does that; "
                "use torch.utils.checkpoint with use_reentrant=False"
            )

    def _advance(self) -> None:
        """Launch every bucket that is complete and whose turn it is."""
        with torch.no_grad():
            while self._next < len(self._buckets) and not self._left[self._next]:
                bucket = self._buckets[self._next]
                for part in bucket.parts:
                    part.gather()
                self._push(bucket)

    def _push(
        self, bucket: BucketBuffers, *, unreached: Sequence[int] = (), failed: bool = False
    ) -> None:
        if not self._next and self.announce is not None:
            self.announce(Move.BACKWARD)
        self._next += 1
        if self._next == len(self._buckets):
            self._tail.fill(
                unreached, failed=failed or self._owes_failure, forwards=len(self._unreached)
            )
            self._owes_failure = False
            self._unreached.clear()
        for part in bucket.parts:
            if part.averaged_before:
                part.gradients.mul_(self._scale)
            handle = self.communicator.all_reduce(
                part.wire,
                algorithm=bucket.algorithm,
                channel=bucket.channel,
                async_op=True,
                options=bucket.options,
            )
            self._pushes.append((bucket, part, handle))

    # -- end of backward ------------------------------------------------------------------------

    def _end_skip(self) -> None:
        if self._state != State.SKIP:
            return
        self._state = State.IDLE
        step = self._step
        if self.listeners:
            step.earlier.append((step.forward_start, step.backward_start, self._stamp()))
        step.forward_start = None

    def note_update(self, start: Any, end: Any) -> None:
        """Remember the stamps of an optimizer's step; several in one iteration count as one."""
        before = self._step.update
        self._step.update = (before[0] if before else start, end)

    @property
    def last_update(self) -> tuple[Any, Any] | None:
        """The stamps of the optimizer's step since the last backward."""
        return self._step.update

    def _end(self) -> None:
        """Launch what is left, wait for everything, hand out the averages."""
        if self._state not in (State.SYNC, State.HELD):
            return
        reached = self._timed if self._state == State.HELD else self._ready
        if 1 not in reached:
            # torch.autograd.grad came through the outputs; no gradient was accumulated.
            self._rest()
            return
        self._step.backward_end = self._stamp()
        try:
            with torch.no_grad():
                missing = self._missing(reached) if 0 in reached else []
                unreached = [index for index, _ in missing if not self._kept[index]]
                left = self._buckets[self._next :]
                # A copy beside a collective disturbs both, and a held step is there to measure.
                for part in (part for bucket in left for part in bucket.parts):
                    part.gather()
                for bucket in left:
                    self._push(bucket, unreached=unreached)
                self._wait()
                if missing:
                    self._restore(missing)
                said = self._tail.said()
        finally:
            self._rest()
        self._heed(said)
        self._report()

    def _heed(self, said: Said) -> None:
        """Act on what the ranks said along with their gradients, all in the same way.

        Raises:
            EngineError: a backward failed, or never began.
        """
        if said.appeared:
            self._module_buffers.wake()
        said.require_same_step(self._present)

    def _missing(self, reached: bytearray) -> list[tuple[int, Tensor | None]]:
        """Return the parameters that backward did not reach, with what their gradient was."""
        missing = []
        for index, mark in enumerate(reached):
            if not mark:
                gradient = self._trainables[index].parameter.grad
                missing.append((index, None if gradient is None else gradient.clone()))
        return missing

    def _restore(self, missing: Sequence[tuple[int, Tensor | None]]) -> None:
        """Leave a gradient untouched that no rank reached; hand out the others."""
        reached = self._tail.reached()
        for index, before in missing:
            parameter, view = self._trainables[index].parameter, self._views[index]
            assert view is not None
            if reached[index]:
                parameter.grad = view
            elif before is not None:
                view.copy_(before)

    def _wait(self) -> None:
        """Wait for every bucket, in launch order, averaging each while later ones travel."""
        for _, part, handle in self._pushes:
            try:
                handle.wait()
            except CollectiveError as error:
                raise explained(error) from error
            if not part.averaged_before:
                part.gradients.mul_(self._scale)
        self._tail.deliver()
        self._kept[:] = bytes(len(self._kept))

    def _abandon(self) -> None:
        """Finish a backward that raised half-way ([Note: A backward that raises])."""
        if self._absent:
            self._make_up()
        if self._state not in (State.SYNC, State.HELD):
            self._state = State.IDLE
            return
        reached = self._timed if self._state == State.HELD else self._ready
        try:
            with torch.no_grad():
                if 1 in reached:
                    # Too late to tell the others in this step: they learn of it in the next.
                    self._owes_failure = self._next == len(self._buckets)
                    self._fail()
        finally:
            self._rest()

    def _make_up(self) -> None:
        """Do what the others did in a step whose forward was refused here."""
        self._absent = False
        self._exchange_buffers()
        self._next, self._pushes = 0, []
        with torch.no_grad():
            self._fail()

    def _fail(self) -> None:
        """Launch what is not launched, marked as failed."""
        while self._next < len(self._buckets):
            self._push(self._buckets[self._next], failed=True)
        self._wait()
        if self._tail.said().appeared:
            self._module_buffers.wake()

    # -- ranks that run out of inputs -----------------------------------------------------------

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients are exchanged."""
        return [trainable.parameter.data for trainable in self._trainables]

    def set_present(self, ranks: Sequence[int], *, alone: bool = False) -> None:
        """Note which ranks have gradients; ``alone`` divides sums by their number."""
        self._present = ranks
        self._scale = 1.0 / (len(ranks) if alone else self.communicator.world_size)

    def settle(self) -> None:
        """Finish a backward that raised half-way; the next forward would do it otherwise."""
        self._abandon()

    def shadow(self) -> None:
        """Add zeros to the gradients of the others' backward."""
        announce, self.announce = self.announce, None
        everything = range(len(self._trainables))
        self._next = 0
        self._pushes = []
        self._unreached.clear()
        try:
            with torch.no_grad():
                for bucket in self._buckets:
                    for part in bucket.parts:
                        part.gradients.zero_()
                    self._push(bucket, unreached=everything)
                self._wait()
                if self._tail.said().appeared:
                    self._module_buffers.wake()
        finally:
            self._pushes = []
            self.announce = announce

    def drop(self) -> None:
        """Forget the backward that runs: no rank has launched any of its buckets."""
        self._unreached.clear()
        self._rest()

    def _rest(self) -> None:
        self._state = State.IDLE
        self._ready[:] = b"\1" * len(self._ready)

    def _report(self) -> None:
        step, self._step = self._step, Step()
        if not self.listeners:
            return
        step.end = self._stamp()
        step.pushes = [
            Push(bucket.index, bucket.channel, bucket.algorithm, part.nbytes, handle)
            for bucket, part, handle in self._pushes
        ]
        self._pushes = []
        for listener in tuple(self.listeners):
            listener(step)
