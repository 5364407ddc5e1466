"""Course: the steps that self-planning takes a training through, one after the other.

All of them train as any other step does; what is measured is what they do anyway.

1. Warm up on the safe plan: DDP's buckets, in reverse order of definition, native all-reduce.
2. Try the plan that needs no measurement. Where it is faster, training goes on by it meanwhile.
3. Probe the network between steps, a little at a time: hosts, racks, links. Where a cluster was
   given this falls away.
4. Hold some steps: every bucket is launched at the end of backward. So ready times are
   undisturbed, and the buckets sample what collectives of these sizes cost (``sampling``).
5. Rank 0 plans; the plans take turns with DDP's buckets in true ready order (``contest``). A held
   step among them tells what overlap costs this model here (``interference``), and a plan made for
   it joins.
6. The fastest beyond noise stays, is kept for the next run (``cache``), and one line says so.

Whatever costs time waits until the training has earned it (``payback``). A run for which a plan is
kept begins with it (``start``), and takes none of these steps.
"""

from __future__ import annotations

import datetime
import functools
import math
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from msgspec.structs import replace

from syncopate.calibration.network import get_ready, probe
from syncopate.cluster import Cluster, Interference, robust_mean
from syncopate.costs.decide.decisions import longer_beyond_noise
from syncopate.costs.model.bound import wire_s
from syncopate.engine.engine import Engine
from syncopate.engine.selfplan import cache, contest, words
from syncopate.engine.selfplan.contest import Ability, Contender
from syncopate.engine.selfplan.interference import Observed, interference_of
from syncopate.engine.selfplan.payback import SHARE, Budget, Costs
from syncopate.engine.selfplan.portions import Portions
from syncopate.engine.selfplan.safe import DDP, first_plan, safe_plan
from syncopate.engine.selfplan.sampling import (
    MOST_ALGORITHMS,
    Samples,
    sampling_plans,
    timings,
)
from syncopate.engine.selfplan.stepwise import WARMUP, Course, Stepwise, Timed
from syncopate.engine.selfplan.wishes import Asked, Wishes
from syncopate.engine.step import Step
from syncopate.errors import CollectiveError, PlanError, SyncopateError
from syncopate.plan import ALLREDUCE, SHARDED, Plan
from syncopate.profiling.samples import Iteration, slowest, workload
from syncopate.profiling.uses import Uses
from syncopate.workload import Workload

PORTION = 0.5
LEAST_PORTION_S = 0.05
"""What probing adds to a step where it does: this share of it, and at least so many seconds."""

LOADING_S = 0.3
"""What it takes to load what the fits need."""

TRIED_SHARE = 0.15
"""By which share of a step a plan that was never tried may be slower."""

HELD_SHARE = 0.7
"""How much longer a held step is taken to last, before one was seen."""

SEARCH_S = 0.5
SEARCHED = 1.5
"""What a search takes, and how many steps long it may be: a pause of one step."""

SHARDED_GAIN = 0.05
"""From which share of a step on the gain of another exchange is more than predictions err."""

UNMEASURED_STEPS = 3
"""Counted steps of the plan that needs no measurement, and of DDP's buckets before it."""

NOTHING_ASKED = Asked()

AT_ONCE = 50
"""Steps that are taken before ranks look again whether enough is earned."""

LEAST_PROBE_S, MOST_PROBE_S, PROBE_STEPS = 0.4, 2.0, 3
"""What probing takes in all: as long as some steps, within limits."""

SAMPLES = 2
"""Held steps of each plan of the ladder; of those of one bucket, one."""

NOTHING_TO_GAIN = 0.02
"""DDP's buckets within this share of the physical bound are left alone."""

T = TypeVar("T")


