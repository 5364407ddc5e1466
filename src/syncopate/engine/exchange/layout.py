"""Layout: a plan's buckets in memory, and the objects that the parts of one exchange share.

Every part of an exchange is made from its layout and holds no other part. What two parts need both
is an object that they share (:meth:`Layout.shared`), made when the first of them asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from syncopate.artifacts.plan import Plan, pulled_in
from syncopate.collectives import Communicator
from syncopate.engine.buckets import (
    BucketBuffers,
    FlatBuffer,
    Message,
    Place,
    Trainable,
    build_buckets,
)
from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange.optimizers import Trained, trained_by
from syncopate.engine.exchange.serving.servers import Servers
from syncopate.engine.model.state import Buffers
from syncopate.engine.step import Ran, Sent
from syncopate.engine.trailer import Trailer

T = TypeVar("T")


class Launched(NamedTuple):
    """A collective on its way, its message, and the handle that knows when it ran."""

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


@dataclass
class Traffic:
    """The collectives of an iteration, and its waits.

    Attributes:
        pushes: what was launched of the last backward's gradients.
        pulls: what was launched of the weights since.
        waits: bucket, begin and end of each wait for weights since the last step, seconds by
            ``time.perf_counter``; the record of a step takes them.
        updates: bucket, begin and end of each update that was left to a forward, likewise.
    """

    pushes: list[Launched] = field(default_factory=list)
    pulls: list[Launched] = field(default_factory=list)
    waits: list[tuple[int, float, float]] = field(default_factory=list)
    updates: list[tuple[int, float, float]] = field(default_factory=list)

    def forget(self) -> None:
        """Forget the collectives, finished or not."""
        self.pushes, self.pulls = [], []

    def taken(self) -> tuple[list[tuple[int, float, float]], list[tuple[int, float, float]]]:
        """Return the waits and the updates, which are forgotten here."""
        found = self.waits, self.updates
        self.waits, self.updates = [], []
        return found


class Owner:
    """Says which rank owns what of each message: averages its sums, and may update its weights.

    By default every rank owns all of it, as an all-reduce leaves it.
    """

    def __init__(self, layout: Layout) -> None:
        self._ranks = layout.communicator

    def place(self, trainable: Trainable) -> Place:
        """Return where in its bucket a gradient lies."""
        return Place()

    def cut(self, buckets: Sequence[BucketBuffers]) -> None:
        """Say in the messages of ``buckets`` where each rank's share begins, and at which root."""

    def own(self, message: Message) -> tuple[int, int]:
        """Return this rank's range of ``message.gradients``: the first, and one past the last."""
        if message.bounds is None:
            return 0, message.gradients.numel()
        return message.bounds[self._ranks.rank], message.bounds[self._ranks.rank + 1]


