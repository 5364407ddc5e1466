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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from syncopate.collectives import Communicator
from syncopate.engine.buckets import BucketBuffers
from syncopate.engine.exchange.layout import Launched, Layout
from syncopate.engine.exchange.parts import Missing, Row, Stepped
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.exchange.update.optimizer_state import OwnedState
from syncopate.engine.trailer import Note, Said


class Exchange:
    """One way of training, on one plan.

    Args:
        row: its parts.
        layout: of the plan and the model.

    Attributes:
        layout: as given, with the buckets in memory.
        traffic: the iteration's collectives and waits.
        buckets: in launch order, with their memory.
    """

    def __init__(self, row: Row, layout: Layout) -> None:
        layout.allocate(row.owner, row.notes)
        self.layout, self.traffic, self.buckets = layout, layout.traffic, layout.buckets
        self._gathering = layout.shared(Gathering)
        self._gradients = row.gradients(layout)
        self._push = row.push(layout)
        self._update = row.update(layout)
        self._pull = row.pull(layout)
        self._buffers = row.buffers(layout)
        self._local = row.local(layout)

    @property
    def communicator(self) -> Communicator:
        """Joins the ranks."""
        return self.layout.communicator

    @communicator.setter
    def communicator(self, communicator: Communicator) -> None:
        self.layout.communicator = communicator

    @property
    def pushes(self) -> list[Launched]:
        """The collectives of the last backward's gradients."""
        return self.traffic.pushes

    @property
    def pulls(self) -> list[Launched]:
        """The collectives of weights in the steps since."""
        return self.traffic.pulls

    @property
    def state(self) -> OwnedState | None:
        """The state of optimizers, where each rank has its own part of it."""
        return self._update.state

    @property
    def ends_with_backward(self) -> bool:
        """Whether gradients are averages as soon as backward returns."""
        return self._gradients.ends_with_backward

    @property
    def updates_whole(self) -> bool:
        """Whether every rank updates all weights, and has all of the optimizer's state."""
        return self._update.whole

    @property
    def averages_in_step(self) -> bool:
        """Whether a step waits for an average of weights once it has updated them."""
        return self._pull.in_step

    def complete_by(self, complete: Callable[[], None]) -> None:
        """Let ``complete`` finish the exchange of gradients that is under way."""
        self.layout.complete = complete

    def divide_by(self, ranks: int) -> None:
        """Let averages be sums divided by ``ranks``."""
        self.layout.scale = 1.0 / ranks

    # -- forward --------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """Begin a training forward: give this rank the source's buffers.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up()
        self._update.forward_begins()
        self._buffers.forward_begins()

    @property
    def meets_in_forward(self) -> bool:
        """Whether :meth:`refresh_buffers` meets the other ranks."""
        return self._buffers.meets_in_forward

    def ready(self) -> None:
        """Wait until every weight is current; launches nothing.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._pull.ready()

    # -- backward -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make ready for a backward."""
        self.forget()
        self._gathering.begin()
        self._push.begin()

    def forget(self) -> None:
        """Forget the collectives of the iteration before, finished or not."""
        self.traffic.forget()
        self._pull.forget()

    def adapt(self, entered: int | None = None) -> None:
        """Turn gradients of an earlier backward into this rank's contribution to the next average.

        Args:
            entered: the parameter to whose gradient this backward has added already, if any.

        Raises:
            EngineError: what was added there cannot be told from what was there before.
        """
        self._update.forward_begins()
        self._gradients.adapt(entered)

    def gather(self, bucket: BucketBuffers) -> None:
        """Bring the gradients of ``bucket`` into their places; launches nothing.

        Raises:
            EngineError: a gradient is sparse.
        """
        self._gathering.gather(bucket)

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``; a note goes along with them.

        Args:
            bucket: the next of the plan.
            note: what this rank has to say; with the last one.
            empty: take part with what is in the buffer, and leave ``parameter.grad`` alone.
        """
        self._push.push(bucket, note, empty=empty)
        if note is not None:
            self._pull.pushed()

    def wait(self) -> Said:
        """Wait for all pushes, divide the sums, and return what the ranks reported.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        said = self._push.wait()
        self._gradients.averaged()
        return said

    def hear(self) -> Said:
        """Return what the ranks reported, before a step that need not wait for the averages.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        said = self._push.hear()
        self._gradients.averaged()
        return said

    def hears_now(self, missing: bool) -> bool:
        """Return whether the end of backward waits for the ranks' reports.

        Args:
            missing: whether this backward left out parameters.
        """
        return self._gradients.hears_now(missing)

    def finish(self) -> None:
        """Wait for the work that a step left behind it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._push.finish()

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return the parameters ``indices`` and the state that :meth:`restore` needs."""
        return self._gradients.missing(indices)

    def restore(self, missing: Missing) -> None:
        """Leave gradients untouched that no rank reached, and hand out the others' averages."""
        self._gradients.restore(missing)

    def handed_out(self) -> None:
        """Note that every parameter has its gradient of this backward."""
        self._gradients.handed_out()

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: Optimizer) -> None:
        """Prepare for a step of ``optimizer``.

        Raises:
            EngineError: the exchange cannot go with this optimizer.
        """
        self._make_up(optimizer)
        self._update.begin(optimizer)

    def step_ends(self, optimizer: Optimizer) -> None:
        """Send the updated weights to the ranks that need them.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._close(self._update.end(optimizer))

    def _make_up(self, optimizer: Optimizer | None = None) -> None:
        """After a failed step, run the collectives that the other ranks ran."""
        self._close(self._update.interrupted(optimizer))

    def _close(self, stepped: Stepped | None) -> None:
        if stepped is not None:
            self._buffers.step_ends(stepped)
            self._pull.launch(stepped)

    # -- weights of each rank's own -------------------------------------------------------------

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the weights of all ranks in the block; all ranks enter it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up()
        with self._local.global_weights():
            yield

    def alike(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return states of optimizers as all ranks save them; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        return self._local.alike(states)

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own state; empty where all ranks have the same weights.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up()
        return self._local.local_state()

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`local_state`, after model and optimizer were loaded.

        Raises:
            EngineError: there is no place for it.
        """
        self._local.load_local_state(state)

    def leave(self) -> None:
        """Give parameters and optimizers back as they are without the exchange; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        with self.layout.ending:
            self._make_up()
            self._update.put_back()
            self._local.leave()
            self._pull.ready()
            self._update.leave()
            self._pull.leave()
