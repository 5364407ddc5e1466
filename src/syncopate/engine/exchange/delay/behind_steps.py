"""Behind steps: the parts of a sharded exchange with a delay whose work ends after its steps.

These are its pushes, the update of the global weights, and pulls (``deferred``).

[Note: launched aside] Gathering a bucket, keeping this rank's own gradients and launching the
bucket takes Python half a millisecond, in which backward would stand still. So the thread that
gathers (``push/gathering``, [Note: gathered aside]) does all three, in the order of the plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.optim import Optimizer

from syncopate.collectives.handle import Handle
from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.delay.deferred import Due, Ending, Held, may_go_on_behind, piece_step
from syncopate.engine.exchange.delay.iterations import count_iteration
from syncopate.engine.exchange.delay.stages import Stages
from syncopate.engine.exchange.layout import Launched, Layout, Work
from syncopate.engine.exchange.notes import unsaid
from syncopate.engine.exchange.parts import Push
from syncopate.engine.exchange.proxies.gradients import Partial
from syncopate.engine.exchange.pull.weights import FromOwners
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.exchange.push.reduced import Reduced
from syncopate.engine.exchange.update.optimizer_state import OwnedState
from syncopate.engine.exchange.update.pieces import Pieces
from syncopate.engine.exchange.update.sharded_update import Beside
from syncopate.engine.trailer import Note, Said
from syncopate.errors import EngineError


class Behind:
    """The work that an exchange does behind its steps.

    Attributes:
        ending: the end of the last step; None where it is over.
        aside: how many channels pulls of their own have; see ``deferred``.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._stages = layout, layout.shared(Stages)
        plan, order = layout.plan, layout.pulled_in
        on_cpu = not any(trainable.parameter.is_cuda for trainable in layout.trainables)
        self._behind_pushes = set(order[len(order) - plan.pulled_behind :]) if on_cpu else set()
        # `deferred`, [Note: channels of their own]; without slack steps wait for pushes anyway.
        ends_behind = on_cpu and self._stages.delay.has_slack and not layout.buffers.exchanged
        self.aside = plan.channels if ends_behind else 0
        layout.communicator.widen(plan.channels + self.aside)
        self.ending: Ending | None = None
        self._held: list[Held] = []
        self._due: list[Due] = []
        layout.lend(self._stages, "finish", self.finish)
        layout.lend(layout.shared(OwnedState), "finish", self.finish)

    def wait(self) -> None:
        """Wait for the end of the last step, whose result no backward has taken."""
        if self.ending is not None:
            self.ending.wait()

    def finish(self) -> None:
        """Wait for the work behind the last step; `deferred`, [Note: a failure ... late].

        Raises:
            CollectiveError: a rank is lost or late.
        """
        ending, self.ending = self.ending, None
        if ending is None:
            return
        said = ending.wait()
        if ending.heard:
            return
        self._layout.notes.deliver()
        if said.appeared:
            self._layout.buffers.wake()
        try:
            said.require_same_step(range(self._layout.communicator.world_size))
        except EngineError as error:
            self._drop_pulls()
            count_iteration(self._layout.optimizers[0], -1)
            warnings.warn(f"the last step does not count: {error}", RuntimeWarning, stacklevel=2)

    # -- pulls ----------------------------------------------------------------------------------

    def pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        """Gather the global weights that ``message`` carries: now, or when their turn comes."""
        if message.bucket in self._behind_pushes:
            self._held.append(Held(lambda: self._pull_now(part, message, flat)))
            return self._held[-1]
        aside = self.aside  # all ranks take the same channels, heard or not
        if self.ending is None or self.ending.heard:
            return self._pull_now(part, message, flat, aside)
        due = Due(partial(self._gather, message, flat, aside))
        self._due.append(due)
        self._layout.traffic.pulls.append(Launched(part, message, due))
        return due

    def _pull_now(self, part: FlatBuffer, message: Message, flat: Tensor, aside: int = 0) -> Work:
        before = None if self.ending is None else self.ending.wait
        handle = self._gather(message, flat, aside, before)
        self._layout.traffic.pulls.append(Launched(part, message, handle))
        return handle

    def _gather(
        self,
        message: Message,
        flat: Tensor,
        aside: int,
        before: Callable[[], object] | None = None,
    ) -> Handle:
        assert message.pull is not None
        recipe, pulled = message.pull, flat[message.start : message.stop]
        if aside:
            recipe = replace(recipe, channel=recipe.channel + aside)
        return self._layout.communicator.run(
            recipe, pulled, bounds=message.bounds, before=before, async_op=True
        )

    def launch_held(self) -> None:
        """Launch the pulls that were held back until the pushes are launched."""
        held, self._held = self._held, []
        for pull in held:
            pull.launch()

    def launch_due(self) -> None:
        """Launch the pulls of a step once it has ended."""
        due, self._due = self._due, []
        if due:
            assert self.ending is not None
            self.ending.launch(self._layout.thread("update"), due)

    def _drop_pulls(self) -> None:
        """Forget the pulls of a step that does not count: no rank launches them."""
        self._held = []
        for local in self._stages.here.values():
            if self._stages.pulls_now(local.part):
                local.forget_pulls()


