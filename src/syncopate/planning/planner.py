"""Planner: from a workload, a cluster and a policy to a plan with its prediction."""

from __future__ import annotations

from collections.abc import Iterable

from syncopate.artifacts.artifact import require
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import (
    ALLREDUCE,
    EXCHANGES,
    FSDP,
    SERVED,
    SERVERLESS,
    Plan,
    exchange_of,
)
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.training import exchange_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.fsdp.planner import make_fsdp_plan
from syncopate.planning.question import question_of
from syncopate.planning.registry import POLICIES, Policy, require_policy

CHANNELS = (1, 2)
"""The numbers of channels that a policy which chooses them considers; the others take the first."""


def make_plan(
    workload: Workload,
    cluster: Cluster,
    policy: str | Policy = "optimal",
    *,
    exchange: str | None = None,
    channels: int | None = None,
    algorithm: str | None = None,
    wire_dtype: str = "",
    costs: Costs | None = None,
) -> Plan:
    """Plan the communication of a workload on a cluster.

    Every policy gets the cheapest algorithm for each of its buckets, so that policies differ in
    their partitions alone. Only ``auto`` chooses the exchange and the channels that are left open.

    Args:
        workload: the model's gradients and times.
        cluster: the machines.
        policy: a name in ``POLICIES``, or a policy of one's own, such as ``filled_to(2 * MIB)``.
        exchange: one of ``EXCHANGES``; by default ``"allreduce"``, or the best of our engine's.
        channels: concurrent collectives; buckets take the channels in turn. By default 1, or the
            better of 1 and 2.
        algorithm: use this algorithm for every bucket; by default the cheapest for each.
        wire_dtype: what float32 and float64 gradients travel as, one of ``WIRE_DTYPES``; by default
            as they are.
        costs: by collective and bytes on the wire; by default those of the cluster in training,
            and as many parameter servers as hosts (``served_costs`` has those of another number).

    Returns:
        A plan with its prediction.

    Raises:
        UnknownNameError: no such policy or exchange, or no cost for the algorithm.
        InvalidValueError: no workload or cluster; a number of channels below 1.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    require((Workload, workload), (Cluster, cluster))
    row = policy if isinstance(policy, Policy) else require_policy(policy)
    counts = _counts(exchange, channels, wire_dtype)
    found = _costs(workload, cluster, _exchanges(row, exchange, costs), algorithm, costs)
    if exchange == FSDP:
        return make_fsdp_plan(workload, cluster, row, costs=found[FSDP])
    question = question_of(workload, cluster, found, channels=counts, wire_dtype=wire_dtype)
    draft = row.draft(question)
    return Plan(
        model=workload.model,
        fingerprint=workload.fingerprint,
        world_size=cluster.world_size,
        policy=row.name,
        buckets=draft.buckets,
        exchange=draft.exchange or exchange_of(draft.buckets, found),
        channels=draft.channels,
        prediction=question.predict(draft),
        cluster=cluster.name,
        order=draft.order,
        wire_dtype=wire_dtype,
        pull_order=draft.pull_order,
        reason=draft.reason,
    )


def compare(
    workload: Workload,
    cluster: Cluster,
    policies: Iterable[str | Policy] | None = None,
    *,
    exchange: str | None = None,
    channels: int | None = None,
    algorithm: str | None = None,
    wire_dtype: str = "",
    costs: Costs | None = None,
) -> tuple[Plan, ...]:
    """Plan with several policies, in the order of ``POLICIES``.

    By default with all but ``auto``, whose plan is one of theirs for some exchange. Args and errors
    are those of :func:`make_plan`.
    """
    return tuple(
        make_plan(
            workload,
            cluster,
            policy,
            exchange=exchange,
            channels=channels,
            algorithm=algorithm,
            wire_dtype=wire_dtype,
            costs=costs,
        )
        for policy in (compared() if policies is None else policies)
    )


def compared() -> tuple[str, ...]:
    """Return the policies that :func:`compare` plans with by default."""
    return tuple(row.name for row in POLICIES.values() if not row.chooses)


def choosing() -> tuple[str, ...]:
    """Return the policies that choose exchange and channels by themselves."""
    return tuple(row.name for row in POLICIES.values() if row.chooses)


def _exchanges(row: Policy, exchange: str | None, costs: Costs | None) -> tuple[str, ...]:
    if exchange is not None:
        if exchange not in EXCHANGES:
            raise UnknownNameError("exchange", exchange, EXCHANGES)
        return (exchange,)
    if not row.chooses:
        return (ALLREDUCE,)
    if costs is None:
        return SERVERLESS
    return tuple(
        name for name in SERVERLESS if all(c in costs for c in EXCHANGES[name].needed)
    ) or (ALLREDUCE,)


def _counts(exchange: str | None, channels: int | None, wire_dtype: str) -> tuple[int, ...]:
    if exchange == FSDP:
        require_units(channels, wire_dtype)
    elif exchange in EXCHANGES and exchange not in SERVERLESS:
        if channels not in (None, 1):
            raise InvalidValueError("channels", channels, f"1 with the {SERVED} exchange")
        if wire_dtype:
            rule = f"left out with the {SERVED} exchange"
            raise InvalidValueError("wire_dtype", wire_dtype, rule)
        return (1,)
    if channels is None:
        return CHANNELS
    if channels < 1:
        raise InvalidValueError("channels", channels, "an integer >= 1")
    return (channels,)


def require_units(channels: int | None, wire_dtype: str) -> None:
    """Refuse what units do not have: their gathers are on one channel, their pushes on another.

    Raises:
        InvalidValueError: another number of channels, or gradients that are narrowed.
    """
    if channels not in (None, 2):
        raise InvalidValueError("channels", channels, f"2 with the {FSDP} exchange, or left out")
    if wire_dtype:
        rule = f"left out with the {FSDP} exchange: fully_shard's mp_policy says it"
        raise InvalidValueError("wire_dtype", wire_dtype, rule)


def _costs(
    workload: Workload,
    cluster: Cluster,
    exchanges: tuple[str, ...],
    algorithm: str | None,
    costs: Costs | None,
) -> dict[str, Costs]:
    """Return the costs of each exchange that can run ``algorithm``."""
    names = None if algorithm is None else (algorithm,)
    found: dict[str, Costs] = {}
    refusal: UnknownNameError | None = None
    for exchange in exchanges:
        try:
            found[exchange] = _given(costs, exchange, algorithm) or exchange_costs(
                cluster, workload.nbytes, exchange, names
            )
        except UnknownNameError as error:
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    return found


def _given(costs: Costs | None, exchange: str, algorithm: str | None) -> Costs | None:
    if costs is None:
        return None
    found, kind = {}, EXCHANGES[exchange]
    for collective in kind.needed:
        if collective not in costs:
            raise UnknownNameError("collective", collective, costs, "the costs given")
        envelope = costs[collective]
        found[collective] = envelope if algorithm is None else envelope.only(algorithm)
    other = costs.get(kind.replicated)
    if other is not None and (algorithm is None or algorithm in other.costs):
        found[kind.replicated] = other if algorithm is None else other.only(algorithm)
    return found
