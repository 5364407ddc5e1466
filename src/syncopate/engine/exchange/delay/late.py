"""Late: what every exchange does whose weights are pulled every k-th step.

Gradients are pushed in every step, and whoever owns the *global* weights updates them. During the
warm-up that is all. Then what the parameters hold becomes each rank's own, the *local* weights:
beside the global update, a local rule updates them with the rank's own gradient. In the step
``num`` with ``num % k == k - 1`` the global weights are pulled, into memory of their own, while the
whole next iteration runs on the local ones; its local update begins with what was pulled (Xu et al.
2021, Algorithms 1 and 2).

[Note: iterations are the optimizer's] ``num`` counts the steps of an optimizer, and is kept in its
groups: so it is saved and loaded with the optimizer's state, by whatever way, and all ranks that
load the same are at the same iteration.

[Note: when the delay begins] With the first iteration after the warm-up of which ``num % k`` is 0.
So it does where weights were loaded or another plan was installed: until then training goes on
synchronously, from the global weights. :meth:`Late.load_local_state` goes on at once, on the same
local weights.

[Note: whose buffers] From one pull to the next every rank goes on with its own buffers, such as the
statistics of batch normalisation, which belong to its own weights. With the pull it gets rank 0's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, Trainable, in_turn
from syncopate.engine.exchange import base, groups
from syncopate.engine.exchange.base import Work
from syncopate.engine.exchange.delay.behind import Held
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.delay.rules import Hyper, hyper_of, require_rule
from syncopate.engine.exchange.owned import Owned
from syncopate.engine.exchange.seen import weights
from syncopate.engine.tail import Tail
from syncopate.errors import EngineError
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


def uncount_iteration(optimizer: torch.optim.Optimizer) -> None:
    """Note that the last step of ``optimizer`` was none."""
    taken = iterations_of(optimizer) - 1
    for group in optimizer.param_groups:
        group[_NUM] = taken


def expect_iterations(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Give every group its count, so that what loads by the keys that are there finds it."""
    for group in chain(*(optimizer.param_groups for optimizer in optimizers)):
        group.setdefault(_NUM, 0)


