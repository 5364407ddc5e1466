"""Engine: a plan at work on one model, and what the user can ask of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from syncopate.calibration.clocks import clock_offsets
from syncopate.collectives import Communicator
from syncopate.collectives.request import Request
from syncopate.engine import module as modules
from syncopate.engine import ownership
from syncopate.engine.agreement import require_same, together
from syncopate.engine.buckets import Trainable, build_buckets, dtype_name
from syncopate.engine.inventory import Inventory
from syncopate.engine.join import Join
from syncopate.engine.reducer import Reducer
from syncopate.engine.state import Buffers
from syncopate.engine.step import StepRecorder
from syncopate.engine.tail import Tail
from syncopate.errors import EngineError, InvalidValueError
from syncopate.plan import Plan
from syncopate.schedules import registry
from syncopate.timeline import Timeline
from syncopate.tracing import merge
from syncopate.workload import Workload


class Engine:
    """Exchanges the gradients of one model by a plan; made by ``distribute``.

    Args:
        model: the model, not yet attached.
        optimizer: its optimizer, whose steps are timed and must train nothing that is not averaged;
            None where it is not known.
        trainables: every parameter whose gradient is exchanged.
        buffers: the model's buffers.
        ignored: names of parameters that are every rank's own.
        group: the ranks; None for all.
        communicator: joins them.

    Attributes:
        workload: what self-planning measured of the model; None until then.
        model_name: the class of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        trainables: tuple[Trainable, ...],
        buffers: Buffers,
        ignored: frozenset[str],
        group: dist.ProcessGroup | None,
        communicator: Communicator,
    ) -> None:
        self.workload: Workload | None = None
        self._model = model
        self._trainables = trainables
        self._buffers = buffers
        self._group = group
        self._plan: Plan | None = None
        self._inside = False
        self._communicators = [communicator]
        self._planner: Callable[[], None] | None = None
        self._recorder: StepRecorder | None = None
        self._recording = False
        self.model_name = type(model).__name__
        self._inventory = Inventory(model, trainables, ignored)
        self._reducer = Reducer(trainables, buffers, communicator)
        self._update_start: Any = None
        # torch.compile has no business in here.
        self.forward_begins = torch.compiler.disable(self.forward_begins)  # type: ignore
        self.forward_ends = torch.compiler.disable(self.forward_ends)  # type: ignore
        # They keep the engine at work as long as the optimizer is, whatever becomes of the model.
        self._optimizer_hooks = (
            [
                optimizer.register_step_pre_hook(self._update_begins),
                optimizer.register_step_post_hook(self._update_ends),
            ]
            if optimizer is not None
            else []
        )
        self._parameters_known = -1
        ownership.claim(self)

    # -- what users touch -----------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan at work."""
        assert self._plan is not None
        return self._plan

    @property
    def communicator(self) -> Communicator:
        """Joins the ranks; its collectives may be used between iterations."""
        return self._reducer.communicator

    @property
    def tensors(self) -> tuple[tuple[str, int, str], ...]:
        """``(name, numel, dtype)`` of every exchanged gradient."""
        return tuple(
            (t.name, t.parameter.numel(), dtype_name(t.parameter)) for t in self._trainables
        )

    @property
    def planning(self) -> bool:
        """Whether self-planning is still going on."""
        return self._planner is not None

    def install(self, plan: Plan) -> None:
        """Train by ``plan`` from the next forward on; every rank calls it, between iterations.

        A self-planning that is still going on ends.

        Raises:
            PlanError: it is for another model or rank count.
            UnknownNameError: no such algorithm, or an option that it does not take.
            InvalidValueError: no such value of an option.
            EngineError: the ranks have different plans, or a backward is running.
        """
        together(self.communicator, lambda: self._require_fit(plan))
        self._require_same(plan)
        self._stop_planning()
        self.adopt(plan)

    def record(self, on: bool = True) -> None:
        """Start or stop noting when every step did what; a new start forgets the old record."""
        if on and not self._recording:
            self._recorder = StepRecorder(self.communicator.rank, self._reducer.clock)
            self._reducer.listeners.append(self._recorder.steps.append)
        elif not on and self._recording and self._recorder is not None:
            self._reducer.listeners.remove(self._recorder.steps.append)
        self._recording = on

    def timeline(self, name: str = "training") -> Timeline:
        """Return what was recorded, every rank on rank 0's clock; every rank calls it.

        Raises:
            EngineError: nothing was ever recorded.
        """
        if self._recorder is None:
            raise EngineError("there is no record; call record() before the steps to look at")
        spans = self._recorder.spans(self._reducer.last_update)
        offsets_s = clock_offsets(self.communicator)
        everyone = self.communicator.all_gather_object(spans)
        plan = self.plan
        metadata = {
            "model": plan.model,
            "policy": plan.policy,
            "buckets": str(len(plan.buckets)),
            "torch": str(torch.__version__),
        }
        return merge(everyone, name=name, offsets_s=offsets_s, metadata=metadata)

    def join(
        self,
        *,
        divide_by_initial_world_size: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        """Return a block in which ranks may run out of inputs; arguments as in DDP's ``join``."""
        if self.communicator.world_size == 1:
            return nullcontext()
        return Join(
            self._reducer,
            self._buffers,
            self._stop_planning,
            divide_by_initial_world_size=divide_by_initial_world_size,
            throw_on_early_termination=throw_on_early_termination,
        ).block()

    def detach(self) -> None:
        """Give the model back as it was; gradients are no longer exchanged."""
        self._stop_planning()
        ownership.release(self)
        self._inventory.forget()
        self._reducer.remove()
        for hook in self._optimizer_hooks:
            hook.remove()
        modules.detach(self._model)
        for communicator in self._communicators:
            communicator.close()

    # -- what ownership asks --------------------------------------------------------------------

    @property
    def exchanged(self) -> Mapping[int, str]:
        """Identity of every parameter whose gradient is exchanged here, and its name."""
        return self._inventory.exchanged

    @property
    def parameters(self) -> Collection[int]:
        """Identities of all parameters of the model, exchanged or not."""
        return self._inventory.parameters

    # -- what the module calls ------------------------------------------------------------------

    def forward_begins(self, training: bool) -> bool:
        """Prepare for a forward with gradients, unless it is inside another one.

        A model that calls itself in its forward is one forward.

        Returns:
            Whether it is the outermost, which :meth:`forward_ends` and :meth:`forward_leaves` are
            then called for.

        Raises:
            EngineError: the model's parameters are not those that were distributed, or somebody
                else exchanges their gradients as well.
        """
        if self._inside:
            return False
        self._reducer.forward_begins(training, self._require_trainable)
        self._inside = True
        return True

    def forward_ends(self, output: Any) -> None:
        """Watch what a forward returned for the backward to come."""
        self._reducer.forward_ends(modules.output_tensors(output))

    def forward_leaves(self) -> None:
        """Note that the outermost forward is over, well or badly."""
        self._inside = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let gradients of forwards inside accumulate locally (``no_sync``)."""
        before, self._reducer.paused = self._reducer.paused, True
        try:
            yield
        finally:
            self._reducer.paused = before

    # -- what distribute and self-planning call -------------------------------------------------

    @property
    def reducer(self) -> Reducer:
        """The machinery; not for users."""
        return self._reducer

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._trainables[0].parameter.device

    def planning_is_over(self) -> None:
        """Note that self-planning has ended."""
        self._planner = None

    def plan_with(self, stop: Callable[[], None]) -> None:
        """Note how to stop the self-planning that has begun."""
        self._planner = stop

    def adopt(self, plan: Plan) -> None:
        """Use ``plan``, which every rank is known to have and which fits."""
        if plan.channels > self.communicator.channels:
            # The one before stays open: a user may hold it.
            before = self.communicator.watch
            self._reducer.communicator = Communicator(
                self._group, channels=plan.channels, timeout_s=self.communicator.timeout_s
            )
            self._communicators.append(self.communicator)
            if before is not None and self.communicator.watch is not None:
                self.communicator.watch.expect(before.expected)
        by_name = {trainable.name: trainable for trainable in self._trainables}
        carrier = [by_name[name].parameter for name in plan.buckets[-1].tensors]
        # The tail rides with the last dtype of the last bucket.
        dtype = list(dict.fromkeys(parameter.dtype for parameter in carrier))[-1]
        tail = Tail(
            len(self._trainables),
            self.communicator.rank,
            self.communicator.world_size,
            self._buffers,
            dtype,
        )
        self._reducer.install(build_buckets(plan, self._trainables, tail.elements), tail)
        self._plan = plan

    def _require_fit(self, plan: object) -> None:
        if not isinstance(plan, Plan):
            raise InvalidValueError("plan", plan, "a syncopate.Plan")
        plan.require_fit(self.tensors, self.communicator.world_size)
        for bucket in plan.buckets:
            registry.require("all_reduce", bucket.algorithm, allow_native=True)
            options = bucket.all_options(plan.order)
            Request("all_reduce", bucket.algorithm, options=options).schedule(plan.world_size)

    def _require_trainable(self) -> None:
        ownership.require_alone(self)
        self._inventory.require_unchanged()

    def _require_same(self, plan: Plan) -> None:
        digest = hashlib.sha256(plan.to_json()).hexdigest()[:16]
        summary = f"{plan.policy}, {len(plan.buckets)} buckets, sha256 {digest}"
        require_same(self.communicator, [("the plan", summary)])

    def _stop_planning(self) -> None:
        if self._planner is not None:
            self._planner()

    def _update_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != self._parameters_known:
            ownership.require_averaged(optimizer)
            self._parameters_known = count
        self._update_start = self._reducer.clock.stamp()

    def _update_ends(self, *_: Any) -> None:
        self._reducer.note_update(self._update_start, self._reducer.clock.stamp())
