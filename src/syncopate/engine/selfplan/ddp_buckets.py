"""DDP's own buckets, which need no measurement and which every other plan has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from syncopate.artifacts.plan import (
    ALLREDUCE,
    DDP_BUCKET_BYTES,
    EXCHANGES,
    SERVED,
    Bucket,
    Plan,
    filled,
)
from syncopate.artifacts.workload import fingerprint
from syncopate.recipe import SERVERS, Recipe
from syncopate.units import dtype_bytes

DDP = "DDP's buckets"
"""What the safe plan is called."""

Tensors = Sequence[tuple[str, int, str]]
"""``(name, numel, dtype)`` of gradients."""


def first_plan(
    model: str, tensors: Tensors, world_size: int, exchange: str = ALLREDUCE, servers: int = 0
) -> Plan:
    """Return the safe plan before any ready time is known: parameters in reverse order.

    Another exchange than the all-reduce is that of :func:`carried_by`.
    """
    plan = safe_plan(model, list(reversed(tensors)), world_size)
    return plan if exchange == ALLREDUCE else carried_by(exchange, plan, servers)


def safe_plan(
    model: str, tensors: Tensors, world_size: int, bucket_bytes: int = DDP_BUCKET_BYTES
) -> Plan:
    """Return DDP's buckets over ``tensors`` in the order given, with the native all-reduce."""
    sizes = [numel * dtype_bytes(dtype) for _, numel, dtype in tensors]
    ends = filled(sizes, bucket_bytes)
    groups = [tensors[start:stop] for start, stop in pairwise((0, *ends))]
    return plan_of_groups(model, tensors, world_size, groups)


def carried_by(exchange: str, plan: Plan, servers: int = 0) -> Plan:
    """Return a plan of the same buckets for an ``exchange`` that pulls, without algorithms.

    With the ``served`` exchange it goes with so many servers.
    """
    push, pull = map(Recipe, EXCHANGES[exchange].needed)
    if exchange == SERVED:
        push, pull = (
            replace(recipe, algorithm=SERVED, options={SERVERS: servers}) for recipe in (push, pull)
        )
    buckets = tuple(replace(bucket, push=push, pull=pull) for bucket in plan.buckets)
    changed: Plan = replace(plan, exchange=exchange, buckets=buckets)
    return changed


def plan_of_groups(
    model: str, tensors: Tensors, world_size: int, groups: Sequence[Tensors]
) -> Plan:
    """Return a plan of one bucket for each of ``groups``, with the native all-reduce.

    Each of ``tensors`` is in one of them, which are in launch order.
    """
    return Plan(
        model=model,
        fingerprint=fingerprint(tensors),
        world_size=world_size,
        policy="threshold",
        buckets=tuple(
            Bucket(
                tensors=tuple(name for name, _, _ in group),
                nbytes=sum(numel * dtype_bytes(dtype) for _, numel, dtype in group),
                push=Recipe("all_reduce"),
            )
            for group in groups
        ),
    )
