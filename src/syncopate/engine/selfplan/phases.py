"""Phases: the steps that self-planning takes a training through, one after the other.

All of them train as any other step does; what is measured is what they do anyway.

1. Warm up on the safe plan: DDP's buckets, in reverse order of definition, native all-reduce.
2. Try the plan that needs no measurement. Where it is faster, training goes on by it meanwhile.
3. Probe the network between steps, a little at a time: hosts, racks, links. Where a cluster was
   given this falls away.
4. Hold some steps: every bucket is launched at the end of backward. So ready times are
   undisturbed, and the buckets sample what collectives of these sizes cost (``sampling``).
5. The plans that are expected to be the best (``proposals``) take turns with DDP's buckets in true
   ready order (``contest``). A held step among them tells what overlap costs this model here
   (``interference``), and a plan made for it joins.
6. The fastest beyond noise stays, is kept for the next run (``cache``), and one line says so.

A step that costs time waits until the training has earned it (``payback``); what fits and plans
runs beside it (``background``). A run for which a plan is kept begins with it (``start``), and
takes none of these steps. Where steps become slower later, a training plans again (``again``).

[Note: loaded when needed]
What probes the network takes as long to load as a step of a small model. So it is loaded when the
training has earned it, a part in each of some steps: a short run does without.
"""

from __future__ import annotations

import importlib
import math
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference, robust_mean
from syncopate.artifacts.disturbed import doubts
from syncopate.artifacts.plan import ALLREDUCE, SHARDED, Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.decide.noise import longer_beyond_noise
from syncopate.costs.model.bound import wire_s
from syncopate.engine.engine import Engine
from syncopate.engine.selfplan import cache, contest, log_lines
from syncopate.engine.selfplan.background.process import PlannerProcess
from syncopate.engine.selfplan.contest import Ability, Contender
from syncopate.engine.selfplan.ddp_buckets import DDP, first_plan, safe_plan
from syncopate.engine.selfplan.payback import SHARE, Budget, Costs
from syncopate.engine.selfplan.stepwise import WARMUP, Phases, Stepwise, Timed
from syncopate.engine.selfplan.time_slices import TimeSlices
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.engine.step import Step
from syncopate.errors import CollectiveError, PlanError, SyncopateError
from syncopate.profiling.forward_order import ForwardOrder
from syncopate.profiling.interference import Observed, interference_of
from syncopate.profiling.samples import Iteration, slowest, workload

if TYPE_CHECKING:
    from syncopate.calibration.probing import Network

PORTION = 0.5
"""What probing adds to a step where it does: about this share of it, as it comes to a report."""

LOADING_S = 0.3
"""What it may take to start what plans beside the training, where processors are scarce."""

LOOK_S = 0.2
"""After about so many seconds ranks look again whether an answer has come."""

TRIED_SHARE = 0.15
"""By which share of a step a plan that was never tried may be slower."""

HELD_SHARE = 0.7
"""How much longer a held step is taken to last, before one was seen."""

UNMEASURED_STEPS = 3
"""Counted steps of the plan that needs no measurement, and of DDP's buckets before it."""

LATELY = 12
"""So many steps by the faster plan tell whether it still is."""

AT_ONCE, AT_LEAST = 64, 8
"""Steps that are taken before ranks agree again whether enough is earned.

To agree, ranks wait for what is under way, which may cost more than some steps earn.
"""

LEAST_PROBE_S, MOST_PROBE_S, PROBE_STEPS = 0.4, 2.0, 3
"""What probing takes in all: as long as some steps, within limits."""

HELD_STEPS = 9
"""About how many are held; what is said first counts with them."""

SAMPLES = 2
"""Held steps of each plan of the ladder; of those of one bucket, one."""

NOTHING_TO_GAIN = 0.02
"""DDP's buckets within this share of the physical bound are left alone."""

_PROBES_THE_NETWORK = tuple(
    f"syncopate.calibration.{part}" for part in ("racks.search", "racks.discovery", "probing")
)
_PROPOSALS = "syncopate.engine.selfplan.background.proposals"
_SAMPLING = "syncopate.engine.selfplan.background.sampling"
_OVERHEAD = "syncopate.calibration.message_overhead"


