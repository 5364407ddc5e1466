"""Contest: several plans take turns in the training, and the fastest beyond noise stays.

[Note: rounds] In every round each plan trains for a turn of some steps, of which the first two are
not counted: in them the memory of the plan before goes and that of this one comes. After each round
the slower half drops out, and turns become longer. DDP's buckets never drop out: the winner has to
beat them beyond noise, by the rule of ``costs/decisions``, or they stay.

[Note: one figure per step] Ranks leave a step one after the other, and who is late in one is early
in the next. The mean over ranks of a step's duration does not lean to either side, and the steps of
a turn add up to its time.

[Note: plans that need no measurement]
Small buckets in rings, scattered and gathered on two channels in turn, are close to the best plan
of most models on most networks. Such a plan takes the first turn, before anything is measured: so
short runs gain from it, and measuring goes on beside the faster of the two.

[Note: searched plans]
A plan on two channels, or one that hides in forward, is found by playing candidates, which takes
rank 0 about half a second. Where steps are not longer than that by far, buckets of some sizes
compete in its place: their plans are made at once.

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
from syncopate.engine.selfplan.safe import DDP, Tensors, safe_plan
from syncopate.engine.selfplan.wishes import Asked
from syncopate.errors import UnknownNameError
from syncopate.plan import ALLREDUCE, DECOUPLED, SHARDED, Plan
from syncopate.planning import Policy, filled_to, make_plan, predict
from syncopate.units import MIB
from syncopate.workload import GradientTensor, Workload

IDEAL = "ideal overlap"
MEASURED = "measured overlap"
EQUAL = "equal buckets"
TWO_CHANNELS = "two channels"
EQUAL_TWO_CHANNELS = "equal buckets on two channels"

NATIVE_SMALL = "DDP's buckets of 5 MB"
DECOUPLED_PLAN = "decoupled"
DECOUPLED_RINGS = "decoupled in rings"
DECOUPLED_SIZES = {f"decoupled in rings of {mib} MiB": mib * MIB for mib in (1, 2, 4)}
UNMEASURED = "decoupled in rings of 2 MiB"
SHARDED_PLAN = "sharded"
SHARDED_RINGS = "sharded in rings"
SHARDED_SMALL = "sharded in rings of 2 MiB"

SEARCHED_PLANS = frozenset(
    (TWO_CHANNELS, DECOUPLED_PLAN, DECOUPLED_RINGS, SHARDED_PLAN, SHARDED_RINGS)
)
"""Whose plans are searched for; see [Note: searched plans]."""

RING = "ring"

SMALL_BYTES = 5 * MIB
"""What many set ``bucket_cap_mb`` to where the network is the limit."""

ROUNDS = ((1, 2), (2, 2), (3, 3))
"""Turns of each plan and counted steps of a turn, round by round."""

MOST = 7
"""Plans that compete with DDP's buckets."""

UNCOUNTED = 2
"""Steps at the beginning of every turn that do not count; see [Note: rounds]."""

_EQUAL_PARTS = (4, 8, 16, 32, 64)

Maker = Callable[[Workload, Cluster], Plan | None]
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


@dataclass(frozen=True)
class Ability:
    """What the model's optimizers allow.

    Attributes:
        defers: steps may be left to the next forward, parameter by parameter.
        shards: a step may be spread over the ranks.
    """

    defers: bool = False
    shards: bool = False


def unmeasured(model: str, tensors: Tensors, world_size: int, asked: Asked) -> Plan | None:
    """Return the plan of [Note: plans that need no measurement]; None where another is asked for.

    Args:
        model: what to call the model.
        tensors: every gradient, in the order in which they are ready.
        world_size: number of ranks.
        asked: what the user wants.
    """
    if asked.policy is not None or not asked.takes(DECOUPLED):
        return None
    guessed = Workload(
        model=model,
        tensors=tuple(
            GradientTensor(name=name, numel=numel, dtype=dtype, backward_s=1e-3, forward_s=5e-4)
            for name, numel, dtype in tensors
        ),
        forward_s=5e-4 * len(tensors),
        backward_s=1e-3 * len(tensors),
    )
    network = Cluster.flat(world_size, latency_s=1e-4, bandwidth_bytes_per_s=1.25e8)
    policy, channels = filled_to(DECOUPLED_SIZES[UNMEASURED]), asked.channels or 2
    made = _in_rings(guessed, network, policy, channels, DECOUPLED)
    if made is None:
        return None
    bare: Plan = replace(made, prediction=None, reason="")
    return bare


