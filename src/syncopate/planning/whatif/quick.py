"""Quick: a plan in a tenth of a second, for points of a sweep.

``auto`` plays tens of thousands of messages; a sweep of hundreds of points has no time for that.
Here a plan is the best of the exact ones: the optimum of backward alone, the one that is exact
under interference, and the one that is exact both ways on one channel, where something is pulled.
On one channel they are what ``auto`` begins with, and it improves them by a percent or less.
"""

from __future__ import annotations

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, FSDP, LIKE_DDP, SERVED, SHARDED, Plan
from syncopate.artifacts.results.whatif import Setting
from syncopate.artifacts.workload import Workload
from syncopate.costs.flows.curve import EVERYWHERE, Asked
from syncopate.costs.model.served import served_costs
from syncopate.costs.model.training import exchange_costs
from syncopate.delay import Delay, LocalSGD
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.planning.policies.auto import NEAR
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.policies.threshold import threshold
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.question import Draft, Question, predict
from syncopate.planning.registry import Policy
from syncopate.planning.search.both_ways import both_ways
from syncopate.planning.search.interference import least_disturbing
from syncopate.planning.search.player import Player
from syncopate.simulation.delay import with_delay
from syncopate.simulation.traffic import message_sizes

GLOO, NCCL = ("ring",), ("ring", "halving_doubling")
"""What carries DDP's buckets: the algorithm of Gloo; and of NCCL, whose trees take as many steps as
halving and doubling, and as many bytes."""

CLOSEST = 1.05
"""A price within this factor of another one is worth working out: it may be the cheapest."""

_CUTS = 256
"""A bucket may end where at least this part of all bytes has come since the last such place."""


def _draft(question: Question) -> Draft:
    return question.draft(_partition(question))


def _partition(question: Question) -> Partition:
    problem, workload = question.problem, question.workload
    interference = workload.interference_on(question.cluster)
    first = optimal(problem)
    if problem.pulls is None and interference.is_ideal:
        return first
    computed_s = workload.forward_s + workload.backward_s
    stops = _stops(problem)
    found = [first, threshold(problem)]
    if not interference.is_ideal:
        found.append(least_disturbing(problem, computed_s, interference, stops))
    if problem.pulls is not None:
        found.append(both_ways(problem, workload.forward_s, computed_s, stops))
    player = Player(problem, workload, interference, 1)
    return min(dict.fromkeys(found), key=player.score)


def _stops(problem: Problem) -> tuple[int, ...]:
    """Return the places where buckets may end: small gradients go with the next ones."""
    filled = problem.offsets.sum(axis=0).tolist()
    least, last = filled[-1] / _CUTS, 0.0
    found = []
    for stop, bytes_so_far in enumerate(filled[1:], start=1):
        if bytes_so_far - last >= least:
            found.append(stop)
            last = bytes_so_far
    return tuple(dict.fromkeys((*found, problem.length)))


QUICK = Policy(
    "quick", optimal, "the best of the exact partitions of one channel", "this project", _draft
)
"""The policy of points that ask for none."""

BLOCKS = "wfbp"
"""The same of ``fsdp``: a unit for each block, where a search would play hundreds of others."""


def planned(workload: Workload, cluster: Cluster, setting: Setting) -> Plan:
    """Return the plan of a setting: the best that it leaves open.

    Raises:
        UnknownNameError: no such exchange, policy or algorithm.
        InvalidValueError: settings that do not go together.
    """
    names = (setting.algorithm,) if setting.algorithm else None
    plans = []
    refused: list[UnknownNameError] = []
    for exchange in exchanges(setting):
        try:
            if exchange == SERVED and setting.servers:
                costs = served_costs(cluster, setting.servers)
            else:
                costs = exchange_costs(cluster, workload.nbytes, exchange, names, _asked(workload))
            plan = make_plan(
                workload,
                cluster,
                setting.policy or (BLOCKS if exchange == FSDP else QUICK),
                exchange=exchange,
                channels=None if exchange == FSDP else 1,
                algorithm=setting.algorithm or None,
                wire_dtype=setting.wire_dtype,
                costs=costs,
            )
        except UnknownNameError as error:  # an algorithm that its collectives do not have
            refused.append(error)
        else:
            plans.append(plan)
    if not plans:
        raise refused[0]
    limit_s = (1 + NEAR) * min(plan.expected_s for plan in plans)
    found = next(plan for plan in plans if plan.expected_s <= limit_s)
    if setting.pull_period:
        return with_delay(found, Delay(k=setting.pull_period), workload, cluster)
    if setting.local_sgd:
        local = found.delayed(LocalSGD(period=setting.local_sgd))
        return replace(local, prediction=predict(workload, local, cluster))
    return found


def _asked(workload: Workload) -> Asked:
    """Return where prices count: close to the cheapest.

    The cheapest has every bucket, unless a bucket has several dtypes: then one has them together.
    """
    several = len({tensor.dtype for tensor in workload.tensors}) > 1
    return EVERYWHERE if several else Asked(near=CLOSEST)


def ddp(workload: Workload, cluster: Cluster) -> Plan:
    """Return DDP's plan: buckets of 25 MiB, all-reduced by the backend of the profiled device."""
    names = NCCL if is_gpu(workload) else GLOO
    rings = make_plan(workload, cluster, "threshold", channels=1, algorithm=names[0])
    sizes = message_sizes(workload, rings, 1.0)[names[0]]  # buckets are the same by any algorithm
    asked = _asked(workload)._replace(sizes=sizes)
    costs = exchange_costs(cluster, workload.nbytes, ALLREDUCE, names, asked)
    return make_plan(workload, cluster, "threshold", exchange=ALLREDUCE, channels=1, costs=costs)


def is_gpu(workload: Workload) -> bool:
    """Say whether a workload was profiled on a GPU; where nothing is said, that is taken for so."""
    return workload.metadata.get("device") != "cpu"


def exchanges(setting: Setting) -> tuple[str, ...]:
    """Return the exchanges that a setting leaves open.

    Raises:
        InvalidValueError: an exchange, a delay and servers that do not go together.
    """
    given = setting.exchange
    if setting.pull_period and setting.local_sgd:
        rule = "0 with a pull period: weights come late, or are averaged"
        raise InvalidValueError("local_sgd", setting.local_sgd, rule)
    if setting.pull_period and given not in ("", *Delay.EXCHANGES):
        rule = f"one of {', '.join(Delay.EXCHANGES)} where weights are pulled every few steps"
        raise InvalidValueError("exchange", given, rule)
    if setting.local_sgd and given not in ("", *LocalSGD.EXCHANGES):
        rule = f"{' or '.join(LocalSGD.EXCHANGES)} with local SGD"
        raise InvalidValueError("exchange", given, rule)
    if setting.servers and given != SERVED:
        raise InvalidValueError("servers", setting.servers, f"0 without the {SERVED} exchange")
    if given:
        return (given,)
    if setting.pull_period:
        return (SHARDED,)
    return (ALLREDUCE,) if setting.local_sgd else LIKE_DDP