class Layout:
    """The memory, communicator and shared objects that the parts of one exchange get.

    Args:
        plan: of the exchange; it fits the parameters.
        trainables: every parameter whose gradient is exchanged.
        communicator: joins the ranks; gets as many channels as the plan has.
        buffers: the model's buffers.
        optimizers: those that train the parameters.
        servers: parameter servers that hold the weights; None where ranks do.

    Attributes:
        plan, trainables, communicator, buffers, optimizers: as given.
        index: identity of a parameter -> its place in ``trainables``.
        owner: says which rank owns which elements.
        notes: carries what the ranks say besides.
        buckets: in launch order, with their memory.
        parts: their flat buffers.
        grads: per parameter what its gradient becomes, on the memory of its bucket.
        places: per parameter its flat buffer, and its place among those there.
        pulled_in: buckets of the plan in the order in which they are pulled.
        pulled: the pulled messages and their flat buffers in that order: what forward needs first.
        traffic: what the iteration launched.
        scale: averages are sums times this.
        complete: finishes the exchange of gradients that is under way; set by the engine.
        ending: what ends threads and takes hooks away, and waits for no rank.
    """

    def __init__(
        self,
        plan: Plan,
        trainables: Sequence[Trainable],
        communicator: Communicator,
        buffers: Buffers,
        *,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        servers: Servers | None = None,
    ) -> None:
        communicator.widen(plan.channels)
        self.plan, self.trainables = plan, tuple(trainables)
        self.communicator, self.buffers = communicator, buffers
        self.optimizers = tuple(optimizers)
        self.index = {id(trainable.parameter): trainable.index for trainable in trainables}
        self.traffic = Traffic()
        self.scale = 1.0 / communicator.world_size
        self.complete: Callable[[], None] = nothing
        self.ending = ExitStack()
        self._servers = servers
        self._shared: dict[Any, Any] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self.ending.callback(self._let_go)

    def allocate(
        self, owner: Callable[[Layout], Owner], notes: Callable[[Layout], Trailer]
    ) -> None:
        """Allocate the buckets; ``owner`` decides where in them gradients lie."""
        self.owner, self.notes = owner(self), notes(self)
        self.buckets = build_buckets(self.plan, self.trainables, self.notes.rides, self.owner.place)
        self.notes.find_place(self.buckets)
        self.owner.cut(self.buckets)
        self.parts = tuple(chain(*(bucket.parts for bucket in self.buckets)))
        self.grads: list[Tensor] = [torch.empty(0)] * len(self.trainables)
        self.places: dict[int, tuple[FlatBuffer, int]] = {}
        for part in self.parts:
            for place, trainable in enumerate(part.trainables):
                self.grads[trainable.index] = part.grads[place]
                self.places[trainable.index] = (part, place)
        self.pulled_in = pulled_in(self.plan.pull_order, len(self.plan.buckets))
        turns = {bucket: turn for turn, bucket in enumerate(self.pulled_in)}
        pulled = [(part, m) for part in self.parts for m in part.messages if m.pull is not None]
        self.pulled = sorted(pulled, key=lambda one: turns[one[1].bucket])

    def shared(self, kind: Callable[[Layout], T]) -> T:
        """Return the one ``kind(self)`` of this exchange, made when it is first asked for."""
        if kind not in self._shared:
            self._shared[kind] = kind(self)
        found: T = self._shared[kind]
        return found

    def _let_go(self) -> None:
        """Drop all references back to this layout."""
        self._shared.clear()
        del self.notes

    def thread(self, name: str) -> ThreadPoolExecutor:
        """Return the one thread of that name, which ends with the exchange."""
        if name not in self._threads:
            made = ThreadPoolExecutor(1, thread_name_prefix=f"syncopate-{name}")
            self._threads[name] = made
            self.ending.callback(made.shutdown)
        return self._threads[name]

    def lend(self, holder: object, name: str, value: object) -> None:
        """Let an attribute of ``holder`` be ``value`` until the exchange ends.

        So what knows of each other then is freed with its memory, without the garbage collector.
        """
        self.ending.callback(setattr, holder, name, getattr(holder, name, None))
        setattr(holder, name, value)

    def gather(self, part: FlatBuffer, flat: Tensor) -> None:
        """Bring what owners have of ``flat``, as long as a flat buffer, here; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        with explaining():
            for message in part.messages:
                if message.pull is not None:
                    held = flat[message.start : message.stop]
                    self.communicator.run(message.pull, held, bounds=message.bounds)

    @property
    def servers(self) -> Servers:
        """The parameter servers that hold the weights."""
        assert self._servers is not None
        return self._servers

    @cached_property
    def trained(self) -> tuple[Trained, ...]:
        """Per parameter its optimizer, and how that updates it.

        Raises:
            EngineError: it is not known how an optimizer may be spread over ranks.
        """
        return trained_by(self.trainables, self.optimizers)


class Work(Protocol):
    """A collective, or other work, that brings weights."""

    def wait(self) -> None:
        """Return when it is done."""


def arrived(handle: Work) -> None:
    """Wait for a collective of the engine, or for work that depends on one.

    Raises:
        CollectiveError: a rank is lost or late; says what that means for the training.
    """
    with explaining():
        handle.wait()


def nothing(*_: object) -> None:
    """Do nothing, where no part says otherwise."""