class SelfPlanner(Stepwise):
    """Takes an engine through the phases in the module's text.

    Args:
        engine: runs the safe plan.
        wishes: what the user asked for.
        facts: what a plan found here is good for; rank 0 needs them.
        settled: called with the plan that stays and the cluster, as measured.
    """

    def __init__(
        self,
        engine: Engine,
        wishes: Wishes,
        facts: dict[str, str],
        settled: Callable[[Contender, Cluster], None],
    ) -> None:
        super().__init__(engine)
        self._settled = settled
        self._before: dict[str, Plan] = {}
        self._model = engine.model_name
        self._wishes = wishes
        self._cluster = wishes.cluster
        self._facts = facts
        self._costs = Costs()
        self._budget = Budget()
        self._held_s = 0.0
        self._meanwhile: Plan | None = None
        self._lately: list[float] = []
        self._contest: dict[str, Contender] = {}
        self._portions: TimeSlices[Network] | None = None
        self._aside: PlannerProcess | None = None

    def start(self) -> None:
        """Begin with the engine's next step; every rank calls it."""
        self._meanwhile = self._engine.plan
        self.begin(self._run())

    def stop(self) -> None:
        """End here and now, with the plan at work."""
        if self._portions is not None:
            self._portions.stop()
        if self._aside is not None:
            self._aside.close()
        super().stop()

    def _step(self, step: Step) -> None:
        self._costs.step_is_over()
        self._budget.step_is_over()
        began_s = time.perf_counter()
        super()._step(step)
        self._budget.spend(time.perf_counter() - began_s)
        self._costs.planning_is_over()

    # -- the phases -----------------------------------------------------------------------------

    def _run(self) -> Phases[None]:
        try:
            yield from self._course()
        except CollectiveError:
            raise
        except SyncopateError as error:
            self._fail(error)

    def _course(self) -> Phases[None]:
        step_s = yield from self._warm_up()
        self._announce(step_s)
        yield from self._begin_aside()
        yield from self._try_unmeasured()
        yield from self._plan(step_s)

    def _warm_up(self) -> Phases[float]:
        """Return what a step takes."""
        warm = yield from self._steps(WARMUP)
        self._costs = Costs()
        step_s = self._agreed(self._durations(warm[1:])[-1])
        self._budget.step_s = step_s
        self._held_s = HELD_SHARE * step_s
        return step_s

    def _fail(self, error: SyncopateError) -> None:
        """Train on without a plan of its own."""
        engine = self._engine
        engine.adopt(safe_plan(self._model, engine.tensors, engine.communicator.world_size))
        self._say(f"stays on DDP's buckets, because planning failed: {error}")

    def _afford(self, cost_s: float) -> Phases[None]:
        """Train on until ``cost_s`` may be spent, by the best plan known so far."""
        least, asking_s = AT_LEAST, 0.0
        while True:
            spent_s = self._budget.spent_s
            # What it takes to agree again has to be earned as well.
            count = self._budget.steps_until(cost_s)
            count = count and min(self._budget.steps_until(cost_s + asking_s), AT_ONCE)
            if not (count := self._agreed(count)):
                return
            yield from self._train(max(count, least))
            asking_s = self._budget.spent_s - spent_s
            least = min(2 * least, AT_ONCE)

    def _train(self, count: int) -> Phases[list[Timed]]:
        """Train on by the best plan known so far, as long as it is the best; return the steps."""
        if self._meanwhile is not None and self._engine.plan != self._meanwhile:
            self._engine.adopt(self._meanwhile)
        timed = yield from self._steps(count)
        if not self._budget.gain_s:
            return timed
        self._budget.gain(count)
        self._lately = [*self._lately, *self._durations(timed)][-LATELY:]
        if len(self._lately) == LATELY:
            gain_s = self._agreed(self._budget.step_s - robust_mean(self._lately))
            self._budget.gain_s = max(gain_s, 0.0)
            if gain_s <= 0:
                self._meanwhile = self._safe()
        return timed

    def _begin_aside(self) -> Phases[None]:
        """Start what plans beside the training, once it is earned."""
        yield from self._afford(LOADING_S)
        if self._engine.communicator.rank == 0:
            self._aside = PlannerProcess()
            # A model may be dropped meanwhile, and a rank may end.
            weakref.finalize(self, self._aside.close)

    def _answer(self, work: str, *arguments: object) -> Phases[Any]:
        """Return the result of ``work`` in rank 0's process, on every rank; the training goes on.

        Raises:
            PlanError: it refused, or ended.
        """
        communicator = self._engine.communicator
        asked = self._aside.run(work, *arguments) if self._aside is not None else None
        step_s = self._budget.step_s
        count = self._agreed(max(round(LOOK_S / step_s), AT_LEAST) if step_s > 0 else AT_LEAST)
        while not self._agreed(asked is not None and asked.done()):
            timed = yield from self._train(count)
            # The process takes processors and memory from the training.
            self._budget.spend(self._budget.beyond_s(self._own_durations(timed)))
        answer: tuple[Any, str] = (None, "")
        if asked is not None:
            error = asked.exception()
            answer = (None, str(error)) if error else (asked.result(), "")
        result, refused = communicator.broadcast_object(answer)
        if refused:
            raise PlanError(refused)
        return result

    def _try_unmeasured(self) -> Phases[None]:
        """Try the plan that needs no measurement, and train by it meanwhile if it is faster.

        See ``proposals``, [Note: plans that need no measurement].
        """
        engine = self._engine
        if not engine.defers:
            return
        order, ranks = list(reversed(engine.tensors)), engine.communicator.world_size
        plan = yield from self._answer(
            f"{_PROPOSALS}:unmeasured", self._model, order, ranks, self._wishes
        )
        if plan is None:
            return
        steps = contest.UNCOUNTED + UNMEASURED_STEPS
        yield from self._afford(TRIED_SHARE * steps * self._budget.step_s)
        before = yield from self._steps(UNMEASURED_STEPS)
        safe = self._durations(before)
        self._budget.step_s = self._agreed(robust_mean(safe))
        tried = yield from self._turn(plan, UNMEASURED_STEPS, None)
        gain_s = self._agreed(robust_mean(safe) - robust_mean(tried))
        if self._agreed(longer_beyond_noise(safe, tried)):
            self._meanwhile, self._budget.gain_s = plan, gain_s

    def _plan(self, step_s: float) -> Phases[None]:
        """Measure, plan, compare, and keep the best."""
        cluster, safe_s = yield from self._probe(step_s)
        measured, curves, least_s = yield from self._hold(cluster)
        self._engine.workload = measured
        self._cluster = cluster = replace(cluster, curves=curves, interference=Interference())
        if self._engine.communicator.detector is not None:
            self._engine.communicator.detector.expect(cluster)
        tensors = [(tensor.name, tensor.numel, tensor.dtype) for tensor in measured.tensors]
        ddp = safe_plan(self._model, tensors, cluster.world_size)
        # Held steps that a busy machine delayed must not make the bound look close.
        bound_s = least_step_s(least_s, measured, cluster)
        enough = safe_s <= (1 + NOTHING_TO_GAIN) * bound_s
        if self._agreed(enough and self._wishes.exchange != SHARDED):
            only = Contender(DDP, ddp, [safe_s])
            why = f"is within {NOTHING_TO_GAIN:.0%} of what any plan can reach"
            yield from self._settle(only, only, why)
            return
        contenders = yield from self._answer(
            f"{_PROPOSALS}:proposals",
            measured,
            cluster,
            self._wishes,
            {DDP: ddp} | self._before,
            Ability(defers=self._engine.defers, shards=self._engine.shardable),
        )
        self._engine.tries_spread = any(one.plan.exchange == SHARDED for one in contenders)
        if len(contenders) == 1:
            contenders[0].samples_s.append(safe_s)
            yield from self._settle(contenders[0], contenders[0], "is the best plan itself")
            return
        rivals = yield from self._compete(contenders, measured, cluster)
        best = self._agreed(contest.winner(rivals, self._wishes.exchange).name)
        by_name = {one.name: one for one in rivals}
        turns = tuple(self._contest.values())
        kept = yield from self._answer(
            f"{_PROPOSALS}:explained", by_name[best], turns, measured, self._cluster or cluster
        )
        yield from self._settle(kept, contest.defender(rivals), "")

    def _compete(
        self, contenders: list[Contender], measured: Workload, cluster: Cluster
    ) -> Phases[list[Contender]]:
        """Let plans take turns; return those of the last round."""
        names = [one.name for one in contenders if one.plan.exchange == ALLREDUCE]
        watching = contest.IDEAL if contest.IDEAL in names else names[-1]
        for number, (turns, counted) in enumerate(contest.ROUNDS):
            observed: tuple[list[Any], list[Any]] = ([], [])
            for turn in range(turns):
                # Every other turn the other way round, so that a drift of the machine cancels.
                for one in contenders if turn % 2 == 0 else contenders[::-1]:
                    watched = observed if number == 0 and one.name == watching else None
                    yield from self._afford(self._risk_s(one, counted))
                    one.samples_s += yield from self._turn(one.plan, counted, watched)
            self._contest |= {one.name: one for one in contenders}
            if number == 0:
                found = self._agreed(interference_of(*observed) if observed[0] else Interference())
                self._cluster = cluster = replace(cluster, interference=found)
                newer = yield from self._answer(
                    f"{_PROPOSALS}:with_interference", contenders, measured, cluster, self._wishes
                )
                fresh = [one for one in newer if not one.samples_s]
                contenders = contest.faster_half([one for one in newer if one.samples_s]) + fresh
            elif number + 1 < len(contest.ROUNDS):
                contenders = contest.faster_half(contenders)
            contenders = self._agreed(contenders)
        return contenders

    def _risk_s(self, one: Contender, counted: int) -> float:
        """Return the time that a turn may cost beyond ordinary steps."""
        slower_s = TRIED_SHARE * self._budget.step_s
        if one.samples_s:
            slower_s = one.step_s - self._budget.step_s
        return max((contest.UNCOUNTED + counted) * slower_s, 0.0)

    def _turn(
        self, plan: Plan, counted: int, watched: tuple[list[Any], list[Any]] | None
    ) -> Phases[list[float]]:
        """Train a turn on ``plan``; return its counted steps in seconds, the same on all ranks.

        Args:
            plan: whose turn it is.
            counted: how many steps count, after some that do not.
            watched: takes what a held step did, and what the counted ones did.
        """
        self._engine.adopt(plan)
        first = yield from self._steps(contest.UNCOUNTED)
        held: list[Timed] = []
        if watched is not None:
            held = yield from self._steps(1, held=True)
            watched[0].append(self._observe(held[0].step))
        timed = yield from self._steps(counted)
        if watched is not None:
            watched[1].extend(self._observe(one.step) for one in timed)
        durations = self._durations([*first, *held, *timed])
        self._budget.spend(self._budget.beyond_s(durations))
        return durations[-counted:]

    def _probe(self, step_s: float) -> Phases[tuple[Cluster, float]]:
        """Return the cluster without curves, and what a step takes on the safe plan."""
        budget_s, portion_s = probing_of(step_s)
        if self._cluster is None:
            probe = yield from self._loaded()
            communicator = self._engine.communicator
            self._portions = TimeSlices(
                communicator, lambda progress: probe(communicator, budget_s, progress)
            )
            # A model may be dropped meanwhile, and the thread would wait for its steps for ever.
            weakref.finalize(self, self._portions.stop).atexit = False
            yield from self._afford(portion_s)
            while not self._portions.resume(portion_s):
                yield from self._steps(1)
                yield from self._afford(portion_s)
            bare = self._portions.result
            handling = yield from self._answer(f"{_OVERHEAD}:handling_of", *bare)
            self._cluster = replace(bare.cluster, handling=handling)
        safe = self._safe()
        if self._engine.plan != safe:
            self._engine.adopt(safe)
            yield from self._steps(contest.UNCOUNTED)
        timed = yield from self._steps(PROBE_STEPS)
        durations = self._durations(timed)
        self._budget.step_s = self._agreed(robust_mean(durations))
        return self._cluster, self._budget.step_s

    def _loaded(self) -> Phases[Any]:
        """Return the function that probes the network; see [Note: loaded when needed]."""
        for name in _PROBES_THE_NETWORK:
            module = importlib.import_module(name)
            yield from self._steps(1)
        return module.probe

    def _safe(self) -> Plan:
        """Return the safe plan, the same on all ranks."""
        engine = self._engine
        plan = first_plan(self._model, engine.tensors, engine.communicator.world_size)
        return self._agreed(plan)

    def _hold(self, cluster: Cluster) -> Phases[tuple[Workload, Any, float]]:
        """Return the workload, the curves of collectives and the fastest computation, all held."""
        engine = self._engine
        plans = yield from self._answer(
            f"{_SAMPLING}:sampling_plans", self._model, engine.tensors, cluster
        )
        ladders = [plan for plan in plans if len(plan.buckets) > 1] or list(plans)
        wholes = [plan for plan in plans if plan not in ladders]
        steps: list[Any] = []
        own: list[Iteration] = []
        used: tuple[str, ...] = ()
        for plan in [*ladders * SAMPLES, *wholes]:
            yield from self._afford(self._held_s)
            engine.adopt(plan)
            uses = ForwardOrder(engine.model)
            with nullcontext() if used else uses:
                timed = yield from self._steps(1, held=True)
                steps.append((plan, engine.communicator.all_gather_object(timed[0].step.timings)))
                lasted_s = self._durations(timed)[0]
                timed += yield from self._steps(1)
            used = used or uses.names
            engine.readiness.clock.finish()
            own.append(self._iteration(timed[0].step, timed[1]))
            self._held_s = self._budget.beyond_s([lasted_s])
            self._budget.spend(self._held_s)
        everyone = engine.communicator.all_gather_object(own)
        sizes = {name: (numel, dtype) for name, numel, dtype in engine.tensors}
        iterations = [slowest(ranks) for ranks in zip(*everyone, strict=True)]
        iterations[-1].used = used
        clock = {"clock": engine.readiness.clock.name}
        least_s = min(one.forward_s + one.backward_s + one.update_s for one in iterations)
        measured = workload(self._model, sizes, iterations, clock, engine.kept_whole)
        measured = replace(measured, buffers_nbytes=engine.buffers_nbytes)
        curves = yield from self._answer(f"{_SAMPLING}:curves_of", steps)
        measured, least_s = self._agreed((measured, least_s))
        return measured, curves, least_s

    # -- its parts ------------------------------------------------------------------------------

    def _observe(self, step: Step) -> list[Observed]:
        """Return every rank's measurements of a step."""
        clock = self._engine.readiness.clock
        clock.finish()
        begin_s, end_s = clock.host_s(step.backward_start), clock.host_s(step.backward_end)
        own = Observed(
            backward_s=clock.between_s(step.backward_start, step.backward_end),
            span=None if begin_s is None or end_s is None else (begin_s, end_s),
            timings=step.timings,
        )
        everyone: list[Observed] = self._engine.communicator.all_gather_object(own)
        return everyone

    def _iteration(self, step: Step, after: Timed) -> Iteration:
        """Return the computation of ``step``; all up to the next forward is its update."""
        clock = self._engine.readiness.clock
        began, resumed = step.forward_start, after.step.called
        names = [name for name, _, _ in self._engine.tensors]
        return Iteration(
            forward_s=clock.between_s(began, step.backward_start) if began is not None else 0.0,
            backward_s=clock.between_s(step.backward_start, step.backward_end),
            update_s=clock.between_s(after.began, resumed) if resumed is not None else 0.0,
            ready_s={names[i]: clock.between_s(step.backward_start, at) for i, at in step.ready},
            began_s=clock.host_s(began) if began is not None else None,
            host=socket.gethostname(),
        )

    # -- what stays, and what is said -----------------------------------------------------------

    def _settle(self, best: Contender, defends: Contender, why: str) -> Phases[None]:
        """Train on with ``best``, which had to beat ``defends``, and say so."""
        self._meanwhile = best.plan
        self._engine.adopt(best.plan)
        assert self._cluster is not None
        self._engine.recording.ran_on(self._cluster)
        said = yield from self._told(best, defends, why)
        said += [f"warning: {text}" for text in doubts(self._cluster)]
        self._say("; ".join(said))
        self._settled(best, self._cluster)

    def _told(self, best: Contender, ddp: Contender, why: str) -> Phases[list[str]]:
        """Keep ``best`` for the next run; return what to say."""
        sharded = yield from self._of_sharded(best)
        assert self._cluster is not None
        assert self._engine.workload is not None
        path = None
        if self._wishes.cache and self._engine.communicator.rank == 0:
            measured = (self._engine.workload, self._cluster)
            path = cache.keep(self._facts, best, ddp, measured, self._contest.values())
        kept = [f"the next run starts with it ({path})"] if path is not None else []
        return [log_lines.verdict(best, ddp, self._costs.beyond(ddp.step_s), why), *kept, *sharded]

    def _of_sharded(self, best: Contender) -> Phases[list[str]]:
        """Return what to say of the sharded exchange, where it would gain more than noise."""
        if not self._engine.shardable or self._wishes.exchange is not None:
            return []
        turns = tuple(self._contest.values())
        try:
            gain_s = yield from self._answer(
                f"{_PROPOSALS}:gain_of_sharded", best, turns, self._engine.workload, self._cluster
            )
        except PlanError:
            return []  # it was not asked for
        return [log_lines.of_sharded(gain_s)] if gain_s else []

    def _announce(self, step_s: float) -> None:
        """Log that self-planning begins, and after how many steps it may end."""
        cost_s = LOADING_S + HELD_STEPS * self._held_s
        cost_s += contest.steps_of(1 + contest.MOST) * TRIED_SHARE * step_s / 2
        if self._cluster is None:
            cost_s += probing_of(step_s)[0]
        steps = math.ceil(cost_s / (SHARE * step_s)) if step_s else 0
        where = cache.path_of(self._facts) if self._wishes.cache else None
        self._say(log_lines.announcement(steps, where.parent if where else None))


def probing_of(step_s: float) -> tuple[float, float]:
    """Return the seconds of probing in all, and in each step, for steps of ``step_s``."""
    return min(max(PROBE_STEPS * step_s, LEAST_PROBE_S), MOST_PROBE_S), PORTION * step_s


def least_step_s(least_s: float, measured: Workload, cluster: Cluster) -> float:
    """Return the least time of a step: the fastest computation, or the wire."""
    return max(least_s, wire_s(cluster, measured.nbytes))
