"""Base: what every exchange does for the engine.

In every synchronised backward the engine calls, in this order: :meth:`Exchange.begin`; for each
bucket, in the order of the plan, :meth:`Exchange.push`, with what this rank has to say along with
the last one; and :meth:`Exchange.wait`, at the end of backward or, where nobody needs the sums
before, later. An optimizer's step is between :meth:`Exchange.step_begins` and
:meth:`Exchange.step_ends`.

[Note: no collective in a forward]
What an exchange launches it launches in backward or in the optimizer's step, where all ranks come
by. A forward only waits for what was launched there, so that one rank alone may evaluate or save.
The one exception is the ``allreduce`` exchange of a model with buffers: as in DDP, its training
forwards begin with an exchange of buffers.

[Note: gathered aside]
Gradients are copied into their bucket on a thread of their own, so that backward goes on at once.
The collective's own thread waits for the copy when its turn has come. Where backward ends before
the averages are there, it ends when the copies are: from then on ``parameter.grad`` is what it is
to be, whoever looks first. On a device the copy is on the stream of backward, where it belongs.
"""

# ruff: noqa: B027  (what an exchange has no need of does nothing)

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from syncopate.collectives import Communicator
from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, Trainable
from syncopate.engine.checks.agreement import explained
from syncopate.engine.exchange.optimizer_state import OwnedState
from syncopate.engine.model.state import Buffers
from syncopate.engine.step import Ran, Sent
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError, EngineError
from syncopate.plan import Plan
from syncopate.units import MIB

ASIDE_BYTES = 2 * MIB
"""A smaller buffer is gathered before another thread has woken up on a busy machine."""


class Launched(NamedTuple):
    """A collective on its way, what it carries, and what knows when it ran."""

    part: FlatBuffer
    message: Message
    handle: Ran
    pulled_nbytes: int | None = None
    """Bytes on the wire where it carries less than its message."""

    def pushed(self, ready: Any = None) -> Sent:
        """Return it for the record of a step, as one that carried gradients, ``ready`` then."""
        nbytes = self.message.wire.numel() * self.part.wire_dtype.itemsize
        return Sent(self.message.bucket, self.message.push, nbytes, self.handle, ready)

    def pulled(self) -> Sent:
        """Return it for the record of a step, as one that carried weights."""
        assert self.message.pull is not None
        nbytes = self.message.wire.nbytes if self.pulled_nbytes is None else self.pulled_nbytes
        return Sent(self.message.bucket, self.message.pull, nbytes, self.handle)


class Note(NamedTuple):
    """What a rank says along with its gradients.

    Attributes:
        unreached: indices of the parameters that its backward did not reach.
        failed: whether its backward failed.
        forwards: how many of its forwards had no part in this backward.
    """

    unreached: Sequence[int] = ()
    failed: bool = False
    forwards: int = 0


Missing = Sequence[tuple[int, Tensor | None]]
"""Parameters that this rank's backward did not reach, with what their gradient was."""


