"""Self-planning: measure during the first iterations, plan, and keep the plan only if it is faster.

The course of it, counted in synchronised backwards, which are the same on every rank whatever else
a rank does between them (evaluation, logging):

1. warm up on the safe plan: DDP's buckets, in reverse order of definition, native all-reduce;
2. profile: every bucket is launched at the end of backward, so that no communication disturbs the
   ready times; the ranks agree on the workload of the slowest;
3. calibrate, unless a cluster was given; rank 0 plans and all ranks get its plan, and the safe plan
   again, now in true ready order;
4. run both in turns and compare the median iteration, each the maximum over ranks;
5. keep the faster, and say so in one line.
"""

from __future__ import annotations

import logging
import socket
import statistics
import sys
from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise

from syncopate.calibration.calibrate import calibrate
from syncopate.calibration.samples import Iteration, slowest, workload
from syncopate.cluster import Cluster, LinearFit
from syncopate.costs.functions import LinearCost
from syncopate.engine.engine import Engine
from syncopate.engine.step import Step
from syncopate.errors import CalibrationError, CollectiveError, SyncopateError
from syncopate.plan import Bucket, Plan
from syncopate.planning.planner import make_plan
from syncopate.planning.problem import Problem
from syncopate.planning.threshold import threshold
from syncopate.schedules.registry import NATIVE
from syncopate.units import dtype_bytes, format_seconds
from syncopate.workload import Workload, fingerprint

WARMUP = 3
"""Steps before anything is measured."""
PROFILED = 5
"""Steps whose ready times are measured."""
TURNS = 3
"""How often each of the two plans takes its turn."""
TURN_STEPS = 5
"""Steps of one turn; the first is not counted."""

CALIBRATION_BUDGET_S = 5.0
"""What calibration may take: it is time the training waits."""

_SILENT = LinearCost(LinearFit(a_s=0.0, b_s_per_byte=0.0))

Tensors = Iterable[tuple[str, int, str]]
"""``(name, numel, dtype)`` of gradients."""


class SelfPlanner:
    """Takes an engine through the course in the module's text.

    Args:
        engine: runs the safe plan.
        model: what to call the model.
        cluster: plan for it; calibrated when None.
        policy: makes the plan.
        channels: how many collectives the plan may run at once.
    """

    def __init__(
        self, engine: Engine, model: str, cluster: Cluster | None, policy: str, channels: int
    ) -> None:
        self._engine = engine
        self._model = model
        self._cluster = cluster
        self._policy = policy
        self._channels = channels
        self._course = self._run()

    def start(self) -> None:
        """Begin with the engine's next step."""
        next(self._course)
        self._engine.reducer.listeners.append(self._step)
        self._engine.plan_with(self.stop)

    def stop(self) -> None:
        """End here and now, with whatever plan is at work."""
        self._engine.reducer.held = False
        if self._step in self._engine.reducer.listeners:
            self._engine.reducer.listeners.remove(self._step)

    def _step(self, step: Step) -> None:
        try:
            self._course.send(step)
        except StopIteration:
            self.stop()
        except BaseException:
            self.stop()
            raise

    def _run(self) -> Generator[None, Step, None]:
        """The course; each ``yield`` is one step of training."""
        for _ in range(WARMUP):
            yield
        measured = yield from self._profile()
        try:
            safe, plan = self._plan(measured)
        except CollectiveError:
            raise
        except SyncopateError as error:
            self._say(f"stays on DDP's buckets, because planning failed: {error}")
            return
        if _same_buckets(safe, plan):
            self._engine.adopt(safe)
            self._say(f"plan {self._policy!r} is DDP's own {_buckets(safe)}: kept")
            return
        safe_s, plan_s = yield from self._compare(safe, plan)
        faster = plan_s < safe_s
        self._engine.adopt(plan if faster else safe)
        self._say(_verdict(plan, safe, plan_s, safe_s, faster))

    def _say(self, message: str) -> None:
        """Log what became of it, and what is wrong with the cluster, in one line."""
        warnings = self._cluster.warnings if self._cluster else ()
        _say(self._engine, "; ".join([message, *(f"warning: {text}" for text in warnings)]))

    def _profile(self) -> Generator[None, Step, Workload]:
        reducer = self._engine.reducer
        reducer.held = True
        steps: list[Step] = []
        for index in range(PROFILED + 1):
            # When an iteration ends is known when the next one comes.
            reducer.held = index < PROFILED
            steps.append((yield))
        reducer.clock.finish()
        own = [self._iteration(step, after) for step, after in pairwise(steps)]
        everyone = self._engine.communicator.all_gather_object(own)
        sizes = {name: (numel, dtype) for name, numel, dtype in self._engine.tensors}
        iterations = [slowest(ranks) for ranks in zip(*everyone, strict=True)]
        measured = workload(self._model, sizes, iterations, {"clock": reducer.clock.name})
        self._engine.workload = measured
        return measured

    def _iteration(self, step: Step, after: Step) -> Iteration:
        """Return the computation of ``step``; all up to the next forward is its update."""
        clock = self._engine.reducer.clock
        began, resumed = step.forward_start, after.forward_start
        names = [name for name, _, _ in self._engine.tensors]
        return Iteration(
            forward_s=clock.between_s(began, step.backward_start) if began is not None else 0.0,
            backward_s=clock.between_s(step.backward_start, step.backward_end),
            update_s=clock.between_s(step.end, resumed) if resumed is not None else 0.0,
            ready_s={names[i]: clock.between_s(step.backward_start, at) for i, at in step.ready},
            began_s=clock.host_s(began) if began is not None else None,
            host=socket.gethostname(),
        )

    def _plan(self, measured: Workload) -> tuple[Plan, Plan]:
        """Return the safe plan in true ready order and the policy's, rank 0's on every rank."""
        communicator = self._engine.communicator
        if self._cluster is None:
            self._cluster = calibrate(communicator, budget_s=CALIBRATION_BUDGET_S)
        cluster = self._cluster
        if communicator.watch is not None:
            communicator.watch.expect(cluster)
        answer: tuple[Plan, Plan] | str = ""
        if communicator.rank == 0:
            try:
                plan = make_plan(measured, cluster, self._policy, channels=self._channels)
                answer = (self._safe(measured, cluster), plan)
            except SyncopateError as error:
                answer = str(error)
        answer = communicator.broadcast_object(answer)
        if isinstance(answer, str):
            raise CalibrationError(answer)
        return answer

    def _safe(self, measured: Workload, cluster: Cluster) -> Plan:
        tensors = [(tensor.name, tensor.numel, tensor.dtype) for tensor in measured.tensors]
        return safe_plan(self._model, tensors, cluster.world_size)

    def _compare(self, safe: Plan, plan: Plan) -> Generator[None, Step, tuple[float, float]]:
        """Return the median iteration of both plans, measured in turns."""
        clock = self._engine.reducer.clock
        ends: tuple[list[list[object]], list[list[object]]] = ([], [])
        for _ in range(TURNS):
            for which, contender in enumerate((safe, plan)):
                self._engine.adopt(contender)
                turn: list[object] = []
                for _ in range(TURN_STEPS):
                    turn.append((yield).end)
                ends[which].append(turn)
        clock.finish()
        own = [
            [clock.between_s(a, b) for turn in turns for a, b in pairwise(turn)] for turns in ends
        ]
        everyone = self._engine.communicator.all_gather_object(own)
        medians = []
        for which in (0, 1):
            same = zip(*(rank[which] for rank in everyone), strict=True)
            medians.append(statistics.median(max(durations_s) for durations_s in same))
        return medians[0], medians[1]


