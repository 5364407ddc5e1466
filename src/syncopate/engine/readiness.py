"""Readiness: which gradient is ready, which backward runs, and when a bucket's turn comes.

MG-WFBP's Algorithm 2 on autograd's own hooks: every parameter's hook marks its gradient ready,
behind the user's own hooks (``engine/accumulators.py``); a bucket is pushed when all its gradients
are ready and all earlier buckets are pushed. ``engine/exchange/`` says what a push is.

[Note: The path of a hook]
The hook runs once per parameter and backward, so its common path is four lines on captured lists.
``ready[i]`` is 1 for "nothing to do for this one": every entry is 1 while no synchronised backward
runs, and all are set to 0 when one begins. Everything out of the ordinary (the first gradient of a
backward, one that is not to be synchronised, one that is timed, one that comes twice) therefore
finds a 1 and takes the other path.

[Note: Where a backward begins]
The model's outputs carry a hook that fires when backward reaches them and decides as the *forward*
decided (inside or outside ``no_sync``), as DDP does. A backward that enters elsewhere, because a
submodule was called on its own, begins at its first ready gradient. The end is a callback of
autograd's graph task. With re-entrant checkpointing the outputs belong to the outer task, whose
end is the real one.

[Note: A backward that raises]
The other ranks launch all their buckets and wait. The failed rank notices at its next forward (or
backward), and launches the remaining buckets, marked as failed. So all ranks stay in step; the
others raise an error that names it, and no rank steps on half a gradient: those of the failed rank
are zero then. After a forward that is refused on one rank alone, that rank does the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from syncopate.collectives import Communicator
from syncopate.engine.accumulators import Accumulators, Hook
from syncopate.engine.buckets import BucketBuffers, Trainable
from syncopate.engine.exchange.base import Exchange
from syncopate.engine.exchange.parts import Missing
from syncopate.engine.model import ownership
from syncopate.engine.model.state import Buffers
from syncopate.engine.sparse_rows import SparseRows
from syncopate.engine.step import Move, State, Step, Watch
from syncopate.engine.torch_compat import (
    NO_BACKWARD,
    at_end_of_backward,
    graph_task_id,
    without_overrides,
)
from syncopate.engine.trailer import Note, Said, require_no_failure
from syncopate.errors import EngineError
from syncopate.tracing.clocks import clock_for


class Readiness:
    """Sees to it that the gradients of ``trainables`` are exchanged in every backward.

    Args:
        trainables: every parameter whose gradient is exchanged.
        buffers: the module's buffers, kept at rank 0's values.
        communicator: joins the ranks.
        sparse: parameters whose gradients have rows, and are in no bucket.

    Attributes:
        exchange: carries the gradients; not there before the first plan.
        paused: gradients of forwards that run meanwhile are not exchanged.
        held: launch every bucket at the end of backward and time the gradients.
        listeners: called with each :class:`Step` when its backward has been synchronised, on every
            rank alike, and so free to communicate.
        announce: called before each exchange, where ranks may run out of inputs.
        watch: sees every step, and asks for a new plan; None where no plan is watched.
        clock: stamps the steps.
        rows: averages the gradients that have rows.
        step: the stamps of the step that is under way; its number says how many are over.
    """

    def __init__(
        self,
        trainables: Sequence[Trainable],
        buffers: Buffers,
        communicator: Communicator,
        sparse: Sequence[Trainable] = (),
    ) -> None:
        self.paused = False
        self.held = False
        self.listeners: list[Callable[[Step], None]] = []
        self.communicator = communicator
        self.announce: Callable[[Move], None] | None = None
        self.watch: Watch | None = None
        self._present: Sequence[int] = range(communicator.world_size)
        self.clock = clock_for(trainables[0].parameter.device)
        self._stamp = self.clock.stamp
        self._trainables = tuple(trainables)
        self._module_buffers = buffers
        self._owes_failure = self._counted = self._absent = self._open = False
        self._forwards = 0
        self._unreached: set[int] = set()
        self._state = State.IDLE
        self._task = -1
        self.step = Step()
        self._ready = bytearray(b"\1" * len(trainables))
        self._timed = bytearray(len(trainables))
        self._kept = bytearray(len(trainables))
        self._bucket_of: list[int] = [0] * len(trainables)
        self._left: list[int] = []
        self._next = 0
        self._missing: Missing = ()
        self.rows = SparseRows(sparse, self._enter)
        parameters = [trainable.parameter for trainable in (*trainables, *sparse)]
        hooks = [*(self._hook(t.index) for t in trainables), *self.rows.hooks]
        self._accumulators = Accumulators(parameters, hooks)
        # [Note: A model that is dropped]
        self._exchanged = {t.name: weakref.ref[Tensor](t.parameter) for t in trainables}
        weakref.finalize(self, ownership.orphan, self._exchanged).atexit = False

    # -- set-up ---------------------------------------------------------------------------------

    def install(self, exchange: Exchange) -> None:
        """Use ``exchange`` from the next backward on; call it between iterations."""
        self.exchange = exchange
        self._buckets = exchange.buckets
        self._left[:] = [0] * len(self._buckets)
        self._sizes = [bucket.size for bucket in self._buckets]
        for bucket in self._buckets:
            for part in bucket.parts:
                for trainable in part.trainables:
                    self._bucket_of[trainable.index] = bucket.index

    def require_between(self) -> None:
        """Refuse to go on where a backward is running.

        Raises:
            EngineError: one is.
        """
        if self._state in (State.SYNC, State.HELD):
            raise EngineError("a plan can be installed between iterations, not while backward runs")

    def remove(self) -> None:
        """Take every hook off the parameters."""
        self._accumulators.remove()
        self._exchanged.clear()
        self.listeners, self.watch = [], None
        self._state = State.IDLE

    def _hook(self, index: int) -> Hook:
        # [Note: The path of a hook]
        ready, left, bucket_of = self._ready, self._left, self._bucket_of
        readiness, name = weakref.ref(self), self._trainables[index].name

        def alive() -> Readiness:
            if (found := readiness()) is None:
                raise ownership.dropped(name)
            return found

        def hook(*_: object) -> None:
            if ready[index]:
                alive()._otherwise(index)
                return
            ready[index] = 1
            bucket = bucket_of[index]
            left[bucket] -= 1
            if not left[bucket]:
                alive()._advance(bucket)

        return hook

    # -- forward --------------------------------------------------------------------------------

    def forward_begins(self, training: bool, require: Callable[[], None]) -> None:
        """Prepare for a forward in mode ``training``, unless ``require()`` refuses it."""
        if graph_task_id() != NO_BACKWARD:
            # Activation checkpointing computes the model again, in the midst of a backward.
            return
        if self._open:
            self.complete()
        if self.step.backward_end is not None:
            self._report()  # its optimizer took no step
        self._abandon()
        self._counted = training and not self.paused
        try:
            with without_overrides():  # nothing here looks at values
                require()
                self._accumulators.renew()
        except EngineError:
            self._absent = self._counted
            raise
        self.step.called = self._stamp()
        if self._counted:
            self._exchange_buffers()
        else:
            self.forward_alone(accumulates=training and self.paused)
        self.step.forward_start = self._stamp()

    def forward_alone(self, *, accumulates: bool = False) -> None:
        """Begin a forward that meets no other rank."""
        if graph_task_id() == NO_BACKWARD:
            self._module_buffers.put_late(own=accumulates)

    def forward_ends(self, outputs: Sequence[Tensor], *, bypassed: bool = False) -> None:
        """Watch what ``forward`` returned for the backward to come; local where it was bypassed."""
        begin = partial(self._reached, self.paused or bypassed, 0)
        # A leaf would keep the hook for ever, and backward through the model starts elsewhere.
        inner = [tensor for tensor in outputs if tensor.grad_fn is not None]
        counted = inner and self._counted and not bypassed
        if counted and graph_task_id() == NO_BACKWARD:
            self._forwards += 1
            self._unreached.add(self._forwards)
            begin = partial(self._reached, False, self._forwards)
        for tensor in inner:
            tensor.register_hook(begin)  # type: ignore[no-untyped-call]

    def _exchange_buffers(self) -> None:
        if self.announce is not None and self.exchange.model_buffers.meets_in_forward:
            self.announce(Move.FORWARD)
        self.exchange.refresh_buffers()

    # -- backward -------------------------------------------------------------------------------

    def _reached(self, local: bool, forward: int, _: Tensor) -> None:
        """Begin the backward of a forward, whose number :attr:`_unreached` may hold."""
        self._unreached.discard(forward)
        self._begin(local)

    def _begin(self, local: bool, entered: int | None = None) -> None:
        task = graph_task_id()
        if self._state != State.IDLE:
            if task == self._task:
                return
            self._abandon()
        self.complete()
        self.exchange.adapt(entered)
        self._task = task
        self.step.backward_start = self._stamp()
        if local:
            self._state = State.SKIP
            at_end_of_backward(self._end_skip)
            return
        self._state = State.HELD if self.held else State.SYNC
        if self.watch is not None and self.watch.due and self.announce is None:
            self.watch.begin()
        if self._state == State.SYNC:
            self._ready[:] = bytes(len(self._ready))
        else:
            self._timed[:] = bytes(len(self._timed))
        self._left[:] = self._sizes
        self._next = 0
        self.exchange.begin()
        at_end_of_backward(self._end)

    def _enter(self, entered: int | None = None) -> None:
        """Begin a backward that enters elsewhere than at the outputs, if none has begun."""
        if self._state == State.IDLE:
            self._begin(self.paused, entered)

    def _otherwise(self, index: int) -> None:
        """Handle a gradient off the common path ([Note: The path of a hook])."""
        self._enter(index)
        if self._state == State.SKIP:
            self._kept[index] = 1
        elif self._state == State.SYNC and not self._ready[index]:
            self._ready[index] = 1
            self._left[self._bucket_of[index]] -= 1
            self._advance(self._bucket_of[index])
        elif self._state == State.HELD and not self._timed[index]:
            self._timed[index] = 1
            self.step.ready.append((index, self._stamp()))
        else:
            raise EngineError(
                f"the gradient of {self._trainables[index].name!r} became ready twice in one "
                "backward. Re-entrant activation checkpointing of a shared parameter does that; "
                "use torch.utils.checkpoint with use_reentrant=False"
            )

    def _advance(self, bucket: int) -> None:
        """Launch every bucket that is complete and whose turn it is, after a gradient of one."""
        if self.listeners and not self._left[bucket]:
            self.step.arrived[bucket] = self._stamp()
        with torch.no_grad():
            while self._next < len(self._buckets) and not self._left[self._next]:
                self._push(self._buckets[self._next])

    def _push(
        self,
        bucket: BucketBuffers,
        *,
        unreached: Sequence[int] = (),
        failed: bool = False,
        empty: bool = False,
    ) -> None:
        if not self._next and self.announce is not None:
            self.announce(Move.BACKWARD)
        self._next += 1
        note = None
        if self._next == len(self._buckets):
            failed = failed or self._owes_failure
            asks = self.watch is not None and self.watch.asks and self.announce is None
            note = Note(unreached, failed, len(self._unreached), asks)
            self._owes_failure = False
            self._unreached.clear()
        self.exchange.push(bucket, note, empty=empty)

    # -- end of backward ------------------------------------------------------------------------

    def _end_skip(self) -> None:
        if self._state != State.SKIP:
            return
        self._state = State.IDLE
        step = self.step
        if self.listeners:
            step.earlier.append((step.forward_start, step.backward_start, self._stamp()))
        step.forward_start = None

    def _end(self) -> None:
        """Launch what is left; wait for everything and hand out the averages, or do so later."""
        if self._state not in (State.SYNC, State.HELD):
            return
        reached = self._timed if self._state == State.HELD else self._ready
        if 1 not in reached and not self.rows.reached:
            # torch.autograd.grad came through the outputs; no gradient was accumulated.
            self._rest()
            return
        self.step.backward_end = self._stamp()
        try:
            with torch.no_grad():
                absent = [index for index, mark in enumerate(reached) if not mark]
                self._missing = self.exchange.gradients.missing(absent)
                unreached = [index for index, _ in self._missing if not self._kept[index]]
                left = self._buckets[self._next :]
                if self._state == State.HELD:
                    # A copy beside a collective disturbs both, and a held step is to measure.
                    for bucket in left:
                        self.exchange.gathering.gather(bucket)
                for bucket in left:
                    self._push(bucket, unreached=unreached)
        finally:
            self._rest()
        self._open = True
        failed = self.rows.average(self.exchange.layout)
        if failed or self.exchange.gradients.hears_now(bool(self._missing)):
            self.complete()
        require_no_failure(failed)
        if self.exchange.gradients.ends_with_backward:
            self._report()

    def complete(self, *, stepping: bool = False) -> None:
        """Wait for the averages of the last backward; where a step comes, they may come behind it.

        Raises:
            CollectiveError: a rank is lost or late.
            EngineError: a backward failed, or never began.
        """
        if not self._open:
            self.exchange.finish()
            return
        self._open = False
        missing, self._missing = self._missing, ()
        with torch.no_grad():
            said = self.exchange.hear() if stepping else self.exchange.wait()
            self._kept[:] = bytes(len(self._kept))
            if missing:
                self.exchange.gradients.restore(missing)
            self.exchange.gradients.handed_out()
        self._heed(said)
        said.require_same_step(self._present)

    def _heed(self, said: Said) -> None:
        """Act on what the ranks say beside their gradients, on every rank alike."""
        if said.appeared:
            self._module_buffers.wake()
        if said.asking and self.watch is not None:
            self.watch.hear(said.asking)

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
                if 1 in reached or self.rows.reached:
                    # Too late to tell the others in this step: they learn of it in the next.
                    self._owes_failure = self._next == len(self._buckets) and not self.rows
                    self._fail()
        finally:
            self._rest()

    def _make_up(self) -> None:
        """Run the collectives of a step whose forward was refused on this rank alone."""
        self._absent = False
        self._exchange_buffers()
        self._next = 0
        self.exchange.begin()
        with torch.no_grad():
            self._fail()

    def _fail(self) -> None:
        """Launch the buckets that are left, marked as failed."""
        while self._next < len(self._buckets):
            self._push(self._buckets[self._next], failed=True, empty=True)
        self._settle_alone(failed=True)
        self.exchange.zero()  # sums came over what the script may have set to zero since

    def _settle_alone(self, *, failed: bool = False) -> None:
        """Wait for an exchange whose averages this rank does not need."""
        self.rows.average(self.exchange.layout, empty=True, failed=failed)
        said = self.exchange.wait()
        self._kept[:] = bytes(len(self._kept))
        self.exchange.gradients.handed_out()
        self._heed(said)

    # -- ranks that run out of inputs -----------------------------------------------------------

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients are exchanged."""
        dense = [trainable.parameter.data for trainable in self._trainables]
        return [*dense, *(weight.data for weight in self.rows.parameters)]

    def set_present(self, ranks: Sequence[int], *, alone: bool = False) -> None:
        """Note which ranks have gradients; ``alone`` divides sums by their number."""
        self._present = ranks
        count = len(ranks) if alone else self.communicator.world_size
        self.exchange.layout.scale = 1.0 / count

    def settle(self) -> None:
        """Finish a backward that raised half-way; the next forward would do it otherwise."""
        self.complete()
        self._abandon()

    def shadow(self) -> None:
        """Add zeros to the gradients of the others' backward."""
        announce, self.announce = self.announce, None
        everything = range(len(self._trainables))
        self._next = 0
        self.exchange.begin()
        self._unreached.clear()
        try:
            with torch.no_grad():
                for bucket in self._buckets:
                    for part in bucket.parts:
                        part.gradients.zero_()
                    self._push(bucket, unreached=everything, empty=True)
                self._settle_alone()
        finally:
            self.exchange.begin()
            self.announce = announce

    def drop(self) -> None:
        """Forget the backward that runs: no rank has launched any of its buckets."""
        self._unreached.clear()
        self._rest()

    def _rest(self) -> None:
        self._state = State.IDLE
        self._ready[:] = b"\1" * len(self._ready)

    def step_begins(self, optimizer: torch.optim.Optimizer, count: Callable[[], None]) -> None:
        """Take the reports on the backward, ``count`` the step, and prepare ``optimizer``."""
        self.complete(stepping=True)
        count()
        self._update_start = self._stamp()
        self.exchange.step_begins(optimizer)

    def step_ends(self, optimizer: torch.optim.Optimizer, last: bool) -> None:
        """Go on with the updated weights; steps up to the ``last`` one count as one update."""
        averages = self.exchange.pull.in_step
        updated = self._stamp() if averages else None
        self.exchange.step_ends(optimizer)
        before = self.step.update
        start = before[0] if before else self._update_start
        self.step.update = (start, updated if averages else self._stamp())
        unreported = not self.exchange.gradients.ends_with_backward
        if last and unreported and self.step.backward_end is not None:
            self._report()

    def _report(self) -> None:
        """Give the finished step to the listeners."""
        step, self.step = self.step, Step(number=self.step.number + 1)
        step.waits, step.updates = self.exchange.traffic.taken()
        if not self.exchange.gradients.ends_with_backward:
            step.closing, step.update = step.update, None
        if self.watch is not None:
            self.watch(step)
        if not self.listeners:
            return
        step.end = self._stamp()
        bucket_of, arrived = self._bucket_of, step.arrived
        step.pushes = [
            one.pushed(arrived.get(bucket_of[one.part.trainables[0].index]))
            for one in self.exchange.traffic.pushes
        ]
        step.pulls = [one.pulled() for one in self.exchange.traffic.pulls]
        self.exchange.forget()
        for listener in tuple(self.listeners):
            listener(step)