class SelfPlanner(Stepwise):
    """Takes an engine through the course in the module's text.

    Args:
        engine: runs the safe plan.
        wishes: what the user asked for.
        facts: what a plan found here is good for; rank 0 needs them.
    """

    def __init__(self, engine: Engine, wishes: Wishes, facts: dict[str, str]) -> None:
        super().__init__(engine)
        self._model = engine.model_name
        self._wishes = wishes
        self._cluster = wishes.cluster
        self._facts = facts
        self._costs = Costs()
        self._budget = Budget()
        self._held_s = 0.0
        self._meanwhile: Plan | None = None
        self._contest: dict[str, Contender] = {}
        self._portions: Portions[Cluster] | None = None

    def start(self) -> None:
        """Begin with the engine's next step; every rank calls it."""
        self._meanwhile = self._engine.plan
        self.begin(self._run())

    def stop(self) -> None:
        """End here and now, with whatever plan is at work."""
        if self._portions is not None:
            self._portions.stop()
        super().stop()

    def _step(self, step: Step) -> None:
        self._costs.step_is_over()
        self._budget.step_is_over()
        began_s = time.perf_counter()
        super()._step(step)
        self._budget.spend(time.perf_counter() - began_s)
        self._costs.planning_is_over()

    # -- the course -----------------------------------------------------------------------------

    def _run(self) -> Course[None]:
        try:
            warm = yield from self._steps(WARMUP)
            self._costs = Costs()
            step_s = self._agreed(self._durations(warm[1:])[-1])
            self._budget.step_s = step_s
            self._held_s = HELD_SHARE * step_s
            self._announce(step_s)
            yield from self._try_unmeasured()
            yield from self._plan(step_s)
        except CollectiveError:
            raise
        except SyncopateError as error:
            engine = self._engine
            engine.adopt(safe_plan(self._model, engine.tensors, engine.communicator.world_size))
            self._say(f"stays on DDP's buckets, because planning failed: {error}")

    def _afford(self, cost_s: float) -> Course[None]:
        """Train on until ``cost_s`` may be spent, by the best plan known so far."""
        while count := self._agreed(min(self._budget.steps_until(cost_s), AT_ONCE)):
            if self._meanwhile is not None and self._engine.plan != self._meanwhile:
                self._engine.adopt(self._meanwhile)
            yield from self._steps(count)
            self._budget.gain(count)

    def _try_unmeasured(self) -> Course[None]:
        """Let the plan that needs no measurement be the one to train by meanwhile, if it is faster.

        See ``contest``, [Note: plans that need no measurement].
        """
        engine = self._engine
        plan = None
        if engine.defers:
            order = list(reversed(engine.tensors))
            ranks = engine.communicator.world_size
            plan = contest.unmeasured(self._model, order, ranks, self._wishes.asked)
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

    def _plan(self, step_s: float) -> Course[None]:
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
        if self._agreed(enough and self._wishes.asked.exchange != SHARDED):
            only = Contender(DDP, ddp, [safe_s])
            self._settle(only, only, f"is within {NOTHING_TO_GAIN:.0%} of what any plan can reach")
            return
        contenders = yield from self._propose(measured, cluster, ddp)
        self._engine.tries_spread = any(one.plan.exchange == SHARDED for one in contenders)
        if len(contenders) == 1:
            contenders[0].samples_s.append(safe_s)
            self._settle(contenders[0], contenders[0], "is the best plan itself")
            return
        rivals = yield from self._compete(contenders, measured, cluster)
        best = self._agreed(contest.winner(rivals, self._wishes.asked.exchange).name)
        by_name = {one.name: one for one in rivals}
        kept = self._on_rank_0(
            lambda: contest.explained(
                by_name[best], tuple(self._contest.values()), measured, self._cluster or cluster
            )
        )
        self._settle(kept, by_name[DDP], "")

    @property
    def _able(self) -> Ability:
        return Ability(defers=self._engine.defers, shards=self._engine.shardable)

    def _propose(self, measured: Workload, cluster: Cluster, ddp: Plan) -> Course[list[Contender]]:
        """Return the plans that compete; rank 0 makes them, one between two steps."""
        asked, able = self._wishes.asked, self._able
        search = self._agreed(SEARCHED * self._budget.step_s >= SEARCH_S)
        found = self._on_rank_0(
            lambda: contest.proposals(measured, cluster, NOTHING_ASKED, ddp, Ability())[:1]
        )
        for name, make in contest.makers(asked, able, search=search).items():
            if name in contest.SEARCHED_PLANS:
                yield from self._afford(SEARCH_S)

            def made(name: str = name, make: contest.Maker = make) -> Contender | None:
                plan = make(contest.with_forward(measured), cluster)
                return None if plan is None else Contender(name, plan)

            one = self._on_rank_0(made)
            found += [] if one is None else [one]
        return contest.promising(contest.distinct(found))

    def _compete(
        self, contenders: list[Contender], measured: Workload, cluster: Cluster
    ) -> Course[list[Contender]]:
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
                newer = self._on_rank_0(
                    functools.partial(
                        contest.with_interference, contenders, measured, cluster, self._wishes.asked
                    )
                )
                fresh = [one for one in newer if not one.samples_s]
                contenders = contest.faster_half([one for one in newer if one.samples_s]) + fresh
            elif number + 1 < len(contest.ROUNDS):
                contenders = contest.faster_half(contenders)
            contenders = self._agreed(contenders)
        return contenders

    def _risk_s(self, one: Contender, counted: int) -> float:
        """Return what a turn may cost beyond ordinary steps."""
        slower_s = TRIED_SHARE * self._budget.step_s
        if one.samples_s:
            slower_s = one.step_s - self._budget.step_s
        return max((contest.UNCOUNTED + counted) * slower_s, 0.0)

    def _turn(
        self, plan: Plan, counted: int, watched: tuple[list[Any], list[Any]] | None
    ) -> Course[list[float]]:
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
        for duration_s in durations:
            self._budget.spend(duration_s - self._budget.step_s)
        return durations[-counted:]

    def _probe(self, step_s: float) -> Course[tuple[Cluster, float]]:
        """Return the cluster without curves, and what a step takes on the safe plan."""
        budget_s, portion_s = probing_of(step_s)
        if self._cluster is None:
            yield from self._afford(LOADING_S)
            loading = self._loading()
            while self._agreed(loading.is_alive()):
                yield from self._steps(1)
            communicator = self._engine.communicator
            self._portions = Portions(
                communicator, lambda progress: probe(communicator, budget_s, progress)
            )
            # A model may be dropped meanwhile, and the thread would wait for its steps for ever.
            weakref.finalize(self, self._portions.stop).atexit = False
            yield from self._afford(portion_s)
            while not self._portions.resume(portion_s):
                yield from self._steps(1)
                yield from self._afford(portion_s)
            self._cluster = self._portions.result
        safe = self._agreed(self._safe())
        if self._engine.plan != safe:
            self._engine.adopt(safe)
            yield from self._steps(contest.UNCOUNTED)
        timed = yield from self._steps(PROBE_STEPS)
        durations = self._durations(timed)
        self._budget.step_s = self._agreed(robust_mean(durations))
        return self._cluster, self._budget.step_s

    def _safe(self) -> Plan:
        engine = self._engine
        return first_plan(self._model, engine.tensors, engine.communicator.world_size)

    def _loading(self) -> threading.Thread:
        """Begin to load what the fits need, beside the training."""
        rank = self._engine.communicator.rank
        loading = threading.Thread(target=get_ready, args=(rank,), name="syncopate-loading")
        loading.daemon = True
        loading.start()
        return loading

    def _hold(self, cluster: Cluster) -> Course[tuple[Workload, Any, float]]:
        """Return the workload, the curves of collectives and the fastest computation, all held."""
        engine = self._engine
        plans = self._on_rank_0(lambda: sampling_plans(self._model, engine.tensors, cluster))
        ladders = [plan for plan in plans if len(plan.buckets) > 1] or list(plans)
        wholes = [plan for plan in plans if plan not in ladders]
        samples = Samples()
        own: list[Iteration] = []
        used: tuple[str, ...] = ()
        for plan in [*ladders * SAMPLES, *wholes]:
            yield from self._afford(self._held_s)
            engine.adopt(plan)
            uses = Uses(engine.model)
            with nullcontext() if used else uses:
                timed = yield from self._steps(1, held=True)
                samples.add(plan, engine.communicator.all_gather_object(timings(timed[0].step)))
                lasted_s = self._durations(timed)[0]
                timed += yield from self._steps(1)
            used = used or uses.names
            engine.readiness.clock.finish()
            own.append(self._iteration(timed[0].step, timed[1]))
            self._held_s = max(lasted_s - self._budget.step_s, 0.0)
            self._budget.spend(self._held_s)
        everyone = engine.communicator.all_gather_object(own)
        sizes = {name: (numel, dtype) for name, numel, dtype in engine.tensors}
        iterations = [slowest(ranks) for ranks in zip(*everyone, strict=True)]
        iterations[-1].used = used
        clock = {"clock": engine.readiness.clock.name}
        least_s = min(one.forward_s + one.backward_s + one.update_s for one in iterations)
        measured = workload(self._model, sizes, iterations, clock, engine.kept_whole)
        measured = replace(measured, buffers_nbytes=engine.buffers_nbytes)
        return self._agreed((measured, samples.curves(), least_s))

    # -- its parts ------------------------------------------------------------------------------

    def _observe(self, step: Step) -> list[Observed]:
        """Return what every rank saw of a step."""
        clock = self._engine.readiness.clock
        clock.finish()
        begin_s, end_s = clock.host_s(step.backward_start), clock.host_s(step.backward_end)
        own = Observed(
            backward_s=clock.between_s(step.backward_start, step.backward_end),
            span=None if begin_s is None or end_s is None else (begin_s, end_s),
            timings=timings(step),
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

    def _on_rank_0(self, work: Callable[[], T]) -> T:
        """Return what rank 0 made of ``work``, on every rank.

        Raises:
            PlanError: rank 0 failed at it.
        """
        communicator = self._engine.communicator
        answer: tuple[T | None, str] = (None, "")
        if communicator.rank == 0:
            try:
                answer = (work(), "")
            except SyncopateError as error:
                answer = (None, str(error))
        result, failure = communicator.broadcast_object(answer)
        if failure:
            raise PlanError(failure)
        made: T = result
        return made

    # -- what stays, and what is said -----------------------------------------------------------

    def _settle(self, best: Contender, ddp: Contender, why: str) -> None:
        """Train on with ``best``, keep it for the next run, and say so."""
        self._engine.adopt(best.plan)
        assert self._cluster is not None
        assert self._engine.workload is not None
        path = None
        if self._wishes.cache and self._engine.communicator.rank == 0:
            path = cache.write(
                cache.Settled(
                    facts=self._facts,
                    plan=best.plan,
                    name=best.name,
                    step_s=best.step_s,
                    ddp_step_s=ddp.step_s,
                    workload=self._engine.workload,
                    cluster=self._cluster,
                    date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    contest=tuple(
                        cache.Turns(name=one.name, plan=one.plan, samples_s=tuple(one.samples_s))
                        for one in self._contest.values()
                    ),
                )
            )
        said = [words.verdict(best, ddp, self._costs.beyond(ddp.step_s), why)]
        if path is not None:
            said.append(f"the next run starts with it ({path})")
        said += self._of_sharded(best)
        said += [f"warning: {text}" for text in self._cluster.warnings]
        self._say("; ".join(said))

    def _of_sharded(self, best: Contender) -> list[str]:
        """Say what the sharded exchange would gain, where that is more than noise."""
        workload, cluster = self._engine.workload, self._cluster
        prediction = best.plan.prediction
        if self._engine.communicator.rank or not (self._engine.shardable and prediction):
            return []
        if self._wishes.asked.exchange is not None or workload is None or cluster is None:
            return []
        try:
            step_s = contest.expected_of_sharded(workload, cluster)
        except SyncopateError:
            return []  # nobody asked for it
        if step_s is None or step_s > (1 - SHARDED_GAIN) * prediction.iteration_s:
            return []
        return [words.of_sharded(step_s, prediction.iteration_s)]

    def _announce(self, step_s: float) -> None:
        """Say what begins, and after how many steps it may be over."""
        plans = len(contest.makers(self._wishes.asked, self._able)) + 1
        plans = min(plans, 1 + contest.MOST)
        cost_s = (SAMPLES + 1) * MOST_ALGORITHMS * self._held_s
        cost_s += contest.steps_of(plans) * TRIED_SHARE * step_s / 2
        if self._cluster is None:
            cost_s += probing_of(step_s)[0] + LOADING_S
        steps = math.ceil(cost_s / (SHARE * step_s)) if step_s else 0
        where = cache.path_of(self._facts) if self._wishes.cache else None
        self._say(words.announcement(steps, where.parent if where else None))


def probing_of(step_s: float) -> tuple[float, float]:
    """Return the seconds of probing in all, and in each step, for steps of ``step_s``."""
    budget_s = min(max(PROBE_STEPS * step_s, LEAST_PROBE_S), MOST_PROBE_S)
    return budget_s, max(PORTION * step_s, LEAST_PORTION_S)


def least_step_s(least_s: float, measured: Workload, cluster: Cluster) -> float:
    """Return what a step takes at least: the fastest computation, or the wire."""
    return max(least_s, wire_s(cluster, measured.nbytes))
