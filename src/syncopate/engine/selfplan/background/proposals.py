"""Proposals: the plans that compete, made and predicted; the work of ``process``.

Workloads are as measured here. So are clusters, with curves, and with the interference as soon as
it is known.

[Note: plans that need no measurement]
Small buckets in rings, scattered and gathered on two channels in turn, are close to the best plan
of most models on most networks. Such a plan takes the first turn, before anything is measured: so
short runs gain from it, and measuring goes on beside the faster of the two.

[Note: unexplained time]
Where several ranks share a processor, each step also takes what nothing here measures: switches
between threads, copies that wait for the memory of others. The plans that took turns show how much:
they were predicted and measured. The median of what the others took beyond their predictions is
added to the prediction of the one that stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, SHARDED, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.decide.noise import DRIFT
from syncopate.costs.model.training import stand_ins
from syncopate.engine.selfplan.contest import BEFORE, IDEAL, MOST, Ability, Contender, alike
from syncopate.engine.selfplan.ddp_buckets import DDP, Tensors, safe_plan
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.errors import UnknownNameError
from syncopate.planning import Policy, filled_to, make_plan, predict
from syncopate.units import MIB

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

RING = "ring"

SMALL_BYTES = 5 * MIB
"""What many set ``bucket_cap_mb`` to where the network is the limit."""


SHARDED_GAIN = 0.05
"""From which share of a step on the gain of another exchange is worth a word."""

_EQUAL_PARTS = (4, 8, 16, 32, 64)

Maker = Callable[[Workload, Cluster], Plan | None]
"""Makes a plan with its prediction; None where what was measured does not suffice for it."""


def unmeasured(model: str, tensors: Tensors, world_size: int, wishes: Wishes) -> Plan | None:
    """Return the plan of [Note: plans that need no measurement]; None where another is asked for.

    The gradients are in the order in which they are ready.
    """
    if wishes.policy is not None or not wishes.takes(DECOUPLED):
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
    policy, channels = filled_to(DECOUPLED_SIZES[UNMEASURED]), wishes.channels or 2
    made = _in_rings(guessed, network, policy, channels, DECOUPLED)
    if made is None:
        return None
    bare: Plan = replace(made, prediction=None, reason="")
    return bare


def makers(wishes: Wishes, able: Ability) -> dict[str, Maker]:
    """Return the functions that make the plans that compete with DDP's buckets, by name.

    Steps measured all-reduces, and what their halves cost is derived. In a ring no message is
    longer than a share, so that two channels disturb each other least. Hence plans of two halves
    compete with the algorithms that prices prefer, and in rings.
    """
    policy: str | Policy = wishes.policy or "optimal"
    found: dict[str, Maker] = {}
    if wishes.takes(ALLREDUCE):
        channels = wishes.channels or 1
        found[IDEAL] = partial(make_plan, policy=policy, exchange=ALLREDUCE, channels=channels)
        if wishes.policy is None:
            found[EQUAL] = partial(_equal, channels=channels)
        if wishes.channels is None:
            found[TWO_CHANNELS] = partial(make_plan, policy=policy, exchange=ALLREDUCE, channels=2)
        if wishes.policy is None and wishes.channels is None:
            found[EQUAL_TWO_CHANNELS] = partial(_equal, channels=2)
            found[NATIVE_SMALL] = _native_small
    channels = wishes.channels or 2
    if able.defers and wishes.takes(DECOUPLED):
        found[DECOUPLED_PLAN] = partial(
            make_plan, policy=policy, exchange=DECOUPLED, channels=channels
        )
        found[DECOUPLED_RINGS] = partial(
            _in_rings, policy=policy, channels=channels, exchange=DECOUPLED
        )
        for name, nbytes in DECOUPLED_SIZES.items() if wishes.policy is None else ():
            found[name] = partial(
                _in_rings, policy=filled_to(nbytes), channels=channels, exchange=DECOUPLED
            )
    if able.shards and wishes.takes(SHARDED):
        found[SHARDED_PLAN] = partial(make_plan, policy=policy, exchange=SHARDED, channels=channels)
        found[SHARDED_RINGS] = partial(
            _in_rings, policy=policy, channels=channels, exchange=SHARDED
        )
        if wishes.policy is None:
            found[SHARDED_SMALL] = partial(
                _in_rings, policy=filled_to(2 * MIB), channels=channels, exchange=SHARDED
            )
    return found


def proposals(
    workload: Workload, cluster: Cluster, wishes: Wishes, known: Mapping[str, Plan], able: Ability
) -> list[Contender]:
    """Return the plans worth a turn, each once, the known ones first.

    The known ones take a turn in any case: DDP's buckets in true ready order, and the plan before
    where a training plans again. Overlap is taken to cost what the cluster's interference says.

    Raises:
        PlanError: no plan can be made.
    """
    workload = with_forward(workload)
    found = [
        Contender(name, _predicted(plan, workload, cluster), []) for name, plan in known.items()
    ]
    for name, make in makers(wishes, able).items():
        if (plan := make(workload, cluster)) is not None:
            found.append(Contender(name, plan, []))
    return promising(distinct(found))


def _native_small(workload: Workload, cluster: Cluster) -> Plan:
    """Return the plan of DDP with smaller buckets."""
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
    running: Sequence[Contender], workload: Workload, cluster: Cluster, wishes: Wishes
) -> list[Contender]:
    """Predict the contenders with the measured interference, and add the plan made for it."""
    again = [
        Contender(one.name, _predicted(one.plan, workload, cluster), one.samples_s)
        for one in running
    ]
    if cluster.interference != Interference() and wishes.takes(ALLREDUCE):
        policy, channels = wishes.policy or "optimal", wishes.channels or 1
        plan = make_plan(workload, cluster, policy, exchange=ALLREDUCE, channels=channels)
        again.append(Contender(MEASURED, plan, []))
    return distinct(again)


def explained(
    one: Contender, everyone: Sequence[Contender], workload: Workload, cluster: Cluster
) -> Contender:
    """Predict a contender with the unexplained time of the others; [Note: unexplained time].

    ``everyone`` is the contenders that took turns, this one among them.
    """
    others = [other for other in everyone if other.name != one.name]
    beyond_s = _beyond_s(others, workload, cluster)
    found = replace(cluster.interference, unexplained_s=statistics.median(beyond_s or [0.0]))
    plan = _predicted(one.plan, workload, replace(cluster, interference=found))
    return Contender(one.name, plan, one.samples_s)


def gain_of_sharded(
    best: Contender, everyone: Sequence[Contender], workload: Workload, cluster: Cluster
) -> float:
    """Return by how many seconds a step with small sharded rings is expected to be shorter.

    It is 0 where that is less than ``SHARDED_GAIN``, or than predictions of what took turns were
    off, what is unexplained added to all of them.
    """
    plan = _in_rings(with_forward(workload), cluster, filled_to(2 * MIB), 2, SHARDED)
    beyond_s = _beyond_s(everyone, workload, cluster)
    if plan is None or not beyond_s:
        return 0.0
    unexplained_s = statistics.median(beyond_s)
    off_s = max(abs(seconds - unexplained_s) for seconds in beyond_s)
    gain_s = best.step_s - plan.expected_s - unexplained_s
    return gain_s if gain_s > max(SHARDED_GAIN * best.step_s, off_s) else 0.0


def _beyond_s(everyone: Sequence[Contender], workload: Workload, cluster: Cluster) -> list[float]:
    """Return the time of steps beyond their predictions, over all contenders that took turns."""
    return [
        one.step_s - _predicted(one.plan, workload, cluster).expected_s
        for one in everyone
        if one.samples_s
    ]


def distinct(contenders: Sequence[Contender]) -> list[Contender]:
    """Leave out a contender that trains as an earlier one does."""
    found: list[Contender] = []
    for one in contenders:
        if not any(alike(one.plan, other.plan) for other in found):
            found.append(one)
    return found


def promising(contenders: Sequence[Contender]) -> list[Contender]:
    """Return what trained so far, and those of the others that are expected to be the fastest."""
    known = [one for one in contenders if one.name in (DDP, BEFORE)]
    others = [one for one in contenders if one not in known]
    others = sorted(others, key=lambda one: one.plan.expected_s)[:MOST]
    return [one for one in contenders if one in known or one in others]


def _predicted(plan: Plan, workload: Workload, cluster: Cluster) -> Plan:
    """Return the plan as it is expected to go; as before, where no held step had its algorithm."""
    if plan.prediction is not None and stand_ins(cluster, plan):
        return plan
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
    limit_s = (1 + DRIFT) * min(plan.expected_s for plan in plans)
    return [plan for plan in plans if plan.expected_s <= limit_s][-1]
