"""The best plan for a training that was recorded, and what it would save."""

from __future__ import annotations

from dataclasses import replace

from syncopate.analysis.causes.counterfactuals import WORTH
from syncopate.analysis.causes.explanation import Explanation
from syncopate.analysis.causes.trial import PLAN, TRANSFERS, Cause
from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.ranks.arrivals import handing_over_s
from syncopate.analysis.ranks.stragglers import SERVER
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import FSDP, Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError
from syncopate.planning.planner import make_plan

_PACE = 3.0
"""A workload that computes this many times as long as the training, or as short, is another's."""


_LEAST = 0.5
"""What is left at least of computation without the handing over of messages."""


def at_pace(timeline: Timeline, found: Explanation, workload: Workload) -> Workload:
    """Return a workload that computes as long as the training did, without what its plan cost.

    That is the handing over of messages, which is the more the more buckets a plan has.

    Raises:
        InvalidValueError: the workload is another training's.
    """
    trained = timeline.metadata.get("model", workload.model)
    _, plan_s = handing_over_s(timeline)
    own_s = max(found.compute_s - plan_s, _LEAST * found.compute_s)
    pace = own_s / workload.compute_s if workload.compute_s > 0 else 0.0
    if trained != workload.model or not 1 / _PACE <= pace <= _PACE:
        said = f"{workload.model}, which computes for {workload.compute_s:.3g} s"
        rule = f"that of the training: {trained}, which computed for {own_s:.3g} s"
        raise InvalidValueError("--workload", said, rule)
    return workload.scaled(pace)


def against_the_best(
    timeline: Timeline, found: Explanation, workload: Workload, cluster: Cluster
) -> tuple[Explanation, Plan]:
    """Return an explanation that says what the best plan would save, and that plan.

    It is made for the workload at the pace of the training, and compared with the iterations
    played again without stragglers, pauses and congestion, which no plan has.

    Args:
        timeline: of the training.
        found: its explanation.
        workload: what it trained, measured at any pace near its own.
        cluster: what it ran on.

    Raises:
        InvalidValueError: a cluster of other ranks, or the workload of another training.
    """
    if cluster.world_size != timeline.world_size:
        rule = f"of as many ranks as the training, {timeline.world_size}"
        raise InvalidValueError("--cluster", f"{cluster.name}: {cluster.world_size} ranks", rule)
    exchange = FSDP if timeline.metadata.get(EXCHANGE) == FSDP else None
    plan = make_plan(at_pace(timeline, found, workload), cluster, "auto", exchange=exchange)
    assert plan.prediction is not None
    # What computing alone takes beyond the median rank's computation, by any plan: gaps, and
    # that now one rank is the last and now another.
    beyond_s = max(found.bound_s - found.compute_s, 0.0)
    found = replace(found, bound_s=max(found.bound_s, plan.prediction.bound_s))
    # The cost of more buckets than were recorded is not known: as of those, since the bytes are.
    each_s, plan_s = handing_over_s(timeline)
    best_s = plan.prediction.iteration_s + min(each_s * len(plan.buckets), plan_s)
    gain_s = found.even_s - best_s - beyond_s
    least_s = WORTH * found.iteration_s
    if found.abstains or gain_s < least_s:
        return found, plan
    rest = [
        replace(one, gain_s=one.gain_s - gain_s) if one.kind in (TRANSFERS, SERVER) else one
        for one in found.causes
    ]
    causes = sorted((*rest, Cause(PLAN, (), gain_s)), key=lambda cause: -cause.gain_s)
    return replace(found, causes=tuple(one for one in causes if one.gain_s > least_s)), plan
