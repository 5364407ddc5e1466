"""Contest: several plans take turns in the training, and the fastest beyond noise stays.

[Note: rounds] In every round each plan trains for a turn of some steps, of which the first two are
not counted: in them the memory of the plan before goes and that of this one comes. After each round
the slower half drops out, and turns become longer. DDP's buckets never drop out: the winner has to
beat them beyond noise, by the rule of ``costs/decisions``, or they stay.

[Note: one figure per step] Ranks leave a step one after the other, and who is late in one is early
in the next. The mean over ranks of a step's duration does not lean to either side, and the steps of
a turn add up to its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from syncopate.cluster import Cluster, Interference, robust_mean
from syncopate.costs.decisions import DRIFT, longer_beyond_noise
from syncopate.plan import Plan
from syncopate.planning.planner import make_plan, predict
from syncopate.workload import Workload

DDP = "DDP's buckets"
IDEAL = "ideal overlap"
MEASURED = "measured overlap"
EQUAL = "equal buckets"
TWO_CHANNELS = "two channels"
EQUAL_TWO_CHANNELS = "equal buckets on two channels"

ROUNDS = ((1, 2), (2, 2), (3, 3))
"""Turns of each plan and counted steps of a turn, round by round."""

UNCOUNTED = 2
"""Steps at the beginning of every turn that do not count; see [Note: rounds]."""

_EQUAL_PARTS = (4, 8, 16, 32, 64)


@dataclass
class Contender:
    """A plan that competes.

    Attributes:
        name: what it is.
        plan: the plan, with its prediction.
        samples_s: its counted steps so far, in seconds.
    """

    name: str
    plan: Plan
    samples_s: list[float] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        """What a step is expected to take, by its samples."""
        return robust_mean(self.samples_s)


@dataclass(frozen=True)
class Asked:
    """What the user asked of a plan.

    Attributes:
        policy: who makes it; None for whichever is best.
        channels: how many collectives at once; None for whatever is best.
    """

    policy: str | None = None
    channels: int | None = None


def proposals(workload: Workload, cluster: Cluster, asked: Asked, ddp: Plan) -> list[Contender]:
    """Return the plans worth a turn, each once, DDP's first.

    Args:
        workload: as measured.
        cluster: with curves; its interference is what overlap is taken to cost.
        asked: what the user wants.
        ddp: DDP's buckets in true ready order.

    Raises:
        PlanError: no plan can be made.
    """
    channels = asked.channels or 1
    policy = asked.policy or "optimal"
    found = [
        Contender(DDP, _predicted(ddp, workload, cluster)),
        Contender(IDEAL, make_plan(workload, cluster, policy, channels=channels)),
    ]
    if asked.policy is None:
        found.append(Contender(EQUAL, _equal(workload, cluster, channels)))
    if asked.channels is None:
        found.append(Contender(TWO_CHANNELS, make_plan(workload, cluster, policy, channels=2)))
    if asked == Asked():
        found.append(Contender(EQUAL_TWO_CHANNELS, _equal(workload, cluster, 2)))
    return distinct(found)


def with_interference(
    running: Sequence[Contender], workload: Workload, cluster: Cluster, asked: Asked
) -> list[Contender]:
    """Return the contenders as a measured interference expects them, and the plan made for it.

    Args:
        running: who still competes.
        workload: as measured.
        cluster: with curves and the interference measured.
        asked: what the user wants.
    """
    again = [
        Contender(one.name, _predicted(one.plan, workload, cluster), one.samples_s)
        for one in running
    ]
    if cluster.interference != Interference():
        policy, channels = asked.policy or "optimal", asked.channels or 1
        plan = make_plan(workload, cluster, policy, channels=channels)
        again.append(Contender(MEASURED, plan))
    return distinct(again)


def distinct(contenders: Sequence[Contender]) -> list[Contender]:
    """Leave out whoever trains like one that stands before."""
    found: list[Contender] = []
    for one in contenders:
        if not any(alike(one.plan, other.plan) for other in found):
            found.append(one)
    return found


def alike(one: Plan, other: Plan) -> bool:
    """Say whether two plans send the same messages in the same order."""
    return one.channels == other.channels and _messages(one) == _messages(other)


def _messages(plan: Plan) -> list[tuple[object, ...]]:
    return [
        (set(bucket.tensors), bucket.algorithm, bucket.all_options(plan.order), bucket.channel)
        for bucket in plan.buckets
    ]


def faster_half(contenders: Sequence[Contender]) -> list[Contender]:
    """Return DDP's buckets and the faster half of the others, rounded up, one at least."""
    others = sorted((one for one in contenders if one.name != DDP), key=lambda one: one.step_s)
    kept = others[: (len(others) + 1) // 2]
    return [one for one in contenders if one.name == DDP or one in kept]


def winner(contenders: Sequence[Contender]) -> Contender:
    """Return the fastest that beats DDP's buckets beyond noise, or these."""
    ddp = next(one for one in contenders if one.name == DDP)
    best = min(contenders, key=lambda one: one.step_s)
    return best if longer_beyond_noise(ddp.samples_s, best.samples_s) else ddp


def steps_of(contenders: int) -> int:
    """Return how many steps a contest of so many takes, as long as nobody joins."""
    total, others = 0, contenders - 1
    for turns, counted in ROUNDS:
        total += (1 + others) * turns * (UNCOUNTED + counted)
        others = (others + 1) // 2
    return total


def _predicted(plan: Plan, workload: Workload, cluster: Cluster) -> Plan:
    prediction = predict(workload, plan.buckets, cluster, order=plan.order)
    changed: Plan = replace(plan, prediction=prediction)
    return changed


def _equal(workload: Workload, cluster: Cluster, channels: int) -> Plan:
    """Return buckets of about equal size: the smallest that are expected to be as good as any.

    Small buckets leave early, and the last one ends soon after backward. Expectations closer than
    ``DRIFT`` are not told apart.
    """
    plans = [
        make_plan(
            workload,
            cluster,
            "threshold",
            threshold_bytes=max(workload.nbytes // parts, 1),
            channels=channels,
        )
        for parts in _EQUAL_PARTS
    ]
    limit_s = (1 + DRIFT) * min(map(_expected_s, plans))
    return [plan for plan in plans if _expected_s(plan) <= limit_s][-1]


def _expected_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s