class Exchange(ABC):
    """One way of training, on one plan.

    Args:
        plan: of this exchange; it fits the parameters.
        trainables: every parameter whose gradient is exchanged.
        communicator: joins the ranks; gets as many channels as the plan has.
        buffers: the model's buffers.
        optimizers: whatever trains the parameters.

    Attributes:
        buckets: in launch order, with their memory.
        grads: per parameter what its gradient becomes, on the memory of its bucket.
        pushes: what was launched of this backward's gradients.
        pulls: what was launched of the weights in the steps since.
        waits: bucket, begin and end of each wait for weights since the last step, seconds by
            ``time.perf_counter``; whoever records steps takes them.
        updates: bucket, begin and end of each update that was left to a forward, likewise.
        communicator: as given.
        complete: finishes the exchange of gradients that is under way; set by who uses this.
    """

    state: OwnedState | None = None
    """The state of optimizers, where each rank has its own part of it."""

    ends_with_backward: bool
    """Whether gradients are averages as soon as backward returns."""

    updates_whole = True
    """Whether every rank updates all weights, and has all of the optimizer's state."""

    averages_in_step = False
    """Whether a step waits for an average of weights once it has updated them."""

    def __init__(
        self,
        plan: Plan,
        trainables: Sequence[Trainable],
        communicator: Communicator,
        buffers: Buffers,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        communicator.widen(plan.channels)
        self.communicator = communicator
        self.complete: Callable[[], None] = _nothing
        self._copier: ThreadPoolExecutor | None = None
        self._copies: list[Callable[[], object]] = []
        self.pushes: list[Launched] = []
        self.pulls: list[Launched] = []
        self.waits: list[tuple[int, float, float]] = []
        self.updates: list[tuple[int, float, float]] = []
        self._module_buffers = buffers
        self._trainables = tuple(trainables)
        self._prepare(optimizers)
        self.buckets, self._tail = self._allocate(plan)
        self.grads: list[Tensor] = [torch.empty(0)] * len(trainables)
        self._place_of: dict[int, tuple[FlatBuffer, int]] = {}
        for bucket in self.buckets:
            for part in bucket.parts:
                for place, trainable in enumerate(part.trainables):
                    self.grads[trainable.index] = part.grads[place]
                    self._place_of[trainable.index] = (part, place)
        self._unheld = self._references()
        self.divide_by(communicator.world_size)
        self._take_over()

    def _prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Learn what the layout of memory depends on, before any is allocated."""

    @abstractmethod
    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        """Return the buckets with their memory, and what says the notes of this rank."""

    def _take_over(self) -> None:
        """Take the parameters over, whose gradients have their places by now."""

    def divide_by(self, ranks: int) -> None:
        """Let averages be sums divided by ``ranks``."""
        self._scale = 1.0 / ranks

    # -- forward --------------------------------------------------------------------------------

    @abstractmethod
    def refresh_buffers(self) -> None:
        """Begin a training forward: give this rank the source's buffers.

        Raises:
            CollectiveError: a rank is lost or late.
        """

    @property
    @abstractmethod
    def meets_in_forward(self) -> bool:
        """Whether :meth:`refresh_buffers` meets the other ranks."""

    def ready(self) -> None:
        """Wait until every weight is current; launches nothing.

        Raises:
            CollectiveError: a rank is lost or late.
        """

    # -- backward -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make ready for a backward."""
        self.forget()

    def forget(self) -> None:
        """Forget what the iteration before launched, whether it has arrived or not."""
        self.pushes, self.pulls, self._copies = [], [], []

    def adapt(self, entered: int | None = None) -> None:
        """Make gradients that are still there a contribution of this rank to the next average.

        Args:
            entered: the parameter to whose gradient this backward has added already, if any.

        Raises:
            EngineError: what was added there cannot be told from what was there before.
        """

    def _let_go(self) -> None:
        """Leave the gradients of the last step to a script that keeps them over ``zero_grad``.

        They get memory of their own; what the next backward makes gets other views of the bucket.
        """
        counts = self._references()
        for index in [n for n, one in enumerate(counts) if one > self._unheld[n]]:
            part, place = self._place_of[index]
            before = self.grads[index]
            if self._trainables[index].parameter.grad is before:
                continue
            view = before.detach()
            before.data = before.clone()
            part.views[place] = part.grads[place] = self.grads[index] = view

    def _references(self) -> list[int]:
        """Return how many hold each of :attr:`grads`."""
        return list(map(sys.getrefcount, self.grads))

    def gather(self, bucket: BucketBuffers) -> None:
        """Bring the gradients of ``bucket`` into their places.

        Raises:
            EngineError: a gradient is sparse.
        """
        for part in bucket.parts:
            for gather in part.gathering():
                gather()

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``; a note rides along with them.

        Args:
            bucket: the next of the plan.
            note: what this rank has to say; with the last one.
            empty: take part with whatever is in the buffer, and leave ``parameter.grad`` alone.
        """
        if note is not None:
            self._tail.fill(note.unreached, failed=note.failed, forwards=note.forwards)
        self._launch(bucket, empty=empty)

    @abstractmethod
    def wait(self) -> Said:
        """Wait for all pushes, make averages of sums, and return what the ranks said.

        Raises:
            CollectiveError: a rank is lost or late.
        """

    def hear(self) -> Said:
        """Return what the ranks said before a step, behind which the rest may come.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        return self.wait()

    def hears_now(self, missing: bool) -> bool:
        """Return whether the end of backward waits for what the ranks say, before any step.

        Args:
            missing: whether this backward left out parameters.
        """
        return self.ends_with_backward

    def finish(self) -> None:
        """Wait for what a step left to come behind it.

        Raises:
            CollectiveError: a rank is lost or late.
        """

    @abstractmethod
    def missing(self, indices: Sequence[int]) -> Missing:
        """Return the parameters ``indices`` with what :meth:`restore` needs of them."""

    @abstractmethod
    def restore(self, missing: Missing) -> None:
        """Leave gradients untouched that no rank reached, and hand out the others' averages."""

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Prepare for a step of ``optimizer``.

        Raises:
            EngineError: the exchange cannot go with this optimizer.
        """

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the updated weights to those who need them."""

    # -- weights of each rank's own -------------------------------------------------------------

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the weights of all ranks in the block; all ranks enter it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        yield

    def alike(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return states of optimizers as all ranks save them; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        return states

    def local_state(self) -> dict[str, Any]:
        """Return what this rank alone knows; nothing, where all have the same weights."""
        return {}

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what :meth:`local_state` returned.

        Raises:
            EngineError: there is no place for it.
        """
        if state.get("parts"):
            raise EngineError(
                "this is the local state of a training with a delay, and the plan at work has "
                "none; give distribute(delay=...), or go on from the global weights without it"
            )

    def _await(self, works: Sequence[Work], part: FlatBuffer) -> None:
        """Wait for what brings the weights of a flat buffer, and note how long it took."""
        began_s = time.perf_counter()
        for work in works:
            arrived(work)
        if works and part.gradients.is_cpu:  # on a device the stream waits, and not the host
            self.waits.append((part.messages[0].bucket, began_s, time.perf_counter()))

    def leave(self) -> None:
        """Give parameters and optimizers back as they are without the exchange; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        if self._copier is not None:
            self._copier.shutdown()

    def _launch(self, bucket: BucketBuffers, *, empty: bool) -> None:
        """Launch the push of ``bucket``; its gradients are gathered meanwhile."""
        for part in bucket.parts:
            gathering = [] if empty else self._gathering(part)
            aside = part.gradients.is_cpu and part.nbytes >= ASIDE_BYTES
            for place, message in enumerate(part.messages):
                copied = None
                if gathering and aside:
                    copied = self._aside(gathering[place])
                elif gathering:
                    gathering[place]()
                self._launch_message(part, message, copied)

    def _launch_message(
        self, part: FlatBuffer, message: Message, copied: Callable[[], object] | None = None
    ) -> None:
        """Launch what ``message`` carries, which is there when ``copied()`` returns, or now."""
        scaled = None
        if part.averaged_before:
            scaled = partial(message.gradients.mul_, self._scale)
        handle = self.communicator.run(
            message.push,
            message.wire,
            bounds=message.bounds,
            before=partial(_both, copied, scaled) if copied or scaled else None,
            async_op=True,
            wire_dtype=part.wire_dtype,
        )
        self.pushes.append(Launched(part, message, handle))

    def _gathering(self, part: FlatBuffer) -> list[Callable[[], None]]:
        """Return what brings gradients into their places, one call a message; or nothing."""
        return part.gathering()

    def _aside(self, gather: Callable[[], None]) -> Callable[[], object]:
        """Begin to gather beside the backward, one after the other; return what waits for it."""
        if self._copier is None:
            self._copier = ThreadPoolExecutor(1, thread_name_prefix="syncopate-gather")
        copied = self._copier.submit(gather).result
        self._copies.append(copied)
        return copied


def _both(copied: Callable[[], object] | None, scaled: Callable[[], object] | None) -> None:
    if copied is not None:
        copied()
    if scaled is not None:
        scaled()


class Work(Protocol):
    """What weights come from, on its way."""

    def wait(self) -> None:
        """Return when it is done."""


def arrived(handle: Work) -> None:
    """Wait for a collective of the engine, or for work that depends on one.

    Raises:
        CollectiveError: a rank is lost or late; says what that means for the training.
    """
    try:
        handle.wait()
    except CollectiveError as error:
        raise explained(error) from error


def _nothing() -> None:
    """No exchange is under way before anybody uses it."""
