"""Planner of units: which blocks to merge, how far ahead to gather, and what stays gathered.

Merging saves start-ups; small units begin and end sooner, and hold less memory. What is gathered
ahead hides longer, and takes memory too. So a plan is the fastest that holds no more gathered
weights at once than it may. Every choice is played (:mod:`syncopate.simulation.fsdp.units`): units
of so many neighbouring blocks and the partitions of the policies, with every prefetch and with as
many kept units as have room; and from the best of these what single changes of its units improve.

[Note: room] Keeping all weights gathered is never slower, and holds them all, which is not why one
shards. Unless told otherwise gathered weights may take a quarter of all weights, or what a unit for
each block takes that is gathered one ahead, if that is more. Not counted are gradients of a unit,
which take as much as its weights, and what torch copies them to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from syncopate.artifacts.artifact import require
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, FSDP, Plan
from syncopate.artifacts.sharding import Sharding
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.fsdp.question import UnitQuestion
from syncopate.planning.policies.auto import NEAR
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.registry import Policy, require_policy, rivals
from syncopate.planning.search.changes import improve, stops_of
from syncopate.simulation.fsdp.predict import predict_units
from syncopate.simulation.fsdp.traffic import unit_costs
from syncopate.units import format_bytes, format_seconds

PREFETCH = (1, 2, 3, 4)
"""Of how many units ahead weights are asked for."""

MERGED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Of how many neighbouring blocks units are made."""

_SHARE = 4
"""Gathered weights take up to such a part of all weights; see [Note: room]."""

_CHANGES = 100
"""Changes of units that are played."""


@dataclass(frozen=True)
class Limits:
    """What a plan of units may be.

    Attributes:
        held_bytes: the most bytes of weights that are gathered at once.
        prefetch: how far ahead, one of them.
        reshard: whether all units but the root are gathered again for backward; None for what has
            room.
    """

    held_bytes: int
    prefetch: tuple[int, ...]
    reshard: bool | None


def make_fsdp_plan(
    workload: Workload,
    cluster: Cluster,
    policy: str | Policy = "optimal",
    *,
    memory_bytes: int | None = None,
    prefetch: int | None = None,
    reshard: bool | None = None,
    shard_ranks: int = 0,
    costs: Costs | None = None,
) -> Plan:
    """Plan how ``fully_shard`` trains a model: its units, how far ahead they are gathered.

    Args:
        workload: the model's gradients and times; its weights are taken to have their dtypes.
        cluster: the machines.
        policy: a name in ``POLICIES``, or a policy of one's own: which neighbouring blocks are a
            unit. ``"wfbp"`` makes each block one, ``"single"`` all of them.
        memory_bytes: the most bytes of weights that are gathered at once on a rank; by default a
            quarter of all, or what a unit for each block takes.
        prefetch: of how many units ahead weights are asked for; by default the best of 1 to 4.
        reshard: True frees the weights of a unit after its forward and gathers them again for
            backward, as FSDP2 does; False keeps all; by default as many stay as have room.
        shard_ranks: how many ranks share all weights (HSDP): as many as inner levels of the
            cluster join; 0 for all ranks.
        costs: of ``"reduce_scatter"`` and ``"all_gather"``; by default the cluster's in training.

    Returns:
        A plan of the ``fsdp`` exchange with its prediction.

    Raises:
        UnknownNameError: no such policy, or no cost for an algorithm.
        InvalidValueError: a prefetch below 1, too little memory, or ranks that are no group.
        PredictionError: the costs promise an iteration below the physical bound.

    Example:
        >>> import syncopate
        >>> workload = syncopate.workload_of("decoder-1b", "h100")
        >>> cluster = syncopate.Cluster.preset("100gbe", 8)
        >>> plan = syncopate.make_fsdp_plan(workload, cluster, "wfbp", prefetch=2)
        >>> len(plan.buckets), plan.sharding.prefetch
        (18, 2)
    """
    require((Workload, workload), (Cluster, cluster))
    row = policy if isinstance(policy, Policy) else require_policy(policy)
    priced = _priced(workload, cluster, shard_ranks, costs)
    asked = UnitQuestion(workload, cluster, priced, row.name, shard_ranks)
    partition = _partition(row, asked.problem)
    played = _Played(asked, _limits(asked, partition, memory_bytes, prefetch, reshard))
    if partition is None:
        played.search()
    else:
        played.score(partition)
    return _with_reason(played.best(memory_bytes), asked)


def _priced(workload: Workload, cluster: Cluster, ranks: int, costs: Costs | None) -> Costs:
    """Return what the collectives of units cost within a group of ranks."""
    if costs is None:
        return unit_costs(cluster, workload.nbytes, ranks)
    for collective in EXCHANGES[FSDP].needed:
        if collective not in costs:
            raise UnknownNameError("collective", collective, costs, "the costs given")
    return costs


