"""Course: the steps that self-planning takes a training through, one after the other.

All of them train as any other step does; what is measured is what they do anyway.

1. Warm up on the safe plan: DDP's buckets, in reverse order of definition, native all-reduce.
2. Probe the network after each step, a tenth of a step at a time: hosts, racks, links. Where a
   cluster was given this falls away.
3. Hold some steps: every bucket is launched at the end of backward. So ready times are
   undisturbed, and the buckets sample what collectives of these sizes cost (``sampling``).
4. Rank 0 plans; the plans take turns with DDP's buckets in true ready order (``contest``). A held
   step among them tells what overlap costs this model here (``interference``), and a plan made for
   it joins.
5. The fastest beyond noise stays, is kept for the next run (``cache``), and one line says so.

A run for which a plan is kept begins with it (``start``), and takes none of them.
"""

from __future__ import annotations

import datetime
import functools
import math
import socket
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

from msgspec.structs import replace

from syncopate.calibration.network import get_ready, probe
from syncopate.cluster import Cluster, Interference, robust_mean
from syncopate.costs.model.bound import wire_s
from syncopate.engine.engine import Engine
from syncopate.engine.selfplan import cache, contest, words
from syncopate.engine.selfplan.contest import Contender
from syncopate.engine.selfplan.interference import Observed, interference_of
from syncopate.engine.selfplan.payback import Costs
from syncopate.engine.selfplan.portions import Portions
from syncopate.engine.selfplan.safe import DDP, safe_plan
from syncopate.engine.selfplan.sampling import (
    MOST_ALGORITHMS,
    Samples,
    sampling_plans,
    timings,
)
from syncopate.engine.selfplan.stepwise import WARMUP, Course, Stepwise, Timed
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.engine.step import Step
from syncopate.errors import CollectiveError, PlanError, SyncopateError
from syncopate.plan import SHARDED, Plan
from syncopate.profiling.samples import Iteration, slowest, workload
from syncopate.profiling.uses import Uses
from syncopate.workload import Workload

PORTION = 0.1
LEAST_PORTION_S = 0.05
"""What probing may add to a step: this share of it, and at least so many seconds."""

LEAST_PROBE_S, MOST_PROBE_S, PROBE_STEPS = 0.4, 2.0, 3
"""What probing takes in all: as long as some steps, within limits."""