class LatePush(Push):
    """Reduces gradients to their owners; a step waits for the sums only where it uses them."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._reduced = layout, Reduced(layout)
        self._stages, self._gathering = layout.shared(Stages), layout.shared(Gathering)
        self._behind, self._gradients = layout.shared(Behind), layout.shared(Partial)
        self._state = layout.shared(OwnedState)
        self._replicates = any(part.replicated for part in layout.parts)

    def wait(self) -> Said:
        """Wait for every message."""
        return self._reduced.wait()

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``; see [Note: launched aside]."""
        self._behind.wait()  # it looks at the buckets
        if empty:
            self._gathering.wait()  # what a backward that failed left to be launched
        on_cpu = all(part.gradients.is_cpu for part in bucket.parts)
        if empty or not (self._stages.here and on_cpu):
            self._reduced.push(bucket, note, empty=empty)
            return
        if note is not None:
            self._layout.notes.write(note)
        gathered = [(part, self._gathering.of(part)) for part in bucket.parts]
        self._gathering.aside(partial(self._launch, gathered))
        if note is not None:
            self._reduced.end()

    @torch.no_grad()
    def _launch(self, gathered: Sequence[tuple[FlatBuffer, Sequence[Callable[[], None]]]]) -> None:
        for part, gathers in gathered:
            for place, message in enumerate(part.messages):
                if gathers:
                    gathers[place]()
                self._reduced.launch_message(part, message)

    def hear(self) -> Said:
        """Return what the ranks said; wait for no push where that may be done behind the step."""
        if not self._may_end_behind():
            return self.wait()
        said = unsaid(self._layout.communicator.world_size)
        if at_once := self._hears_at_once():
            said = self._layout.notes.hear()
            if not said.is_sound:
                return self.wait()
            self._layout.notes.deliver()
        self._behind.ending = Ending(self._reduced.average, heard=at_once)
        return said

    def _hears_at_once(self) -> bool:
        # See `deferred`, [Note: launching pulls].
        meets = self._layout.buffers.exchanged or not self._behind.aside
        pulls = meets and self._stages.any_will_pull()
        return not self._stages.here or bool(self._gradients.absent) or pulls

    def _may_end_behind(self) -> bool:
        """Whether the coming step reads neither averages nor the global weights."""
        stages, optimizers = self._stages, self._layout.optimizers
        on_device = self._layout.trainables[0].parameter.is_cuda
        if not (stages.here and stages.delay.has_slack) or self._replicates or on_device:
            return False
        if len(optimizers) > 1 or not may_go_on_behind(optimizers[0]):
            return False
        given = [(trainable.parameter.grad, view) for trainable, view in self._gradients.all()]
        return (
            len(stages.here) == len(stages.parts)
            and not self._state.is_plain(optimizers[0])
            and all(grad is None or view.is_place_of(grad) for grad, view in given)
        )

    def finish(self) -> None:
        """Wait for the work that the last step left behind it."""
        self._behind.finish()


class StepsBehind(Beside):
    """Lets a copy of the optimizer update the pieces, behind the step."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._stages = layout, layout.shared(Stages)
        self._behind, self._pieces = layout.shared(Behind), layout.shared(Pieces).of
        self._left_out: set[int] = set()

    def begins(self, optimizer: Optimizer) -> None:
        """Launch the pulls that the local update waits for."""
        self._left_out = set()
        self._behind.launch_held()

    def leaves_out(self, parameter: Tensor) -> bool:
        """Leave all pieces to the copy, where the step ends behind it."""
        if self._behind.ending is None:
            return False
        if parameter.grad is not None:
            self._left_out.add(id(parameter))
        return True

    def updates(self, optimizer: Optimizer, stepping: frozenset[int]) -> None:
        """Let the step end behind it, its local updates begun."""
        if (ending := self._behind.ending) is None:
            return
        index, pieces_of = self._layout.index, self._pieces
        pieces = [
            [piece for each in held if id(each) in index for piece in pieces_of[index[id(each)]]]
            for held in groups.parameters_of(optimizer)
        ]
        updates = [piece_step(optimizer, pieces, self._left_out)]
        for local in self._stages.here.values():
            if self._stages.pulls_now(local.part):
                updates.append(partial(local.give_masters, local.retrieved))
        ending.go_on(self._layout.thread("update"), updates)


class FromOwnersBehind(FromOwners):
    """Weights come from their owners, in their turn between the pushes."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._behind = layout.shared(Behind)

    def pushed(self) -> None:
        """Launch the pulls that were held back behind the pushes."""
        self._behind.launch_held()

    def launched(self) -> None:
        """Launch the pulls that wait for the end of the step."""
        self._behind.launch_due()
