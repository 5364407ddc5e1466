"""Delayed: the sharded exchange whose weights are pulled every k-th step: SSD-SGD without a server.

Gradients are reduce-scattered in every step, and each owner updates its shard of the *global*
weights by the user's optimizer. During the warm-up that is all, and this is the sharded exchange.
Then what the parameters hold becomes each rank's own, the *local* weights: beside the global
update, a local rule updates them with the rank's own gradient. In the step ``num`` with
``num % k == k - 1`` the global weights are gathered, into memory of their own, while the whole next
iteration runs on the local ones; its local update begins with what was gathered (Xu et al. 2021,
Algorithms 1 and 2).

[Note: iterations are the optimizer's] ``num`` counts the steps of an optimizer, and is kept in its
groups: so it is saved and loaded with the optimizer's state, by whatever way, and all ranks that
load the same are at the same iteration.

[Note: when the delay begins] With the first iteration after the warm-up of which ``num % k`` is 0.
So it does where weights were loaded or another plan was installed: until then training goes on
synchronously, from the global weights. :meth:`Delayed.load_local_state` goes on at once, on the
same local weights.

[Note: what is done to gradients] ``parameter.grad`` is the average, as with the sharded exchange.
What changes each of its elements, such as clipping and unscaling, changes the rank's own gradient
in the same way before the local rule sees it.

[Note: whose buffers] From one pull to the next every rank goes on with its own buffers, such as the
statistics of batch normalisation, which belong to its own weights. With the pull it gets rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch

from syncopate.engine.agreement import explained
from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, in_turn, view_like
from syncopate.engine.exchange import base, groups
from syncopate.engine.exchange.base import Launched
from syncopate.engine.exchange.delay.loading import Watch
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.delay.rules import Hyper, hyper_of, require_rule
from syncopate.engine.exchange.seen.gradients import PartialGradient
from syncopate.engine.exchange.sharded import Sharded
from syncopate.engine.tail import Tail
from syncopate.errors import CollectiveError, EngineError
from syncopate.plan import Plan

_NUM = "syncopate_num"
"""The key of an optimizer's groups; see [Note: iterations are the optimizer's]."""


def iterations_of(optimizer: torch.optim.Optimizer) -> int:
    """Return how many steps ``optimizer`` took under a delay, warm-up and earlier runs included."""
    return int(optimizer.param_groups[0].get(_NUM, 0)) if optimizer.param_groups else 0


def count_iteration(optimizer: torch.optim.Optimizer) -> None:
    """Note that ``optimizer`` takes one step more."""
    taken = iterations_of(optimizer) + 1
    for group in optimizer.param_groups:
        group[_NUM] = taken


class Delayed(Sharded):
    """The ``sharded`` exchange of a plan with a delay."""

    def _prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super()._prepare(optimizers)
        self._optimizers = tuple(optimizers)
        for group in chain(*(optimizer.param_groups for optimizer in optimizers)):
            group.setdefault(_NUM, 0)  # what loads by the keys that are there finds it
        self._locals: dict[int, Local] = {}
        self._own_buffers = False
        self._worker: ThreadPoolExecutor | None = None

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        assert plan.delay is not None
        self._delay = plan.delay
        require_rule(plan.delay, self._optimizers)
        return super()._allocate(plan)

    def _take_over(self) -> None:
        super()._take_over()
        self._parts = list({id(part): part for part, _ in self._pulled}.values())
        self._watch = Watch(self._module_buffers.model, self)

    # -- the two stages -------------------------------------------------------------------------

    def _taken(self, part: FlatBuffer) -> int:
        """Return how many steps the optimizer of a flat buffer took."""
        return iterations_of(self._optimizers[self.trained[part.trainables[0].index].optimizer])

    def _local_of(self, part: FlatBuffer) -> Local | None:
        """Return what is kept of a flat buffer in the iteration that runs; None in the warm-up."""
        local, num = self._locals.get(id(part)), self._taken(part)
        begins = num > self._delay.wp and num % self._delay.k == 0
        if local is None and begins and not part.replicated:
            return self._enter(part)
        return local

    @torch.no_grad()
    def _enter(self, part: FlatBuffer) -> Local:
        """Let the weights of a flat buffer be this rank's own from now on."""
        self._arrive(id(part))
        owned = [self.own_range(message) for message in part.messages]
        local = Local(part, self._weights[id(part)], owned, self._delay)
        for trainable, offset in local.offsets():
            for piece in self.pieces[trainable.index]:
                place = local.place_of_master(offset + piece.start)
                piece.parameter.data = view_like(piece.parameter, local.masters, place)
            if self._delay.runs_ahead:
                gradient = self.grads[trainable.index]
                assert isinstance(gradient, PartialGradient)
                gradient.beside = view_like(trainable.parameter, local.gradient, offset)
        self._locals[id(part)] = local
        return local

    @torch.no_grad()
    def _exit(self) -> None:
        """Let all weights be the global ones again, which every rank has in their places by now."""
        while self._locals:
            key, local = self._locals.popitem()
            self._arrive(key)
            local.settle()
            local.expect()
            for trainable, offset in local.offsets():
                for piece in self.pieces[trainable.index]:
                    place = offset + piece.start
                    piece.parameter.data = view_like(piece.parameter, local.weights, place)
                gradient = self.grads[trainable.index]
                assert isinstance(gradient, PartialGradient)
                gradient.beside = None
        self._own_buffers = False

    def loaded(self) -> None:
        """Note that somebody loaded weights, the same on every rank: they are the global ones."""
        self._exit()

    # -- forward --------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """See [Note: whose buffers]; meets nobody."""
        self._make_up_for_step()
        if not self._own_buffers:
            super().refresh_buffers()

    def _deliver(self) -> None:
        self._tail.deliver(put=not self._locals)

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

    def _gathering(self, part: FlatBuffer) -> list[Callable[[], None]]:
        """Return what brings gradients into their places, and then keeps them.

        The reduce-scatter destroys them there.
        """
        gathering, local = super()._gathering(part), self._local_of(part)
        if local is None or not local.gradient.numel():
            return gathering
        kept: list[Callable[[], None]] = [
            partial(local.keep_gradient, message) for message in part.messages
        ]
        if not gathering:
            return kept
        return [partial(in_turn, *both) for both in zip(gathering, kept, strict=True)]

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Put pieces of the global weights into the groups, and begin the local update."""
        super().step_begins(optimizer)
        if self.state.is_plain(optimizer) or not self._delay.runs_ahead:
            return
        held = groups.parameters_of(optimizer)
        hypers = [hyper_of(self._delay, group) for group in optimizer.param_groups]
        known = {id(p): hyper for ps, hyper in zip(held, hypers, strict=True) for p in ps}
        for part in self._parts:
            if id(part) in self._stepping and (local := self._locals.get(id(part))) is not None:
                self._begin_update(local, self._runs(local, known))

    def _runs(self, local: Local, known: Mapping[int, Hyper]) -> list[tuple[int, int, Hyper]]:
        """Return which ranges of a flat buffer are updated, and by what."""
        found: list[tuple[int, int, Hyper]] = []
        for trainable, offset in local.offsets():
            parameter, hyper = trainable.parameter, known.get(id(trainable.parameter))
            if hyper is None or parameter.grad is None:
                continue
            gradient = self.grads[trainable.index]
            assert isinstance(gradient, PartialGradient)
            if not gradient.is_place_of(parameter.grad):
                assert gradient.beside is not None
                gradient.beside.copy_(parameter.grad)  # somebody's own
            adjoins = bool(found) and found[-1][1:] == (offset, hyper)
            start = found.pop()[0] if adjoins else offset
            found.append((start, offset + parameter.numel(), hyper))
        return found

    def _begin_update(self, local: Local, runs: Sequence[tuple[int, int, Hyper]]) -> None:
        """Update local weights: aside, where they are large; whoever looks at them waits."""
        part = local.part
        if not (part.gradients.is_cpu and part.nbytes >= base.ASIDE_BYTES):
            local.updating(runs)()
            torch.autograd.graph.increment_version([each.parameter for each in part.trainables])
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="syncopate-local")
        local.working = self._worker.submit(local.updating(runs))
        self._expect(part, _Aside(local.working))

    def _pulls_now(self, part: FlatBuffer) -> bool:
        """Whether the step that ends now pulls the global weights of a flat buffer."""
        return self._taken(part) % self._delay.k == 0  # num + 1 steps were taken

    def _share_buffers(self) -> None:
        stepped = [part for part in self._parts if id(part) in self._stepping]
        own = [id(part) in self._locals and not self._pulls_now(part) for part in stepped]
        self._own_buffers = any(own)
        if not self._own_buffers:
            super()._share_buffers()

    def _pull(self, part: FlatBuffer, message: Message) -> None:
        local = self._locals.get(id(part))
        if local is None:
            super()._pull(part, message)
        elif self._pulls_now(part):
            if self._delay.runs_ahead:
                self._retrieve(local, message)
                return
            if id(part) not in self._pending:
                local.give_masters(local.weights)
            super()._pull(part, message)

    def _retrieve(self, local: Local, message: Message) -> None:
        """Launch the pull of what ``message`` carries; the next local update waits for it."""
        assert message.pull is not None
        if self._delay.k == 1:
            local.settle()  # it looks at the buffer that is to be filled
        if not local.fresh:
            local.give_masters(local.retrieved)
            local.fresh = True
        retrieved = local.retrieved[message.start : message.stop]
        bounds = message.bounds
        handle = self.communicator.run(message.pull, retrieved, bounds=bounds, async_op=True)
        launched = Launched(local.part, message, handle)
        self.pulls.append(launched)
        local.arriving.append(launched)

    # -- the global weights in their places -----------------------------------------------------

    def _gather_global(self) -> None:
        """Bring the global weights of everybody into their places; all ranks call it."""
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

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the global weights in the block, and buffers be rank 0's.

        All ranks enter and leave it. What anybody writes to weights inside becomes the global ones.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up_for_step()
        if not self._locals:
            yield
            return
        self.ready()
        here = list(self._locals.values())
        kept = [local.weights.clone() for local in here]
        buffers = self._module_buffers
        own = [tensor.clone() for tensor in buffers.tensors]
        self._gather_global()
        if self._own_buffers:
            super()._share_buffers()
        written = False
        try:
            yield
            flag = torch.tensor([self._written()], dtype=torch.float32, device=self._notes.device)
            written = bool(self.everyone(flag).amax())
        finally:
            if self._locals and written:
                self._exit()
            elif self._locals:
                for local, weights in zip(here, kept, strict=True):
                    local.weights.copy_(weights)
                for tensor, values in zip(buffers.tensors, own, strict=False):
                    tensor.copy_(values)

    def _written(self) -> bool:
        return not self._locals or any(each.masters_differ() for each in self._locals.values())

    def leave(self) -> None:
        """Give every parameter its global weights in memory of its own, and whole state."""
        self._watch.remove()
        if self._worker is not None:
            self._worker.shutdown()
        if self._stepper is not None:
            groups.put_back(self._stepper)
        self._gather_global()
        self._exit()
        super().leave()

    # -- to go on where another process left -----------------------------------------------------

    def local_state(self) -> dict[str, Any]:
        """Return what this rank alone knows: its own weights and what goes with them; asks nobody.

        Empty in the warm-up. Copies in the CPU's memory.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up_for_step()
        self.ready()
        found: dict[str, Any] = {
            "rank": self.communicator.rank,
            "world_size": self.communicator.world_size,
            "local_update": self._delay.local_update,
            "parts": [self._locals[id(part)].state() for part in self._parts if self._locals],
            "buffers": [],
        }
        if self._own_buffers:
            found["buffers"] = [tensor.to("cpu", copy=True) for tensor in self._tensors]
        return found

    @property
    def _tensors(self) -> list[torch.Tensor]:
        return self._module_buffers.tensors

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what :meth:`local_state` returned, after model and optimizer were loaded.

        Raises:
            EngineError: it is another rank's, or of another rank count, rule or plan.
        """
        here = (self.communicator.rank, self.communicator.world_size, self._delay.local_update)
        told = (state.get("rank"), state.get("world_size"), state.get("local_update"))
        parts = state.get("parts") or []
        fits = here == told and len(parts) in (0, len(self._parts))
        names = [{each.name for each in part.trainables} for part in self._parts]
        if not fits or any(set(p["weights"]) != n for p, n in zip(parts, names, strict=False)):
            raise EngineError(
                "this local state is of (rank, world size, local update) "
                f"{told} and {len(parts)} buffers; here are {here} and {len(self._parts)}. Give "
                "each rank its own, under the same plan; or go on without: the delay then begins "
                "anew from the global weights"
            )
        self._exit()
        for part, held in zip(self._parts, parts, strict=False):
            self._enter(part).load(held)
        saved = state.get("buffers") or []
        self._own_buffers = bool(saved)
        for tensor, values in zip(self._tensors, saved, strict=False):
            tensor.copy_(values)


class _Aside:
    """An update that runs aside, as what one waits for."""

    def __init__(self, working: Future[None]) -> None:
        self._working = working

    def wait(self) -> None:
        """Wait for it.

        Raises:
            CollectiveError: a rank is lost or late, whose weights it begins with.
        """
        self._working.result()
