"""Base: one way of training, as the engine calls it; a row of ``kinds`` lists its parts.

In every synchronised backward the engine calls :meth:`Exchange.begin`; then for each bucket, in the
order of the plan, :meth:`Exchange.push`, the last time with this rank's report; then
:meth:`Exchange.wait`, at the end of backward, or later where the sums are needed later. An
optimizer's step is between :meth:`Exchange.step_begins` and :meth:`Exchange.step_ends`.

[Note: no collective in a forward]
An exchange launches collectives only in backward and in the optimizer's step, which all ranks run.
A forward only waits for them, so one rank alone may evaluate or save. The one exception are models
with buffers under ``allreduce`` and ``decoupled``: as in DDP, their training forwards begin with an
exchange of buffers.

[Note: a step that raised]
After a failed step, this rank runs the collectives that the other ranks ran: they ended their step
and launched its pulls. It does so before its next forward, step or other collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.optim import Optimizer

from syncopate.engine.buckets import BucketBuffers
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Row, Stepped
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.trailer import Note, Said


class Exchange:
    """One way of training, on one plan.

    Methods that wait for other ranks raise CollectiveError where one is lost or late.

    Args:
        row: its parts.
        layout: of the plan and the model.

    Attributes:
        layout: as given, with the buckets in memory.
        traffic: the iteration's collectives and waits.
        buckets: in launch order, with their memory.
        gathering: brings gradients into their places.
        gradients: what a script finds at ``parameter.grad``.
        update: updates weights.
        pull: brings weights back, or averages.
        model_buffers: says when all ranks get the model's buffers of one.
        local: has the weights that are a rank's own.
    """

    def __init__(self, row: Row, layout: Layout) -> None:
        layout.allocate(row.owner, row.notes)
        self.layout, self.traffic, self.buckets = layout, layout.traffic, layout.buckets
        self.gathering = layout.shared(Gathering)
        self.gradients = row.gradients(layout)
        self._push = row.push(layout)
        self.update = row.update(layout)
        self.pull = row.pull(layout)
        self.model_buffers = row.buffers(layout)
        self.local = row.local(layout)

    # -- forward --------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """Begin a training forward: give this rank the source's buffers."""
        self._make_up()
        self.update.forward_begins()
        self.model_buffers.forward_begins()

    # -- backward -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make ready for a backward."""
        self.forget()
        self.pull.begin()
        self.gathering.begin()
        self._push.begin()

    def forget(self) -> None:
        """Forget the collectives of the iteration before, finished or not."""
        self.traffic.forget()
        self.pull.forget()

    def adapt(self, entered: int | None = None) -> None:
        """Turn gradients of an earlier backward into this rank's contribution to the next average.

        Args:
            entered: the parameter to whose gradient this backward has added already, if any.

        Raises:
            EngineError: what was added there cannot be told from what was there before.
        """
        self.update.forward_begins()
        self.gradients.adapt(entered)

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``; a note goes along with them.

        Args:
            bucket: the next of the plan.
            note: what this rank has to say; with the last one.
            empty: take part with what is in the buffer, and leave ``parameter.grad`` alone.
        """
        self._push.push(bucket, note, empty=empty)
        if note is not None:
            self.pull.pushed()
            self.model_buffers.pushed()

    def wait(self) -> Said:
        """Wait for all pushes, divide the sums, and return what the ranks reported."""
        said = self._push.wait()
        self.gradients.averaged()
        return said

    def hear(self) -> Said:
        """Return what the ranks reported, before a step that need not wait for the averages."""
        said = self._push.hear()
        self.gradients.averaged()
        return said

    def zero(self) -> None:
        """Set all gradients to zero, once those are here that are on their way."""
        self.pull.ready()
        for gradient in self.layout.grads:
            gradient.zero_()

    def finish(self) -> None:
        """Wait for the work that a step left behind it."""
        self._push.finish()

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: Optimizer) -> None:
        """Prepare for a step of ``optimizer``.

        Raises:
            EngineError: the exchange cannot go with this optimizer.
        """
        self._make_up(optimizer)
        self.update.begin(optimizer)

    def step_ends(self, optimizer: Optimizer) -> None:
        """Send the updated weights to the ranks that need them."""
        self._close(self.update.end(optimizer))

    def _make_up(self, optimizer: Optimizer | None = None) -> None:
        """After a failed step, run the collectives that the other ranks ran."""
        self._close(self.update.interrupted(optimizer))

    def _close(self, stepped: Stepped | None) -> None:
        if stepped is not None:
            self.model_buffers.step_ends(stepped)
            self.pull.launch(stepped)

    # -- weights of each rank's own -------------------------------------------------------------

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the weights of all ranks in the block; all ranks enter it."""
        self._make_up()
        with self.local.global_weights():
            yield

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own state; empty where all ranks have the same weights."""
        self._make_up()
        return self.local.local_state()

    def leave(self) -> None:
        """Give parameters and optimizers back as without the exchange; all ranks call it.

        Where a rank is lost, what asks no other rank is done all the same.
        """
        steps = (
            self._make_up,
            self.update.put_back,
            self.local.leave,
            self.pull.ready,
            self.update.leave,
            self.pull.leave,
        )
        with self.layout.ending, ExitStack() as stack:
            for step in reversed(steps):
                stack.callback(step)