def makers(asked: Asked, able: Ability, *, search: bool = True) -> dict[str, Maker]:
    """Return what makes the plans that compete with DDP's buckets, by name.

    Steps measured all-reduces, and what their halves cost is derived. In a ring no message is
    longer than a share, so that two channels disturb each other least. Hence plans of two halves
    compete with the algorithms that prices prefer, and in rings.

    Args:
        asked: what the user wants.
        able: what the optimizers allow.
        search: whether there is time for [Note: searched plans].
    """
    policy: str | Policy = asked.policy or "optimal"
    found: dict[str, Maker] = {}
    if asked.takes(ALLREDUCE):
        channels = asked.channels or 1
        if search or channels == 1 or asked.policy is not None:
            found[IDEAL] = partial(make_plan, policy=policy, exchange=ALLREDUCE, channels=channels)
        if asked.policy is None:
            found[EQUAL] = partial(_equal, channels=channels)
        if asked.channels is None and search:
            found[TWO_CHANNELS] = partial(make_plan, policy=policy, exchange=ALLREDUCE, channels=2)
        if asked.policy is None and asked.channels is None:
            found[EQUAL_TWO_CHANNELS] = partial(_equal, channels=2)
            found[NATIVE_SMALL] = _native_small
    channels = asked.channels or 2
    if able.defers and asked.takes(DECOUPLED):
        if search or asked.policy is not None:
            found[DECOUPLED_PLAN] = partial(
                make_plan, policy=policy, exchange=DECOUPLED, channels=channels
            )
            found[DECOUPLED_RINGS] = partial(
                _in_rings, policy=policy, channels=channels, exchange=DECOUPLED
            )
        for name, nbytes in DECOUPLED_SIZES.items() if asked.policy is None else ():
            found[name] = partial(
                _in_rings, policy=filled_to(nbytes), channels=channels, exchange=DECOUPLED
            )
    if able.shards and asked.takes(SHARDED):
        found[SHARDED_PLAN] = partial(make_plan, policy=policy, exchange=SHARDED, channels=channels)
        found[SHARDED_RINGS] = partial(
            _in_rings, policy=policy, channels=channels, exchange=SHARDED
        )
        if asked.policy is None:
            found[SHARDED_SMALL] = partial(
                _in_rings, policy=filled_to(2 * MIB), channels=channels, exchange=SHARDED
            )
    return found


def proposals(
    workload: Workload,
    cluster: Cluster,
    asked: Asked,
    ddp: Plan,
    able: Ability,
    *,
    search: bool = True,
) -> list[Contender]:
    """Return the plans worth a turn, each once, DDP's first.

    Args:
        workload: as measured.
        cluster: with curves; its interference is what overlap is taken to cost.
        asked: what the user wants.
        ddp: DDP's buckets in true ready order.
        able: what the optimizers allow.
        search: whether there is time for [Note: searched plans].

    Raises:
        PlanError: no plan can be made.
    """
    workload = with_forward(workload)
    found = [Contender(DDP, _predicted(ddp, workload, cluster))]
    for name, make in makers(asked, able, search=search).items():
        if (plan := make(workload, cluster)) is not None:
            found.append(Contender(name, plan))
    return distinct(found)


def expected_of_sharded(workload: Workload, cluster: Cluster) -> float | None:
    """Return what a step is expected to take with small sharded rings; None where none is known."""
    plan = _in_rings(with_forward(workload), cluster, filled_to(2 * MIB), 2, SHARDED)
    return None if plan is None else _expected_s(plan)


def _native_small(workload: Workload, cluster: Cluster) -> Plan:
    """Return what DDP would do with smaller buckets."""
    plan = safe_plan(workload.model, _in_order(workload), cluster.world_size, SMALL_BYTES)
    return _predicted(plan, workload, cluster)


def _in_rings(
    workload: Workload, cluster: Cluster, policy: str | Policy, channels: int, exchange: str
) -> Plan | None:
    """Return a plan in rings; None where steps measured no ring."""
    try:
        return make_plan(
            workload, cluster, policy, exchange=exchange, channels=channels, algorithm=RING
        )
    except UnknownNameError:
        return None


def with_forward(workload: Workload) -> Workload:
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
    if cluster.interference != Interference() and asked.takes(ALLREDUCE):
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


def promising(contenders: Sequence[Contender]) -> list[Contender]:
    """Return DDP's buckets and those of the others that are expected to be the fastest."""
    others = sorted(
        (one for one in contenders if one.name != DDP), key=lambda one: _expected_s(one.plan)
    )
    return [one for one in contenders if one.name == DDP or one in others[:MOST]]


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
    prediction = predict(with_forward(workload), plan, cluster)
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
