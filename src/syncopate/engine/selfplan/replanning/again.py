"""Again: a training whose steps have become slower plans again, from what it knows.

It goes through the phases of the first time (``phases``), on the plan at work. Of what was measured
before, the links count still where computation alone has changed, such as with another batch size.
The plan at work takes part, and stays unless another is faster beyond noise. The cache keeps the
plan of the first time: the next run begins as this one did.
"""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.plan import LIKE_DDP
from syncopate.engine.engine import Engine
from syncopate.engine.selfplan import log_lines
from syncopate.engine.selfplan.contest import BEFORE, Contender, alike
from syncopate.engine.selfplan.phases import SelfPlanner
from syncopate.engine.selfplan.replanning.slowdown import (
    COMPUTATION,
    QUIET,
    Change,
    Slowdown,
    causes_of,
)
from syncopate.engine.selfplan.replanning.watch import PlanWatch
from syncopate.engine.selfplan.stepwise import Phases
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.errors import SyncopateError


def watch_over(
    engine: Engine, wishes: Wishes, plan: Contender, cluster: Cluster | None, quiet: int = 0
) -> None:
    """Watch the plan that ``engine`` trains by, and plan again where steps become slower.

    Not where no plan may depend on a clock, and not where another plan is another program than
    DDP's: parts of weights on the ranks, or a delay. Every rank calls it.

    Args:
        engine: on that plan.
        wishes: what the user asked for.
        plan: that plan, with its samples if there are some.
        cluster: the machines as measured; None: not in this run.
        quiet: windows in which no rank asks for another plan.
    """
    if wishes.deterministic or engine.delay is not None or plan.plan.exchange not in LIKE_DDP:
        return
    slowdown = Slowdown(plan.step_s if plan.samples_s else 0.0, quiet)

    def plan_again(change: Change | None) -> None:
        Again(engine, wishes, plan, cluster, (change, quiet)).start()

    engine.readiness.watch = PlanWatch(engine, slowdown, plan_again)


class Again(SelfPlanner):
    """Takes an engine through the phases once more.

    Args:
        engine: on the plan that settled.
        wishes: what the user asked for.
        before: that plan.
        cluster: the machines as measured; None: not in this run.
        asked: how this rank's steps changed, and the windows in which no rank might ask.
    """

    def __init__(
        self,
        engine: Engine,
        wishes: Wishes,
        before: Contender,
        cluster: Cluster | None,
        asked: tuple[Change | None, int],
    ) -> None:
        super().__init__(engine, wishes, {}, self._watch)
        self._before = {BEFORE: before.plan}
        self._at_work, self._known = Contender(before.name, before.plan, []), cluster
        self._change, self._quiet = asked
        self._slower = ""

    def _course(self) -> Phases[None]:
        step_s = yield from self._warm_up()
        self._look()
        yield from self._begin_aside()
        yield from self._plan(step_s)

    def _look(self) -> None:
        """Agree on what has become slower; links that have not are known."""
        everyone = self._engine.communicator.all_gather_object(self._change)
        changes = [change for change in everyone if change is not None]
        usual_s = statistics.fmean(change.usual.step_s for change in changes)
        now_s = statistics.fmean(change.now.step_s for change in changes)
        causes = self._agreed(causes_of(changes))
        self._slower = log_lines.slower(usual_s, now_s, causes)
        if self._cluster is None and causes == (COMPUTATION,) and self._known is not None:
            self._cluster = replace(self._known, curves=(), interference=Interference())

    def _fail(self, error: SyncopateError) -> None:
        """Train on by the plan before."""
        self._engine.adopt(self._at_work.plan)
        stays = log_lines.named(self._at_work.name, self._at_work.plan)
        self._say(f"{self._slower}; {stays} stays, because planning failed: {error}")
        self._watch(self._at_work, self._known)

    def _told(self, best: Contender, defends: Contender, why: str) -> Phases[list[str]]:
        """Return what to say; the cache has the plan of the first time."""
        cost_s = self._costs.beyond(defends.step_s)
        said = log_lines.replanned(best, self._at_work, defends, cost_s, why)
        yield from ()  # no step is needed
        return [f"{self._slower}; {said}"]

    def _watch(self, plan: Contender, cluster: Cluster | None) -> None:
        """Watch the plan that stays; a while without a question, if it is the one before."""
        quiet = (2 * self._quiet or QUIET) if alike(plan.plan, self._at_work.plan) else 0
        name = self._at_work.name if plan.name == BEFORE else plan.name
        named = Contender(name, plan.plan, plan.samples_s)
        watch_over(self._engine, self._wishes, named, cluster, quiet)
