"""Wrap: a model in torch's own DistributedDataParallel, which trains it by a plan."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.plan import ALLREDUCE, DDP_FIRST_BUCKET_BYTES, Plan
from syncopate.artifacts.workload import fingerprint
from syncopate.collectives import Communicator
from syncopate.engine import console
from syncopate.engine.buckets import Trainable
from syncopate.engine.checks.agreement import Checks, agree
from syncopate.engine.checks.connect import require_process_group
from syncopate.engine.checks.fit import require_recipes, require_whole_weights, tensors_of
from syncopate.engine.checks.soundness import named_for, sound_model, tensor_facts
from syncopate.engine.ddp.buckets import PlannedBuckets
from syncopate.engine.ddp.group import group_of
from syncopate.engine.ddp.hook import Carrier, carried_by_plan
from syncopate.engine.selfplan.cache import find, path_of
from syncopate.engine.selfplan.contest import Contender
from syncopate.engine.selfplan.start import facts_of_job
from syncopate.errors import EngineError, InvalidValueError
from syncopate.units import MIB

NO_PLAN = (
    "no plan is given, or kept for this model, these ranks and versions, so DDP trains in its own "
    "buckets. To make one: record a run (SYNCOPATE_TRACE=runs/a), `syncopate convert runs/a --to "
    "workload -o workload.json`, `syncopate plan -w workload.json -c cluster.json --exchange "
    "allreduce -o plan.json`, and give plan='plan.json'"
)
"""What is said where there is no plan."""

_SAYS_PLAN = "left out beside a plan, which says where buckets end"
_BELONG_TO_DDP: dict[str, str] = {
    "bucket_cap_mb": _SAYS_PLAN,
    "bucket_cap_mb_list": _SAYS_PLAN,
    "mixed_precision": "left out beside a plan: it takes DDP's only communication hook",
    "device_mesh": "left out beside a plan; give process_group=device_mesh.get_group()",
    "skip_all_reduce_unused_params": "left out beside a plan, whose buckets are all sent",
}
"""Arguments of DDP that cannot be with a plan."""


def ddp(
    module: nn.Module,
    plan: Plan | str | os.PathLike[str] | None = None,
    *,
    cache: bool = True,
    timeout_s: float | None = None,
    **options: Any,
) -> DistributedDataParallel:
    """Return ``module`` in torch's DistributedDataParallel, which trains it by a plan.

    For programs that stay with DDP. Its buckets become the plan's, and each travels by the plan's
    algorithm over this package's own links; all else is DDP's, ``no_sync()``, ``join()``,
    ``find_unused_parameters``, ``static_graph`` and ``torch.compile`` too. DDP cuts its buckets
    after the first iteration. Rank 0 then logs that they are the plan's, or how they differ: DDP
    goes by the order in which gradients become ready, keeps dtypes apart, and with
    ``find_unused_parameters=True`` goes by the order of definition.

    A rank that dies is named on all others within seconds, by the error of their backward or
    forward.

    Args:
        module: on its device; the same on every rank.
        plan: of the ``allreduce`` exchange, or its file. A plan that was made from a recording,
            which knows no names of parameters, is matched by the shapes and the order of gradients.
            Left out: the fastest such plan that ``distribute`` kept for this model, these hosts and
            versions; where there is none, DDP's own buckets, and a line says how to make a plan.
        cache: whether to look for a kept plan.
        timeout_s: how long a rank waits for another; by default as the process group does.
        options: DistributedDataParallel's own arguments, but for those that a plan says
            (``bucket_cap_mb``) and ``mixed_precision``.

    Raises:
        EngineError: a model, plan or ranks that cannot be trained so; on every rank.
        PlanError: the plan is for another model or rank count.
        ArtifactError: its file cannot be read.
        InvalidValueError: an argument that cannot be, or not beside a plan.
        UnknownNameError: no such algorithm.
        CollectiveError: a rank is lost or late.

    Example:
        >>> model = ddp(model, plan="plan.json", static_graph=True)  # doctest: +SKIP
    """
    require_process_group(module, timeout_s)
    group = options.get("process_group")
    communicator = Communicator(group, timeout_s=timeout_s)
    try:
        checked, hosts = agree(communicator, _checks(module, plan, options), socket.gethostname())
        trainables, found = checked
        own = any(options.get(name) for name in _BELONG_TO_DDP)
        if plan is None and cache and trainables and not own:
            found = _kept(module, trainables, communicator, hosts)
        if found is None:
            if communicator.rank == 0:
                console.log(NO_PLAN)
            communicator.close()
            return DistributedDataParallel(module, **options)
        return _wrapped(module, found, communicator, options)
    except BaseException:
        communicator.close()
        raise


def _checks(
    module: object, plan: object, options: Mapping[str, Any]
) -> Checks[tuple[tuple[Trainable, ...], PlannedBuckets | None]]:
    """Check what was given, before anything is built.

    Returns:
        Every parameter whose gradient is exchanged, in order of definition, none where only DDP
        itself can train them; and the buckets of the plan that was given.
    """
    if not isinstance(module, nn.Module):
        raise InvalidValueError("module", type(module).__name__, "a torch.nn.Module")
    apart = {name for name, _ in options.get("delay_all_reduce_named_params") or ()}
    apart.update(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    trainables: tuple[Trainable, ...] = ()
    # What DDP itself makes of a model is DDP's affair, where it gets no plan.
    with suppress(EngineError) if plan is None else nullcontext():
        _, _, trainables = sound_model(module, frozenset(apart), rows=False)
    yield [
        ("whether a plan is given", plan is not None),
        *((f"{name}=", value) for name, value in options.items() if isinstance(value, bool | int)),
        *tensor_facts("parameter", [(one.name, one.parameter) for one in trainables]),
    ]
    if plan is None:
        return named_for(None, trainables), None
    for name, rule in _BELONG_TO_DDP.items():
        if options.get(name):
            raise InvalidValueError(f"{name}=", options[name], rule)
    read = plan if isinstance(plan, Plan) else _read(plan)
    trainables = named_for(read, trainables)
    found = runnable(read, trainables, dist.get_world_size(options.get("process_group")))
    yield [("the plan", hashlib.sha256(read.to_json()).hexdigest()[:16])]
    return trainables, found


def _read(path: object) -> Plan:
    if not isinstance(path, str | os.PathLike):
        raise InvalidValueError("plan", path, "a syncopate.Plan, or the path of its file")
    return Plan.load(path)


def runnable(plan: Plan, trainables: Sequence[Trainable], world_size: int) -> PlannedBuckets:
    """Return the buckets of a plan, or refuse one by which DDP cannot train these parameters.

    Raises:
        EngineError: it asks for more than DDP's all-reduce of gradients.
        PlanError: it is for another model or rank count.
        UnknownNameError: no such algorithm, or an option that it does not take.
    """
    require_whole_weights(plan.exchange)
    more = (
        (f"of the {plan.exchange} exchange", plan.exchange != ALLREDUCE),
        ("with a delay", plan.delay is not None),
        ("of local SGD", plan.local_sgd is not None),
        ("with broadcasts of weights", plan.weight_sync_period > 0),
    )
    for what, asked in more:
        if asked:
            raise EngineError(
                f"this plan is {what}, and DDP all-reduces gradients and no more; plan with "
                f"`syncopate plan --exchange {ALLREDUCE}`, or train by it with "
                "syncopate.distribute(model, optimizer, plan=...)"
            )
    buckets = PlannedBuckets(plan, trainables)
    if buckets.named:
        plan.require_fit(tensors_of(trainables), world_size)
    plan.require_ranks(world_size)
    require_recipes(plan)
    return buckets


def _kept(
    module: nn.Module,
    trainables: Sequence[Trainable],
    communicator: Communicator,
    hosts: Sequence[str],
) -> PlannedBuckets | None:
    """Return the buckets of the plan that earlier runs found to be DDP's fastest, on every rank."""
    plan: Plan | None = None
    if communicator.rank == 0:
        tensors = tensors_of(trainables)
        device = trainables[0].parameter.device
        facts = facts_of_job(type(module).__name__, fingerprint(tensors), hosts, device)
        for settled in find(facts):
            own = Contender(settled.name, settled.plan, [settled.step_s])
            turns = [one for one in (own, *settled.contest) if one.plan.exchange == ALLREDUCE]
            measured = [one for one in turns if one.samples_s]
            if measured:
                best = min(measured, key=lambda one: one.step_s)
                console.log(f"{best.name}, kept on {settled.date} ({path_of(settled.facts)})")
                plan = best.plan
                break
    plan = communicator.broadcast_object(plan)
    return None if plan is None else runnable(plan, trainables, communicator.world_size)


def _wrapped(
    module: nn.Module,
    planned: PlannedBuckets,
    communicator: Communicator,
    options: Mapping[str, Any],
) -> DistributedDataParallel:
    """Return the DDP; every rank calls it."""
    communicator.widen(planned.plan.channels)
    group = options.get("process_group")
    if group is None or group is dist.group.WORLD:
        group = group_of(communicator)
    rebuilt = bool(options.get("static_graph")) or not options.get("find_unused_parameters")
    limits = planned.limits(rebuilt=rebuilt)
    model = DistributedDataParallel(
        module,
        **{**options, "process_group": group},
        bucket_cap_mb_list=[limit / MIB for limit in limits],  # type: ignore[misc]
    )
    # torch.compile cuts its graphs by it, and refuses one below DDP's first bucket. Buckets go by
    # their limits.
    model.bucket_bytes_cap = max(model.bucket_bytes_cap, DDP_FIRST_BUCKET_BYTES)
    model.register_comm_hook(Carrier(communicator, planned, rebuilt=rebuilt), carried_by_plan)
    return model