SAMPLES = 3
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
        self._contest: dict[str, Contender] = {}
        self._portions: Portions[Cluster] | None = None

    def start(self) -> None:
        """Begin with the engine's next step; every rank calls it."""
        if self._cluster is None:
            # Not in the middle of a step, where all ranks would wait for it.
            get_ready(self._engine.communicator.rank)
        self.begin(self._run())

    def stop(self) -> None:
        """End here and now, with whatever plan is at work."""
        if self._portions is not None:
            self._portions.stop()
        super().stop()

    def _step(self, step: Step) -> None:
        self._costs.step_is_over()
        super()._step(step)
        self._costs.planning_is_over()

    # -- the course -----------------------------------------------------------------------------

    def _run(self) -> Course[None]:
        try:
            warm = yield from self._steps(WARMUP)
            self._costs = Costs()
            step_s = self._durations(warm[1:])[-1]
            self._announce(step_s)
            yield from self._plan(step_s)
        except CollectiveError:
            raise
        except SyncopateError as error:
            engine = self._engine
            engine.adopt(safe_plan(self._model, engine.tensors, engine.communicator.world_size))
            self._say(f"stays on DDP's buckets, because planning failed: {error}")

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
        contenders = self._on_rank_0(
            lambda: contest.proposals(
                measured, cluster, self._wishes.asked, ddp, shardable=self._engine.shardable
            )
        )
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

    def _compete(
        self, contenders: list[Contender], measured: Workload, cluster: Cluster
    ) -> Course[list[Contender]]:
        """Let plans take turns; return those of the last round."""
        for number, (turns, counted) in enumerate(contest.ROUNDS):
            observed: tuple[list[Any], list[Any]] = ([], [])
            for turn in range(turns):
                # Every other turn the other way round, so that a drift of the machine cancels.
                for one in contenders if turn % 2 == 0 else contenders[::-1]:
                    watched = observed if number == 0 and one.name == contest.IDEAL else None
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
        yield from self._steps(contest.UNCOUNTED)
        if watched is not None:
            held = yield from self._steps(1, held=True)
            watched[0].append(self._observe(held[0].step))
        timed = yield from self._steps(counted)
        if watched is not None:
            watched[1].extend(self._observe(one.step) for one in timed)
        return self._durations(timed)

    def _probe(self, step_s: float) -> Course[tuple[Cluster, float]]:
        """Return the cluster without curves, and what a step takes on the safe plan."""
        budget_s, portion_s = probing_of(step_s)
        timed: list[Timed] = []
        if self._cluster is None:
            communicator = self._engine.communicator
            self._portions = Portions(
                communicator, lambda progress: probe(communicator, budget_s, progress)
            )
            # A model may be dropped meanwhile, and the thread would wait for its steps for ever.
            weakref.finalize(self, self._portions.stop).atexit = False
            while not self._portions.resume(portion_s):
                timed += yield from self._steps(1)
            self._cluster = self._portions.result
        if len(timed) < PROBE_STEPS:
            timed += yield from self._steps(PROBE_STEPS - len(timed))
        return self._cluster, robust_mean(self._durations(timed))

    def _hold(self, cluster: Cluster) -> Course[tuple[Workload, Any, float]]:
        """Return the workload, the curves of collectives and the fastest computation, all held."""
        engine = self._engine
        plans = self._on_rank_0(lambda: sampling_plans(self._model, engine.tensors, cluster))
        ladders = [plan for plan in plans if len(plan.buckets) > 1] or list(plans)
        wholes = [plan for plan in plans if plan not in ladders]
        samples = Samples()
        timed: list[Timed] = []
        with Uses(engine.model) as uses:
            for plan in [*ladders * SAMPLES, *wholes]:
                engine.adopt(plan)
                timed += yield from self._steps(1, held=True)
                samples.add(plan, engine.communicator.all_gather_object(timings(timed[-1].step)))
            timed += yield from self._steps(1)
        engine.readiness.clock.finish()
        own = [self._iteration(one.step, after) for one, after in pairwise(timed)]
        everyone = engine.communicator.all_gather_object(own)
        sizes = {name: (numel, dtype) for name, numel, dtype in engine.tensors}
        iterations = [slowest(ranks) for ranks in zip(*everyone, strict=True)]
        iterations[-1].used = uses.names
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
        said += [f"warning: {text}" for text in self._cluster.warnings]
        self._say("; ".join(said))

    def _announce(self, step_s: float) -> None:
        plans = contest.most(self._wishes.asked, shardable=self._engine.shardable)
        probing = PROBE_STEPS
        if self._cluster is None:
            budget_s, portion_s = probing_of(step_s)
            probing = max(probing, math.ceil(budget_s / portion_s))
        steps = probing + (SAMPLES + 1) * MOST_ALGORITHMS + contest.steps_of(plans)
        where = cache.path_of(self._facts) if self._wishes.cache else None
        self._say(words.announcement(steps, step_s, where.parent if where else None))


def probing_of(step_s: float) -> tuple[float, float]:
    """Return the seconds of probing in all, and in each step, for steps of ``step_s``."""
    budget_s = min(max(PROBE_STEPS * step_s, LEAST_PROBE_S), MOST_PROBE_S)
    return budget_s, max(PORTION * step_s, LEAST_PORTION_S)


def least_step_s(least_s: float, measured: Workload, cluster: Cluster) -> float:
    """Return what a step takes at least: the fastest computation, or the wire."""
    return max(least_s, wire_s(cluster, measured.nbytes))
