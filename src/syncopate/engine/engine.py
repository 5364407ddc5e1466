"""Engine: a plan at work on one model, and what the user can ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from syncopate.artifacts.plan import SERVED, Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import TENSOR, Workload
from syncopate.collectives import Communicator
from syncopate.collectives.messages.piggyback import riding_bytes
from syncopate.delay import Delay, LocalSGD
from syncopate.engine import checkpoint, optimizer_hooks
from syncopate.engine.checks.agreement import agree
from syncopate.engine.checks.fit import checks_of, tensors_of
from syncopate.engine.checks.soundness import Sound
from syncopate.engine.checks.sparse import require_whole_rows
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.base import Exchange
from syncopate.engine.exchange.delay.iterations import count_iteration
from syncopate.engine.exchange.kinds import KINDS, kind_for
from syncopate.engine.exchange.layout import Layout, nothing
from syncopate.engine.exchange.optimizers import Trained, trained_by
from syncopate.engine.exchange.serving.servers import Servers
from syncopate.engine.join import Join
from syncopate.engine.model import module as modules
from syncopate.engine.model import ownership
from syncopate.engine.model.inventory import Inventory
from syncopate.engine.model.state import Buffers
from syncopate.engine.readiness import Readiness
from syncopate.engine.recording import Recording
from syncopate.errors import EngineError


class Engine:
    """Exchanges the gradients of one model by a plan; made by ``distribute``.

    Args:
        model: the model, not yet attached.
        sound: what was found fit to be trained of it. Its optimizers' steps are timed and must
            train nothing that is not averaged; it has none where they are not known.
        buffers: the model's buffers.
        communicator: joins the ranks.

    Attributes:
        model: as given.
        communicator: as given; its collectives may be used between iterations.
        workload: what self-planning measured of the model; None until then.
        model_name: the class of the model.
        tries_spread: whether self-planning lets plans compete in which ranks own parts.
        delay: what plans train with that can; None for synchronous training.
        servers: parameter servers that hold the weights; None where ranks do.
        recording: what is noted of its steps.
        readiness: the hooks that find ready gradients; not for users.
        exchange: executes the plan; None before the first; not for users.
    """

    def __init__(
        self,
        model: nn.Module,
        sound: Sound,
        buffers: Buffers,
        communicator: Communicator,
    ) -> None:
        self.model, self.communicator = model, communicator
        self.workload: Workload | None = None
        self._trainables = sound.trainables
        self._buffers = buffers
        self._plan: Plan | None = None
        self._inside = False
        self._planner: Callable[[], None] | None = None
        self._plan_before: Plan | None = None
        self.tries_spread = False
        self.delay: Delay | LocalSGD | None = sound.delay
        self.servers: Servers | None = sound.servers
        self.model_name = type(model).__name__
        self._inventory = Inventory(model, sound.trainables, sound.ignored, sound.sparse)
        self.readiness = Readiness(sound.trainables, buffers, communicator, sound.sparse)
        self.recording = Recording(self.readiness, communicator)
        self.exchange: Exchange | None = None
        # torch.compile has no business in here.
        self.forward_begins = torch.compiler.disable(self.forward_begins)  # type: ignore
        self.forward_ends = torch.compiler.disable(self.forward_ends)  # type: ignore
        self.forward_alone = torch.compiler.disable(self.forward_alone)  # type: ignore
        self.forward_bypassed = torch.compiler.disable(self.forward_bypassed)  # type: ignore
        # They keep the engine at work as long as the optimizer is, also without the model.
        self._optimizers = sound.optimizers
        self._optimizer_hooks: list[RemovableHandle | optimizer_hooks.Innermost] = []
        for optimizer in sound.optimizers:
            self._optimizer_hooks += (
                optimizer_hooks.register(
                    optimizer,
                    torch.compiler.disable(self._update_begins),  # type: ignore[no-untyped-call]
                    torch.compiler.disable(self._update_ends),  # type: ignore[no-untyped-call]
                ),
                *checkpoint.watch(optimizer, self),
            )
        self._stepped: set[int] = set()
        self._closures = False
        self._parameters_known: dict[int, int] = {}
        ownership.claim(self._inventory)

    # -- what users touch -----------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan at work."""
        assert self._plan is not None
        return self._plan

    @property
    def spread(self) -> bool:
        """Whether each rank updates a part of the weights."""
        return self.exchange is not None and self.exchange.update.state is not None

    @property
    def tensors(self) -> tuple[tuple[str, int, str], ...]:
        """``(name, numel, dtype)`` of every exchanged gradient."""
        return tensors_of(self._trainables)

    @property
    def planning(self) -> bool:
        """Whether self-planning is still going on."""
        return self._planner is not None

    def install(self, plan: Plan) -> None:
        """Train by ``plan`` from the next forward on; every rank calls it, between iterations.

        A self-planning that is still going on ends, and none begins again.

        Raises:
            PlanError: it is for another model or rank count.
            UnknownNameError: no such algorithm, or an option that it does not take.
            InvalidValueError: no such value of an option.
            EngineError: the ranks have different plans, or a backward is running.
        """
        ranks = self.communicator.world_size
        agree(self.communicator, checks_of(plan, self._trainables, self._optimizers, ranks))
        if self.readiness.rows:
            require_whole_rows(plan.exchange, delayed=bool(plan.delay or plan.local_sgd))
        if (plan.exchange == SERVED) != (self.servers is not None):
            raise EngineError(
                "weights are on parameter servers or on the ranks for good: a plan of the "
                f"{SERVED} exchange goes with distribute(exchange=KVStore), and no other does"
            )
        if self.servers is not None:
            self.servers.require_delay(plan.delay)
        self._stop_planning()
        self.readiness.watch = None
        self.delay = plan.delay or plan.local_sgd
        self.adopt(plan)

    def record(self, on: bool = True) -> None:
        """Start or stop recording steps; a new start forgets the old record."""
        self.recording.record(on)

    def timeline(self, name: str = "training") -> Timeline:
        """Return what was recorded, every rank on rank 0's clock; every rank calls it.

        Raises:
            EngineError: nothing was ever recorded.
            CollectiveError: a rank is lost or late.
        """
        return self.recording.timeline(name)

    def join(
        self,
        *,
        divide_by_initial_world_size: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        """Return a block in which ranks may run out of inputs; arguments as in DDP's ``join``."""
        if self.communicator.world_size == 1:
            return nullcontext()
        if self._planner is not None and self.tries_spread:
            # A plan that it has yet to try cannot go on with some of the ranks.
            self._stop_planning()
            if self.spread and self._plan_before is not None:
                self.adopt(self._plan_before)
        if self.spread or self.plan.local_sgd:
            what = "local SGD" if self.plan.local_sgd else f"the {self.plan.exchange} exchange"
            raise EngineError(
                f"join() cannot go with {what}, where a rank that has run out of inputs still has "
                "weights to update or average. Give every rank as many inputs, or train with "
                "exchange='allreduce' and without a delay"
            )
        return Join(
            self.readiness,
            self._buffers,
            self._stop_planning,
            divide_by_initial_world_size=divide_by_initial_world_size,
            throw_on_early_termination=throw_on_early_termination,
        ).block()

    def ready(self) -> None:
        """Wait until the weights of the last step are there; launches nothing.

        A read of a parameter waits for it, but not one of a view taken before, or of a pointer.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        assert self.exchange is not None
        self.exchange.pull.ready()

    def state_dict(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        everywhere: bool = False,
    ) -> dict[str, Any] | None:
        """Return the states of the model and of ``optimizer``; every rank calls it.

        They are what one process would have: whole tensors, in torch's format, that any number of
        ranks loads by ``load_state_dict`` of model and optimizer, under any plan and under none.

        Args:
            optimizer: what was given to ``distribute``: one, or a list of several.
            everywhere: return them on every rank, not on rank 0 alone.

        Returns:
            ``{"model": ..., "optimizer": ...}``, copies in the CPU's memory, with a list of states
            for a list of optimizers; None on the other ranks.

        Raises:
            InvalidValueError: it is no optimizer.
            CollectiveError: a rank is lost or late.
            EngineError: the ranks have different state.
        """
        keep = everywhere or self.communicator.rank == 0
        optimizers = checkpoint.listed(optimizer)
        found = [checkpoint.whole_state_dict(each, keep=keep) for each in optimizers]
        if everywhere and self.exchange is not None:
            found = self.exchange.local.alike(found)
        with self.global_weights():
            weights = self.model.state_dict()
            weights.update(checkpoint.copied(dict(weights)) if keep else {})
        if not keep:
            return None
        single = isinstance(optimizer, torch.optim.Optimizer)
        return {"model": weights, "optimizer": found[0] if single else found}

    def whole_state(
        self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    ) -> AbstractContextManager[None]:
        """Return a block in which ``optimizer`` has whole state on every rank, as a plain one has.

        For code that saves or loads by the optimizer's own methods, such as
        ``torch.distributed.checkpoint``; no training step inside. Every rank enters and leaves it.

        Args:
            optimizer: what was given to ``distribute``: one, or a list of several.

        Raises:
            InvalidValueError: it is no optimizer.
            CollectiveError: a rank is lost or late.
            EngineError: the ranks have different state.
        """
        return checkpoint.whole(checkpoint.listed(optimizer), self.global_weights)

    def global_weights(self) -> AbstractContextManager[None]:
        """Return a block in which the parameters hold the global weights, on every rank.

        With a delay they hold each rank's own otherwise, and buffers are each rank's own too; here
        these are rank 0's, and with local SGD the global weights are the average. To evaluate or to
        save. What is written to weights inside becomes the global ones, which the ranks then train
        on. Every rank enters and leaves it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        assert self.exchange is not None
        return self.exchange.global_weights()

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own state of a training with a delay, as copies on the CPU.

        Every rank calls it, at the same iteration, where the plan pulls behind pushes.
        With it a training goes on with the same bits, on as many ranks and under the same plan;
        without it, from the global weights. Empty without a delay.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        assert self.exchange is not None
        return self.exchange.local_state()

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`local_state`, after model and optimizer were loaded.

        Raises:
            EngineError: it is another rank's, or of another rank count, rule or plan.
        """
        assert self.exchange is not None
        self.exchange.local.load_local_state(state)

    def detach(self) -> None:
        """Make model and optimizer plain again; gradients are no longer exchanged.

        Every rank calls it: where the ranks own parts of weights and of the optimizer's state, each
        gets all of them.

        Raises:
            CollectiveError: a rank is lost or late; the model is detached all the same.
        """
        self._stop_planning()
        try:
            if self.exchange is not None:
                self.exchange.leave()
        finally:
            self.recording.close()
            ownership.release(self._inventory)
            self._inventory.forget()
            self.readiness.remove()
            for hook in self._optimizer_hooks:
                hook.remove()
            checkpoint.forget(self)
            modules.detach(self.model)
            self.communicator.close()

    # -- what the module calls ------------------------------------------------------------------

    def forward_begins(self, training: bool) -> bool:
        """Prepare for a forward with gradients, unless it is inside another one.

        A model that calls itself in its forward is one forward.

        Returns:
            Whether it is the outermost, which :meth:`forward_ends` and :meth:`forward_leaves` are
            then called for.

        Raises:
            EngineError: the model's parameters are not those that were distributed, or DDP or
                another engine exchanges their gradients as well.
        """
        if self._inside:
            return False
        self.readiness.forward_begins(training, self._require_trainable)
        self._stepped.clear()
        self._inside = True
        return True

    def forward_alone(self) -> None:
        """Begin a forward without gradients, which meets no other rank."""
        if not self._inside:
            self.readiness.forward_alone()

    def forward_ends(self, output: Any) -> None:
        """Watch what a forward returned for the backward to come."""
        self.readiness.forward_ends(modules.output_tensors(output))

    def forward_bypassed(self, output: Any) -> None:
        """Watch outputs of a forward without communication: gradients stay this rank's own.

        Raises:
            EngineError: DDP or another engine exchanges their gradients.
        """
        ownership.require_alone(self._inventory, self._trainables)
        self.readiness.forward_ends(modules.output_tensors(output), bypassed=True)

    def forward_leaves(self) -> None:
        """Note that the outermost forward has returned or raised."""
        self._inside = False

    @property
    def synchronises(self) -> bool:
        """Whether gradients of the forwards to come are exchanged; may be set."""
        return not self.readiness.paused

    @synchronises.setter
    def synchronises(self, on: bool) -> None:
        self.readiness.paused = not on

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let gradients of forwards inside accumulate locally (``no_sync``)."""
        before, self.readiness.paused = self.readiness.paused, True
        try:
            yield
        finally:
            self.readiness.paused = before

    # -- what distribute and self-planning call -------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._trainables[0].parameter.device

    @property
    def shardable(self) -> bool:
        """Whether the optimizers' steps may be spread over the ranks."""
        if self._closures or self.readiness.announce is not None or self.readiness.rows:
            return False  # a step runs backward; some ranks may leave, within join(); or whole rows
        return self._trained() is not None and not any(
            trainable.parameter.is_complex() for trainable in self._trainables
        )

    @property
    def defers(self) -> bool:
        """Whether steps may be deferred to the next forward, by each of the optimizers."""
        return self._trained() is not None and not self._closures

    def _trained(self) -> tuple[Trained, ...] | None:
        """Return how each parameter is updated; None without optimizers, or of an unknown one."""
        with suppress(EngineError):
            return trained_by(self._trainables, self._optimizers) if self._optimizers else None
        return None

    @property
    def kept_whole(self) -> frozenset[str]:
        """Names of the parameters that their optimizer looks at whole; none unless shardable."""
        trained = self._trained() if self.shardable else None
        if trained is None:
            return frozenset()
        pairs = zip(self._trainables, trained, strict=True)
        return frozenset(trainable.name for trainable, by in pairs if by.kind == TENSOR)

    @property
    def buffers_nbytes(self) -> int:
        """Bytes that the model's buffers take beside its gradients (:class:`Workload`)."""
        return riding_bytes(self._buffers.kept.values())

    def planning_is_over(self) -> None:
        """Note that self-planning has ended."""
        self._planner = None

    def plan_with(self, stop: Callable[[], None]) -> None:
        """Keep the function that stops the self-planning that has begun."""
        self._planner = stop
        self._plan_before = self._plan

    def adopt(self, plan: Plan) -> None:
        """Train by ``plan``, which fits and which all ranks have, with the delay.

        Raises:
            EngineError: the last backward failed on some rank.
        """
        delay = None if plan.delay or plan.local_sgd else self.delay
        if delay is not None and plan.exchange in delay.EXCHANGES:
            plan = plan.delayed(delay)
        self.readiness.require_between()
        if self.exchange is not None:
            self.readiness.complete()
            self.exchange.leave()
        layout = Layout(
            plan,
            self._trainables,
            self.communicator,
            self._buffers,
            optimizers=self._optimizers,
            servers=self.servers,
        )
        layout.complete = self.readiness.complete
        self.exchange = Exchange(KINDS[kind_for(plan, self.servers)], layout)
        self.readiness.install(self.exchange)
        self._plan = plan
        self.recording.adopted(plan, self.servers)

    def _require_trainable(self) -> None:
        ownership.require_alone(self._inventory, self._trainables)
        self._inventory.require_unchanged()

    def _stop_planning(self) -> None:
        if self._planner is not None:
            self._planner()

    def _update_begins(
        self, optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        closure = any(map(callable, (*args[1:], kwargs.get("closure"))))
        self._closures = self._closures or closure
        if self.spread and closure:
            raise EngineError(
                f"{type(optimizer).__name__}.step was given a closure, which would run backward "
                f"while parameters are spread over ranks (exchange {self.plan.exchange!r}). Run "
                "forward and backward before step(), or train with exchange='allreduce'"
            )
        if closure and self.exchange is not None:
            self.exchange.pull.ready()
        count = sum(map(len, groups.parameters_of(optimizer)))
        if count != self._parameters_known.get(id(optimizer)):
            ownership.require_averaged(optimizer)
            self._parameters_known[id(optimizer)] = count
        # No other engine's step, and no synchronous one, is counted.
        counts = checkpoint.counts(optimizer, self)
        note = partial(count_iteration, optimizer) if counts else nothing
        self.readiness.step_begins(optimizer, note)

    def _update_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        self.readiness.step_ends(optimizer, last=len(self._stepped) == len(self._optimizers))