def first_plan(model: str, tensors: Sequence[tuple[str, int, str]], world_size: int) -> Plan:
    """Return the safe plan before any ready time is known: parameters in reverse order."""
    return safe_plan(model, list(reversed(tensors)), world_size)


def safe_plan(model: str, tensors: Sequence[tuple[str, int, str]], world_size: int) -> Plan:
    """Return DDP's buckets over ``tensors`` in the order given, with the native all-reduce."""
    sizes = [numel * dtype_bytes(dtype) for _, numel, dtype in tensors]
    ends = threshold(Problem([0.0] * len(sizes), sizes, _SILENT))
    buckets = tuple(
        Bucket(
            tensors=tuple(name for name, _, _ in tensors[start:stop]),
            nbytes=sum(sizes[start:stop]),
            algorithm=NATIVE,
        )
        for start, stop in pairwise((0, *ends))
    )
    return Plan(
        model=model,
        fingerprint=fingerprint(tensors),
        world_size=world_size,
        policy="threshold",
        buckets=buckets,
    )


def _same_buckets(one: Plan, other: Plan) -> bool:
    return one.channels == other.channels and [
        (set(bucket.tensors), bucket.algorithm) for bucket in one.buckets
    ] == [(set(bucket.tensors), bucket.algorithm) for bucket in other.buckets]


def _buckets(plan: Plan) -> str:
    return f"{len(plan.buckets)} bucket{'' if len(plan.buckets) == 1 else 's'}"


def _verdict(plan: Plan, safe: Plan, plan_s: float, safe_s: float, faster: bool) -> str:
    expected = plan.prediction
    expects = f" expects {format_seconds(expected.iteration_s)}," if expected else ""
    return (
        f"plan {plan.policy!r} ({_buckets(plan)}){expects} measured {format_seconds(plan_s)} per "
        f"iteration, DDP's {_buckets(safe)} {format_seconds(safe_s)}: "
        + ("kept" if faster else "not faster, so back to DDP's")
    )


def _say(engine: Engine, message: str) -> None:
    """Log one line on rank 0; on standard error where nobody configured logging."""
    if engine.communicator.rank != 0:
        return
    logger = logging.getLogger("syncopate")
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.info(message)
