"""Delayed: the sharded exchange whose weights are pulled every k-th step: SSD-SGD without a server.

Gradients are reduce-scattered in every step, and each owner updates its shard of the global weights
by the user's optimizer; every k-th step these are gathered. What of that may end behind the step:
``deferred``. What else a delay is: ``late``.

[Note: what is done to gradients] ``parameter.grad`` is the average, as with the sharded exchange.
What changes each of its elements, such as clipping and unscaling, changes the rank's own gradient
in the same way before the local rule sees it, and no more once that may run aside.

[Note: launched aside] To gather a bucket, to keep what is this rank's own of it, and to launch it
takes Python half a millisecond, which backward would stand still for. So the thread that gathers
(``base``, [Note: gathered aside]) does all three, in the order of the plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from msgspec.structs import replace
from torch import Tensor

from syncopate.collectives.handle import Handle
from syncopate.engine.buckets import (
    BucketBuffers,
    FlatBuffer,
    Message,
    Trainable,
    in_turn,
    view_like,
)
from syncopate.engine.checks.agreement import explained
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.base import Launched, Note, Work, arrived
from syncopate.engine.exchange.delay.behind import Held
from syncopate.engine.exchange.delay.deferred import Due, Ending, Shadow, has_shadow
from syncopate.engine.exchange.delay.late import Late, uncount_iteration
from syncopate.engine.exchange.delay.loading import Watch
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.optimizer_state import Piece
from syncopate.engine.exchange.seen.gradients import PartialGradient
from syncopate.engine.exchange.sharded import Sharded
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError, EngineError
from syncopate.plan import Plan, pulled_in


class Delayed(Late, Sharded):
    """The ``sharded`` exchange of a plan with a delay."""

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        on_cpu = not any(trainable.parameter.is_cuda for trainable in self._trainables)
        order = pulled_in(plan.pull_order, len(plan.buckets))
        self._behind = set(order[len(order) - plan.pulled_behind :]) if on_cpu else set()
        # `deferred`, [Note: channels of their own]; without slack steps wait for pushes anyway.
        slack = plan.delay is not None and plan.delay.has_slack
        ends_behind = on_cpu and slack and not self._module_buffers.exchanged
        self._first_aside = plan.channels if ends_behind else 0
        self.communicator.widen(plan.channels + self._first_aside)
        return super()._allocate(plan)

    def _take_over(self) -> None:
        super()._take_over()
        self._held: list[Held] = []
        self._due: list[Due] = []
        self._beside: dict[int, Tensor] = {}
        self._watch = Watch(self._module_buffers.model, self)
        self._ending: Ending | None = None
        self._updater: ThreadPoolExecutor | None = None
        self._replicates = any(part.replicated for part in self._flat.values())
        self.state.finish = self.finish

    def loaded(self) -> None:
        """Note that somebody loaded weights, the same on every rank: they are the global ones."""
        self._exit()

    def leave(self) -> None:
        """Give every parameter its global weights in memory of its own, and whole state."""
        self._watch.remove()
        try:
            super().leave()
        finally:
            if self._updater is not None:
                self._updater.shutdown()

    # -- this rank's shards of the global weights ------------------------------------------------

    def _begin_local(self, part: FlatBuffer) -> Local:
        weights = self._weights[id(part)]
        owned = [self.own_range(message) for message in part.messages]
        gradient = torch.zeros_like(weights if self._delay.runs_ahead else weights[:0])
        local = Local(part, weights, gradient, self._delay, owned)
        for trainable, offset in local.offsets():
            for piece in self.pieces[trainable.index]:
                place = local.place_of_master(offset + piece.start)
                piece.parameter.data = view_like(piece.parameter, local.masters, place)
            if self._delay.runs_ahead:
                self._beside[trainable.index] = view_like(trainable.parameter, gradient, offset)
        return local

    def _end_local(self, local: Local) -> None:
        for trainable, offset in local.offsets():
            for piece in self.pieces[trainable.index]:
                place = offset + piece.start
                piece.parameter.data = view_like(piece.parameter, local.weights, place)
            self._partial(trainable).beside = None
            self._beside.pop(trainable.index, None)

    def _partial(self, trainable: Trainable) -> PartialGradient:
        gradient = self.grads[trainable.index]
        assert isinstance(gradient, PartialGradient)
        return gradient

    def _give_own(self, local: Local, flat: Tensor) -> None:
        if self._ending is None:  # else it does, once it has updated them
            local.give_masters(flat)

    def _launch_pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        if message.bucket in self._behind:
            self._held.append(Held(lambda: self._pull_now(part, message, flat)))
            return self._held[-1]
        aside = self._first_aside  # whatever this rank knows: all take the same channels
        if self._ending is None or self._ending.heard:
            return self._pull_now(part, message, flat, aside)
        due = Due(partial(self._gather, message, flat, aside), self._ending.wait)
        self._due.append(due)
        self.pulls.append(Launched(part, message, due))
        return due

    def _pull_now(self, part: FlatBuffer, message: Message, flat: Tensor, aside: int = 0) -> Work:
        before = None if self._ending is None else self._ending.wait
        handle = self._gather(message, flat, aside, before)
        self.pulls.append(Launched(part, message, handle))
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
        return self.communicator.run(
            recipe, pulled, bounds=message.bounds, before=before, async_op=True
        )

    def _finish_step(self) -> None:
        super()._finish_step()
        due, self._due = self._due, []
        if due:
            assert self._ending is not None
            self._ending.launch(self._updating(), due)

    # -- backward -------------------------------------------------------------------------------

    def adapt(self, entered: int | None = None) -> None:
        """Refuse what would be accumulated onto an average, of which this rank's part is unknown.

        Raises:
            EngineError: nobody zeroed the gradients; on every rank.
        """
        super().adapt(entered)
        # Of what another rank owns zeros are left here, and what is added to them is this rank's.
        mine = {
            id(each.whole) for each in self.grads if isinstance(each, PartialGradient) and each.own
        }
        if mine & self.carried and self._delay.runs_ahead and self._locals:
            self.carried.clear()
            raise EngineError(
                "gradients of the step before are still there, and they are averages: what this "
                "rank's own gradient is, which its local update takes, could not be told. Call "
                "zero_grad() after each step"
            )

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``, and after the last one the pulls that go behind."""
        if self._ending is not None:
            self._ending.wait()  # it looks at the buckets; no backward has asked how it went
        super().push(bucket, note, empty=empty)
        if note is not None:
            self._launch_held()

    def _launch(self, bucket: BucketBuffers, *, empty: bool) -> None:
        """Launch it; see [Note: launched aside]."""
        if empty:
            for copied in self._copies:  # what a backward that failed left to be launched
                copied()
        if empty or not (self._locals and all(part.gradients.is_cpu for part in bucket.parts)):
            super()._launch(bucket, empty=empty)
            return
        gathering = [(part, self._gathering(part)) for part in bucket.parts]
        self._aside(partial(self._launch_gathered, gathering))

    @torch.no_grad()
    def _launch_gathered(
        self, gathering: Sequence[tuple[FlatBuffer, Sequence[Callable[[], None]]]]
    ) -> None:
        for part, gathers in gathering:
            for place, message in enumerate(part.messages):
                if gathers:
                    gathers[place]()
                self._launch_message(part, message)

    def _launch_held(self) -> None:
        held, self._held = self._held, []
        for pull in held:
            pull.launch()

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the local update, of which every pull is launched by now."""
        self._launch_held()
        super().step_begins(optimizer)
        if self._ending is not None:
            self._go_on(self._ending, optimizer)

    # -- what goes on behind a step: ``deferred`` ------------------------------------------------

    def hear(self) -> Said:
        """Return what the ranks said; wait for no push where that may be done behind the step."""
        if not self._may_end_behind():
            return self.wait()
        said = Said([], [0] * self.communicator.world_size, appeared=False)
        at_once = self._hears_at_once()
        if at_once:
            arrived(self._note)
            said = self._tail.said()
            if not said.is_sound:
                return self.wait()
            self._deliver()
        self._hand_out()
        self._shadowed: set[int] = set()
        self._ending = Ending(partial(self._average, self.pushes), heard=at_once)
        return said

    def _hears_at_once(self) -> bool:
        # See `deferred`, [Note: who launches the pulls].
        meets = self._module_buffers.exchanged or not self._first_aside
        pulls = meets and any(map(self._will_pull, self._parts))
        return not self._locals or bool(self._absent) or pulls

    def _may_end_behind(self) -> bool:
        """Whether nothing in the step that comes looks at averages or at the global weights."""
        if not (self._locals and self._delay.has_slack) or self._replicates or self._notes.is_cuda:
            return False
        if len(self._optimizers) > 1 or not has_shadow(self._optimizers[0]):
            return False
        given = [(trainable.parameter.grad, trainable) for trainable in self._trainables]
        return (
            len(self._locals) == len(self._parts)
            and not self.state.is_plain(self._optimizers[0])
            and all(grad is None or self._partial(of).is_place_of(grad) for grad, of in given)
        )

    def _standing_for(self, parameter: Tensor) -> list[Tensor]:
        if self._ending is None or id(parameter) not in self._index:
            return super()._standing_for(parameter)
        if parameter.grad is not None:
            self._shadowed.add(id(parameter))
        return []  # its shadow has them

    def _go_on(self, ending: Ending, optimizer: torch.optim.Optimizer) -> None:
        """Let a step end behind it, its local updates begun."""
        pieces = [
            [piece for each in held if id(each) in self._index for piece in self._pieces_of(each)]
            for held in groups.parameters_of(optimizer)
        ]
        updates = [Shadow(optimizer, pieces, self._shadowed).step]
        for local in self._locals.values():
            if self._pulls_now(local.part):
                updates.append(partial(local.give_masters, local.retrieved))
        ending.go_on(self._updating(), updates)

    def _updating(self) -> ThreadPoolExecutor:
        """Return the thread that ends steps."""
        if self._updater is None:
            self._updater = ThreadPoolExecutor(1, thread_name_prefix="syncopate-update")
        return self._updater

    def _pieces_of(self, parameter: Tensor) -> Sequence[Piece]:
        return self.pieces[self._index[id(parameter)]]

    def finish(self) -> None:
        """Wait for what goes on behind the last step; see [Note: a failure that is heard late].

        Raises:
            CollectiveError: a rank is lost or late.
        """
        ending, self._ending = self._ending, None
        if ending is None:
            return
        said = ending.wait()
        if ending.heard:
            return
        self._deliver()
        if said.appeared:
            self._module_buffers.wake()
        try:
            said.require_same_step(range(self.communicator.world_size))
        except EngineError as error:
            self._drop_pulls()
            uncount_iteration(self._optimizers[0])
            warnings.warn(f"the last step does not count: {error}", RuntimeWarning, stacklevel=2)

    def _drop_pulls(self) -> None:
        """Forget the pulls of a step that does not count: nobody launches them."""
        self._held = []
        for local in self._locals.values():
            if self._pulls_now(local.part):
                local.forget_pulls()

    # -- the gradients of a step -----------------------------------------------------------------

    def _gathering(self, part: FlatBuffer) -> list[Callable[[], None]]:
        """Return what brings gradients into their places, and then keeps them.

        The reduce-scatter destroys them there.
        """
        gathering, local = super()._gathering(part), self._local_of(part)
        if local is None or not local.gradient.numel():
            return gathering
        local.settle()  # an update that nobody waited for still looks at the gradient before
        for trainable in part.trainables:  # see [Note: what is done to gradients]
            self._partial(trainable).beside = self._beside[trainable.index]
        kept: list[Callable[[], None]] = [
            partial(local.keep_gradient, message) for message in part.messages
        ]
        if not gathering:
            return kept
        return [partial(in_turn, *both) for both in zip(gathering, kept, strict=True)]

    def _take_gradient(self, trainable: Trainable) -> None:
        gradient = self._partial(trainable)
        given = trainable.parameter.grad
        if given is not None and not gradient.is_place_of(given):
            self._beside[trainable.index].copy_(given)  # somebody's own
        gradient.beside = None

    # -- the global weights in their places -----------------------------------------------------

    def _gather_global(self) -> None:
        self.finish()
        self.ready()
        try:
            for part in self._parts:
                if (local := self._locals.get(id(part))) is None:
                    continue
                local.settle()
                local.give_masters(local.weights)
                for message in part.messages:
                    assert message.pull is not None
                    held = local.weights[message.start : message.stop]
                    self.communicator.run(message.pull, held, bounds=message.bounds)
        except CollectiveError as error:
            raise explained(error) from error
        torch.autograd.graph.increment_version([each.parameter for each in self._trainables])

    def _written(self) -> bool:
        here = not self._locals or any(each.masters_differ() for each in self._locals.values())
        flag = torch.tensor([here], dtype=torch.float32, device=self._notes.device)
        return bool(self.everyone(flag).amax())
