"""Parts: the interfaces of the parts that an exchange is composed of.

A part is made from a :class:`~syncopate.engine.exchange.layout.Layout` and knows no other part. It
inherits a method that does nothing for each call in which it has nothing to do. Methods that wait
for other ranks raise CollectiveError where one is lost or late; methods that refuse a program raise
EngineError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from syncopate.engine.buckets import BucketBuffers
from syncopate.engine.exchange.layout import Layout, Owner
from syncopate.engine.exchange.update.optimizer_state import OwnedState
from syncopate.engine.trailer import Note, Said, Trailer
from syncopate.errors import EngineError

Missing = Sequence[tuple[int, Tensor | None]]
"""Parameters that this rank's backward did not reach, with what their gradient was."""


class Stepped(NamedTuple):
    """A step that is over.

    Attributes:
        optimizer: whose.
        parts: identities of the flat buffers whose weights it may have changed on their owner.
    """

    optimizer: Optimizer
    parts: frozenset[int] = frozenset()


class Part:
    """A part of an exchange."""

    def __init__(self, layout: Layout) -> None:
        """Need nothing of the layout."""


class Push(Part, ABC):
    """Brings gradients to the ranks that update by them."""

    def begin(self) -> None:
        """Make ready for a backward that is exchanged."""

    @abstractmethod
    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``; see :meth:`Exchange.push`."""

    @abstractmethod
    def wait(self) -> Said:
        """Wait for what was launched, and return what the ranks said."""

    def hear(self) -> Said:
        """Return what the ranks reported, before a step that need not wait for the averages."""
        return self.wait()

    def finish(self) -> None:
        """Wait for the work that a step left behind it."""


class Gradients(Part, ABC):
    """What ``parameter.grad`` is between a backward and the next.

    Attributes:
        ends_with_backward: whether gradients are averages as soon as backward returns.
    """

    ends_with_backward: bool = False

    def adapt(self, entered: int | None = None) -> None:
        """Turn gradients of an earlier backward into a contribution; see :meth:`Exchange.adapt`."""

    def hears_now(self, missing: bool) -> bool:
        """Return whether backward ends with what the ranks say, where it left out parameters."""
        return self.ends_with_backward

    @abstractmethod
    def missing(self, indices: Sequence[int]) -> Missing:
        """Return the parameters ``indices`` and the state that :meth:`restore` needs."""

    def restore(self, missing: Missing) -> None:
        """Leave gradients untouched that no rank reached, and hand out the others' averages."""

    def averaged(self) -> None:
        """Note that gradients are averages from now on."""

    def handed_out(self) -> None:
        """Note that every parameter has its gradient of this backward."""


class Update(Part):
    """Updates weights in an optimizer's step; every rank updates all of them by default.

    Attributes:
        state: the state of optimizers, where each rank updates a part of the weights, and has its
            own part of it; None where each updates all.
    """

    state: OwnedState | None = None

    def forward_begins(self) -> None:
        """Note that no step is under way."""

    def begin(self, optimizer: Optimizer) -> None:
        """Prepare for a step of ``optimizer``."""

    def end(self, optimizer: Optimizer) -> Stepped | None:
        """Return the finished step; None where no rank needs its weights."""
        return Stepped(optimizer)

    def interrupted(self, optimizer: Optimizer | None = None) -> Stepped | None:
        """Return the step that raised on this rank, as a finished one; None if none did.

        Args:
            optimizer: about to step.
        """
        return None

    def put_back(self) -> None:
        """Give parameters with deferred updates their gradients back; asks no rank."""

    def leave(self) -> None:
        """Give optimizers whole state; all ranks call it."""


class Pull(Part):
    """Brings updated weights, or averages, to every rank.

    Attributes:
        in_step: whether :meth:`launch` waits for what it launches.
    """

    in_step: bool = False

    def begin(self) -> None:
        """Make ready for a backward that is exchanged: its gradients fill the buckets anew."""

    def pushed(self) -> None:
        """Launch the pulls that go behind the pushes of a backward, once these are launched."""

    def launch(self, stepped: Stepped) -> None:
        """Launch the pulls that go behind a step."""

    def forget(self) -> None:
        """Note that the record of launched collectives was cleared."""

    def ready(self) -> None:
        """Wait until every weight is current; launches nothing."""

    def leave(self) -> None:
        """Give every parameter memory of its own."""


class ModelBuffers(Part):
    """Says when all ranks get the buffers of one, such as the statistics of normalisation.

    By default they never do: every rank keeps its own.
    """

    @property
    def meets_in_forward(self) -> bool:
        """Whether a training forward begins with an exchange with other ranks."""
        return False

    def forward_begins(self) -> None:
        """Begin a training forward."""

    def pushed(self) -> None:
        """Note that the pushes of a backward are launched."""

    def step_ends(self, stepped: Stepped) -> None:
        """End a step, as all ranks do."""


class Local(Part):
    """The weights that a rank has of its own; none by default."""

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the weights of all ranks in the block; all ranks enter it."""
        yield

    def alike(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return states of optimizers as all ranks save them; all ranks call it."""
        return states

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own state."""
        return {}

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`local_state`."""
        if state.get("parts"):
            raise EngineError(
                "this is the local state of a training with a delay, and the plan at work has "
                "none; give distribute(delay=...), or go on from the global weights without it"
            )

    def leave(self) -> None:
        """Let parameters hold the weights of all ranks for good; all ranks call it."""


class Row(NamedTuple):
    """The parts of an exchange: for each a function that makes it from a layout.

    Attributes:
        owner: says which rank owns which sums of gradients, and which weights.
        push: brings gradients there.
        update: updates weights.
        pull: brings weights back, or averages.
        gradients: is what a script finds at ``parameter.grad``.
        buffers: says when all ranks get the model's buffers of one.
        local: has the weights that are a rank's own.
        notes: carries what the ranks say besides.
    """

    owner: Callable[[Layout], Owner]
    push: Callable[[Layout], Push]
    update: Callable[[Layout], Update]
    pull: Callable[[Layout], Pull]
    gradients: Callable[[Layout], Gradients]
    buffers: Callable[[Layout], ModelBuffers]
    local: Callable[[Layout], Local]
    notes: Callable[[Layout], Trailer]
