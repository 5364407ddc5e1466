"""Contest: several plans take turns in the training, and the fastest beyond noise stays.

[Note: rounds] In every round each plan trains for a turn of some steps, of which the first two are
not counted: in them the memory of the plan before goes and that of this one comes. After each round
the slower half drops out, and turns become longer. DDP's buckets never drop out: the winner has to
beat them beyond noise, by the rule of ``costs/decisions``, or they stay.

[Note: one figure per step] Ranks leave a step one after the other, and who is late in one is early
in the next. The mean over ranks of a step's duration does not lean to either side, and the steps of
a turn add up to its time.

[Note: unexplained time]
Where several ranks share a processor, each step also takes what nothing here measures: switches
between threads, copies that wait for the memory of others. The plans that took turns show how much:
they were predicted and measured. The median of what the others took beyond their predictions is
added to the prediction of the one that stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from syncopate.cluster import Cluster, Interference, robust_mean
from syncopate.costs.decide.decisions import DRIFT, longer_beyond_noise
from syncopate.engine.selfplan.safe import DDP, safe_plan
from syncopate.engine.selfplan.wishes import Asked
from syncopate.errors import UnknownNameError
from syncopate.plan import ALLREDUCE, SHARDED, Plan
from syncopate.planning import Policy, filled_to, make_plan, predict
from syncopate.units import MIB
from syncopate.workload import Workload

IDEAL = "ideal overlap"
MEASURED = "measured overlap"
EQUAL = "equal buckets"
TWO_CHANNELS = "two channels"
EQUAL_TWO_CHANNELS = "equal buckets on two channels"

NATIVE_SMALL = "DDP's buckets of 5 MB"
SHARDED_PLAN = "sharded"
SHARDED_RINGS = "sharded in rings"
SHARDED_SMALL = "sharded in rings of 2 MiB"

RING = "ring"

SMALL_BYTES = 5 * MIB
"""What many set ``bucket_cap_mb`` to where the network is the limit."""

ROUNDS = ((1, 2), (2, 2), (3, 3))
"""Turns of each plan and counted steps of a turn, round by round."""

UNCOUNTED = 2
"""Steps at the beginning of every turn that do not count; see [Note: rounds]."""

_EQUAL_PARTS = (4, 8, 16, 32, 64)

_Maker = Callable[[Workload, Cluster], Plan | None]
"""Makes a plan with its prediction; None where what was measured does not suffice for it."""


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


def proposals(
    workload: Workload, cluster: Cluster, asked: Asked, ddp: Plan, *, shardable: bool = False
) -> list[Contender]:
    """Return the plans worth a turn, each once, DDP's first.

    Args:
        workload: as measured.
        cluster: with curves; its interference is what overlap is taken to cost.
        asked: what the user wants.
        ddp: DDP's buckets in true ready order.
        shardable: whether the optimizer's step may be spread over the ranks.

    Raises:
        PlanError: no plan can be made.
    """
    workload = _with_forward(workload)
    found = [Contender(DDP, _predicted(ddp, workload, cluster))]
    for name, make in _makers(asked, shardable=shardable).items():
        if (plan := make(workload, cluster)) is not None:
            found.append(Contender(name, plan))
    return distinct(found)


def most(asked: Asked, *, shardable: bool) -> int:
    """Return how many plans compete at most, the one for a measured interference not counted.

    Args:
        asked: what the user wants.
        shardable: whether the optimizer's step may be spread over the ranks.
    """
    return 1 + len(_makers(asked, shardable=shardable))


def _makers(asked: Asked, *, shardable: bool) -> dict[str, _Maker]:
    """Return what makes the plans that compete with DDP's buckets, by name.

    Steps measured all-reduces, and what their halves cost is derived. In a ring no message is
    longer than a share, so that two channels disturb each other least. Hence sharded plans compete
    with the algorithms that prices prefer, and in rings.
    """
    policy: str | Policy = asked.policy or "optimal"
    found: dict[str, _Maker] = {}
    if asked.exchange in (None, ALLREDUCE):
        channels = asked.channels or 1
        found[IDEAL] = partial(make_plan, policy=policy, exchange=ALLREDUCE, channels=channels)
        if asked.policy is None:
            found[EQUAL] = partial(_equal, channels=channels)
        if asked.channels is None:
            found[TWO_CHANNELS] = partial(make_plan, policy=policy, exchange=ALLREDUCE, channels=2)
        if asked.policy is None and asked.channels is None:
            found[EQUAL_TWO_CHANNELS] = partial(_equal, channels=2)
            found[NATIVE_SMALL] = _native_small
    if shardable and asked.exchange in (None, SHARDED):
        channels = asked.channels or 2
        found[SHARDED_PLAN] = partial(make_plan, policy=policy, exchange=SHARDED, channels=channels)
        found[SHARDED_RINGS] = partial(_in_rings, policy=policy, channels=channels)
        if asked.policy is None:
            found[SHARDED_SMALL] = partial(_in_rings, policy=filled_to(2 * MIB), channels=channels)
    return found


def _native_small(workload: Workload, cluster: Cluster) -> Plan:
    """Return what DDP would do with smaller buckets."""
    plan = safe_plan(workload.model, _in_order(workload), cluster.world_size, SMALL_BYTES)
    return _predicted(plan, workload, cluster)


def _in_rings(
    workload: Workload, cluster: Cluster, policy: str | Policy, channels: int
) -> Plan | None:
    """Return a sharded plan in rings; None where steps measured no ring."""
    try:
        return make_plan(
            workload, cluster, policy, exchange=SHARDED, channels=channels, algorithm=RING
        )
    except UnknownNameError:
        return None


def _with_forward(workload: Workload) -> Workload:
    """Return the workload with its forward spread over layers as its backward is.

    Steps tell when each gradient is ready, and of forward only the whole.
    """
    if any(tensor.forward_s for tensor in workload.tensors):
        return workload
    backward_s = sum(tensor.backward_s for tensor in workload.tensors)
    if backward_s <= 0:
        return workload
    share = workload.forward_s / backward_s
    tensors = tuple(
        replace(tensor, forward_s=share * tensor.backward_s) for tensor in workload.tensors
    )
    spread: Workload = replace(workload, tensors=tensors)
    return spread


def _in_order(workload: Workload) -> list[tuple[str, int, str]]:
    return [(tensor.name, tensor.numel, tensor.dtype) for tensor in workload.tensors]


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
    if cluster.interference != Interference() and asked.exchange in (None, ALLREDUCE):
        policy, channels = asked.policy or "optimal", asked.channels or 1
        plan = make_plan(workload, cluster, policy, exchange=ALLREDUCE, channels=channels)
        again.append(Contender(MEASURED, plan))
    return distinct(again)


def explained(
    one: Contender, everyone: Sequence[Contender], workload: Workload, cluster: Cluster
) -> Contender:
    """Return a contender as the others' turns let expect it; see [Note: unexplained time].

    Args:
        one: who is to be predicted.
        everyone: all that took turns.
        workload: as measured.
        cluster: with curves and the interference measured.
    """
    beyond_s = [
        other.step_s - _expected_s(_predicted(other.plan, workload, cluster))
        for other in everyone
        if other.name != one.name and other.samples_s
    ]
    found = replace(cluster.interference, unexplained_s=statistics.median(beyond_s or [0.0]))
    plan = _predicted(one.plan, workload, replace(cluster, interference=found))
    return Contender(one.name, plan, one.samples_s)


def distinct(contenders: Sequence[Contender]) -> list[Contender]:
    """Leave out whoever trains like one that stands before."""
    found: list[Contender] = []
    for one in contenders:
        if not any(alike(one.plan, other.plan) for other in found):
            found.append(one)
    return found


def alike(one: Plan, other: Plan) -> bool:
    """Say whether two plans send the same messages in the same order."""
    kinds = [(plan.exchange, plan.channels, plan.pull_order) for plan in (one, other)]
    return kinds[0] == kinds[1] and _messages(one) == _messages(other)


def _messages(plan: Plan) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for bucket in plan.buckets:
        recipes = [recipe.in_order(plan.order) for _, recipe in bucket.recipes]
        found.append((set(bucket.tensors), bucket.elements, recipes))
    return found


def faster_half(contenders: Sequence[Contender]) -> list[Contender]:
    """Return DDP's buckets and the faster half of the others, rounded up, one at least."""
    others = sorted((one for one in contenders if one.name != DDP), key=lambda one: one.step_s)
    kept = others[: (len(others) + 1) // 2]
    return [one for one in contenders if one.name == DDP or one in kept]


def winner(contenders: Sequence[Contender], exchange: str | None = None) -> Contender:
    """Return the fastest that beats DDP's buckets beyond noise, or these.

    Args:
        contenders: DDP's buckets among them.
        exchange: the one to train by, where the user wants one; None for whichever is fastest.
    """
    ddp = next(one for one in contenders if one.name == DDP)
    wanted = [one for one in contenders if one.plan.exchange == exchange]
    best = min(wanted or contenders, key=lambda one: one.step_s)
    if wanted and ddp not in wanted:
        return best
    return best if longer_beyond_noise(ddp.samples_s, best.samples_s) else ddp


def steps_of(contenders: int) -> int:
    """Return how many steps a contest of so many takes, as long as nobody joins."""
    total, others = 0, contenders - 1
    for turns, counted in ROUNDS:
        total += (1 + others) * turns * (UNCOUNTED + counted)
        others = (others + 1) // 2
    return total


def _predicted(plan: Plan, workload: Workload, cluster: Cluster) -> Plan:
    prediction = predict(_with_forward(workload), plan, cluster)
    changed: Plan = replace(plan, prediction=prediction)
    return changed


def _equal(workload: Workload, cluster: Cluster, channels: int) -> Plan:
    """Return buckets of about equal size: the smallest that are expected to be as good as any.

    Small buckets leave early, and the last one ends soon after backward. Expectations closer than
    ``DRIFT`` are not told apart.
    """
    plans = [
        make_plan(workload, cluster, filled_to(max(workload.nbytes // parts, 1)), channels=channels)
        for parts in _EQUAL_PARTS
    ]
    limit_s = (1 + DRIFT) * min(map(_expected_s, plans))
    return [plan for plan in plans if _expected_s(plan) <= limit_s][-1]


def _expected_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s