def _limits(
    asked: UnitQuestion,
    partition: Partition | None,
    memory_bytes: int | None,
    prefetch: int | None,
    reshard: bool | None,
) -> Limits:
    """Return what a plan may be; see [Note: room]. Units that were named have their room."""
    ahead = PREFETCH if prefetch is None else (prefetch,)
    if memory_bytes is not None:
        return Limits(memory_bytes, ahead, reshard)
    if reshard is False:
        return Limits(sum(asked.sizes), ahead, reshard)
    sizes = asked.sizes
    room = max(sum(sizes) // _SHARE, _held_bytes(sizes, 1, 0))
    if partition is not None:
        room = max(room, _held_bytes(asked.unit_bytes(partition), ahead[0], 0))
    return Limits(room, ahead, reshard)


class _Found(NamedTuple):
    """A plan that was played, its partition, and the most bytes that it has gathered."""

    plan: Plan
    partition: Partition
    held_bytes: int


class _Played:
    """The plans that were played for a question, within limits."""

    def __init__(self, asked: UnitQuestion, limits: Limits) -> None:
        self._asked, self._limits = asked, limits
        self._found: list[_Found] = []
        self._least_bytes = sum(asked.sizes)
        self._scores_s: dict[Partition, float] = {}
        self._ahead = limits.prefetch
        self.played = 0

    def best(self, memory_bytes: int | None) -> Plan:
        """Return the plan with the least memory among the fastest, which are not told apart."""
        if not self._found:
            rule = f"at least {self._least_bytes} ({format_bytes(self._least_bytes)}), what these "
            rule += "units need"
            raise InvalidValueError("memory_bytes", memory_bytes, rule)
        limit_s = (1 + NEAR) * min(found.plan.expected_s for found in self._found)
        near = [found for found in self._found if found.plan.expected_s <= limit_s]
        return min(near, key=lambda one: (one.held_bytes, len(one.plan.buckets))).plan

    def score(self, partition: Partition) -> float:
        """Play, once, every choice that units of a partition leave; return the shortest time."""
        if partition not in self._scores_s:
            found = [self._play(partition, *choice) for choice in self._choices(partition)]
            self._found += found
            self.played += 1
            shortest_s = min((one.plan.expected_s for one in found), default=float("inf"))
            self._scores_s[partition] = shortest_s
        return self._scores_s[partition]

    def search(self) -> None:
        """Play the partitions worth it, and what changes of the best one improve."""
        problem = self._asked.problem
        assert problem is not None
        for partition in _candidates(problem):
            self.score(partition)
        if not self._found:
            return
        best = min(self._found, key=lambda one: one.plan.expected_s)
        assert best.plan.sharding is not None
        self._ahead = (best.plan.sharding.prefetch,)
        improve(best.partition, stops_of(problem, best.partition), self, self.played + _CHANGES - 1)

    def _choices(self, partition: Partition) -> Iterator[tuple[int, int]]:
        """Yield prefetch and number of kept units, where these have room."""
        sizes, limits = self._asked.unit_bytes(partition), self._limits
        root = len(sizes) - 1
        for prefetch in self._ahead:
            if prefetch > min(self._ahead) and prefetch > root:
                continue
            held = [_held_bytes(sizes, prefetch, kept) for kept in range(root + 1)]
            fit = bisect_right(held, limits.held_bytes)
            if limits.reshard is None:
                counts = {0, max(fit - 1, 0)}
            else:
                counts = {0 if limits.reshard else root}
            self._least_bytes = min(self._least_bytes, *(held[kept] for kept in counts))
            yield from ((prefetch, kept) for kept in sorted(counts) if kept < fit)

    def _play(self, partition: Partition, prefetch: int, kept: int) -> _Found:
        plan = self._asked.plan(partition, prefetch, kept)
        assert plan.sharding is not None
        # Where groups share weights, what is between them is priced by the cluster.
        found = predict_units(self._asked.workload, plan, self._asked.cluster, self._asked.costs)
        held = plan.sharding.held_bytes([bucket.nbytes for bucket in plan.buckets])
        return _Found(replace(plan, prediction=found), partition, held)


def _candidates(problem: Problem) -> Iterator[Partition]:
    """Yield partitions worth playing: neighbours merged by number, and those of all policies."""
    for count in MERGED:
        if count <= problem.length:
            yield (*range(count, problem.length, count), problem.length)
    yield optimal(problem)
    for rival in rivals():
        yield rival(problem)


def _partition(row: Policy, problem: Problem | None) -> Partition | None:
    """Return the units that a policy names; None where it searches."""
    if problem is None:
        return ()
    return None if row.plans is not None else row.ends(problem)


def _held_bytes(sizes: list[int], prefetch: int, kept: int) -> int:
    """Return the most bytes that are gathered at once, the root unit and ``kept`` others kept."""
    root = len(sizes) - 1
    return Sharding(prefetch=prefetch, kept=(*range(min(kept, root)), root)).held_bytes(sizes)


def _with_reason(plan: Plan, asked: UnitQuestion) -> Plan:
    """Return a plan with what FSDP2's usual units take beside it."""
    count = 0 if asked.problem is None else asked.problem.length
    usual = asked.plan(tuple(range(1, count + 1)), 1, 0)
    usual_s = predict_units(asked.workload, usual, asked.cluster, asked.costs).iteration_s
    text = f"{format_seconds(plan.expected_s)} against {format_seconds(usual_s)} with a "
    text += "unit for each block that is gathered one ahead and again for backward"
    changed: Plan = replace(plan, reason=text)
    return changed