class Late(Owned):
    """Mixed in before a synchronous exchange, whose plan then has a delay."""

    def _prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super()._prepare(optimizers)
        self._optimizers = tuple(optimizers)
        expect_iterations(optimizers)
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

    # -- what depends on who owns the global weights ---------------------------------------------

    @abstractmethod
    def _begin_local(self, part: FlatBuffer) -> Local:
        """Return what is kept of a flat buffer whose weights are this rank's own from now on."""

    @abstractmethod
    def _end_local(self, local: Local) -> None:
        """Give up what is kept of a flat buffer; its weights are the global ones again."""

    @abstractmethod
    def _give_own(self, local: Local, flat: Tensor) -> None:
        """Put into ``flat``, which is about to be pulled, what this rank owns of it."""

    @abstractmethod
    def _launch_pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        """Begin to bring the global weights that ``message`` carries into ``flat``.

        ``flat`` is as long as the flat buffer. Returns what waits for them, and notes it among
        :attr:`pulls`.
        """

    @abstractmethod
    def _gather_global(self) -> None:
        """Bring the global weights of all flat buffers into their places; all ranks call it."""

    @abstractmethod
    def _written(self) -> bool:
        """Say whether a rank wrote to the global weights since they were gathered."""

    def _take_gradient(self, trainable: Trainable) -> None:
        """Let the gradient of a parameter be in its place, and change no more: an update begins."""

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
        local = self._locals[id(part)] = self._begin_local(part)
        return local

    @torch.no_grad()
    def _exit(self) -> None:
        """Let all weights be the global ones again, which every rank has in their places by now."""
        self.finish()
        while self._locals:
            key, local = self._locals.popitem()
            self._arrive(key)
            local.settle()
            local.expect()
            self._end_local(local)
        self._own_buffers = False

    def _will_pull(self, part: FlatBuffer) -> bool:
        """Whether the step that comes pulls a flat buffer."""
        return (self._taken(part) + 1) % self._delay.k == 0

    def _hears_at_once(self) -> bool:
        """Whether this rank needs to know what the others say of their backward before it goes on.

        It does where it is in step with them: where weights are pulled, for buffers come along; and
        where a parameter has no gradient here and others may have one.
        """
        return not self._locals or bool(self._absent) or any(map(self._will_pull, self._parts))

    # -- forward --------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """See [Note: whose buffers]; meets nobody."""
        self._make_up_for_step()
        if not self._own_buffers:
            super().refresh_buffers()

    def _deliver(self) -> None:
        self._tail.deliver(put=not self._locals)

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the local update, once the global one may begin."""
        super().step_begins(optimizer)
        if self.state.is_plain(optimizer) or not self._delay.runs_ahead:
            return
        held = groups.parameters_of(optimizer)
        hypers = [hyper_of(self._delay, group) for group in optimizer.param_groups]
        known = {id(p): hyper for ps, hyper in zip(held, hypers, strict=True) for p in ps}
        stepping = self._stepping & self._locals.keys()
        here = [self._locals[id(part)] for part in self._parts if id(part) in stepping]
        self._begin_updates([(local, self._runs(local, known)) for local in here])

    def _runs(self, local: Local, known: Mapping[int, Hyper]) -> list[tuple[int, int, Hyper]]:
        """Return which ranges of a flat buffer are updated, and by what."""
        found: list[tuple[int, int, Hyper]] = []
        for trainable, offset in local.offsets():
            parameter, hyper = trainable.parameter, known.get(id(trainable.parameter))
            if hyper is None or parameter.grad is None:
                continue
            self._take_gradient(trainable)
            adjoins = bool(found) and found[-1][1:] == (offset, hyper)
            start = found.pop()[0] if adjoins else offset
            found.append((start, offset + parameter.numel(), hyper))
        return found

    def _begin_updates(
        self, updated: Sequence[tuple[Local, Sequence[tuple[int, int, Hyper]]]]
    ) -> None:
        """Update local weights: aside, where that may take long; whoever looks at them waits."""
        if not updated:
            return
        parts = [local.part for local, _ in updated]
        behind = any(isinstance(pull, Held) for local, _ in updated for pull in local.arriving)
        lasts = behind or sum(part.nbytes for part in parts) >= base.ASIDE_BYTES
        if not (lasts and all(part.gradients.is_cpu for part in parts)):
            for local, runs in updated:
                local.updating(runs)()
            for part in parts:
                weights.renew(part.parameters)
            return
        aside = []
        for local, runs in updated:
            local.working = Future()
            aside.append(partial(_run, local.updating(runs), local.working))
            self._expect(local.part, _Aside(local.working))
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="syncopate-local")
        # At once, for a thread that is woken for each would disturb the step.
        self._worker.submit(in_turn, *aside)

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
                self._give_own(local, local.weights)
            self._expect(part, self._launch_pull(part, message, local.weights))

    def _retrieve(self, local: Local, message: Message) -> None:
        """Launch the pull of what ``message`` carries; the next local update waits for it."""
        if self._delay.k == 1:
            local.settle()  # it looks at the buffer that is to be filled
        if not local.fresh:
            self._give_own(local, local.retrieved)
            local.fresh = True
        local.arriving.append(self._launch_pull(local.part, message, local.retrieved))

    # -- the global weights in their places -----------------------------------------------------

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the global weights in the block, and buffers be rank 0's.

        All ranks enter and leave it. What anybody writes to weights inside becomes the global ones.

        Raises:
            CollectiveError: a rank is lost or late.
            ParameterServerError: servers are.
            EngineError: weights were written to that servers hold.
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
            written = self._written()
        finally:
            if self._locals and written:
                self._exit()
            elif self._locals:
                for local, weights in zip(here, kept, strict=True):
                    local.weights.copy_(weights)
                for tensor, values in zip(buffers.tensors, own, strict=False):
                    tensor.copy_(values)

    def leave(self) -> None:
        """Give every parameter its global weights in memory of its own, and whole state."""
        if self._worker is not None:
            self._worker.shutdown()
        if self._stepper is not None:
            groups.put_back(self._stepper)
        self._gather_global()
        self._exit()
        super().leave()

    # -- to go on where another process left -----------------------------------------------------

    def local_state(self) -> dict[str, Any]:
        """Return what this rank alone knows: its own weights and what goes with them.

        All ranks call it where pulls go behind pushes; else it asks nobody. Empty in the warm-up.
        Copies in the CPU's memory.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up_for_step()
        self.finish()
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
    def _tensors(self) -> list[Tensor]:
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


def _run(update: Callable[[], None], working: Future[None]) -> None:
    """Update, and tell how that went to who waits for ``working``."""
    try:
        update()
    except BaseException as error:  # raised again where it is waited for
        working.set_exception(error)
    else:
        working.set_result(None)


class _Aside:
    """An update that runs aside, as what one waits for."""

    def __init__(self, working: Future[None]) -> None:
        self._working = working

    def wait(self) -> None:
        """Wait for it.

        Raises:
            CollectiveError, ParameterServerError: a rank or a server is lost, whose weights it
                begins with.
        """
        self._working.result()
