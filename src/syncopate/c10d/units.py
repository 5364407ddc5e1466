"""Units: a model in ``fully_shard`` as a plan says, with its prefetching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from syncopate.artifacts.plan import FSDP, Bucket, Plan, plain_name
from syncopate.artifacts.sharding import blocks
from syncopate.artifacts.timelines.gradients import is_recorded
from syncopate.errors import InvalidValueError, PlanError
from syncopate.units import dtype_name

_SAID_BY_PLAN = ("reshard_after_forward", "ignored_params")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules without a forward, whose modules are wrapped one by one."""


class Unit(NamedTuple):
    """What one bucket of a plan became.

    Attributes:
        bucket: of the plan.
        module: that ``fully_shard`` was applied to; the first of several.
    """

    bucket: Bucket
    module: Any


def wrap(model: nn.Module, plan: Plan, how: Mapping[str, Any]) -> list[Unit]:
    """Apply ``fully_shard`` to the modules of each unit of a plan, and set what they prefetch.

    A plan that was made from a recording of FSDP2 names modules in place of parameters.

    Args:
        model: not under ``fully_shard`` yet, the same on every rank.
        plan: of the ``fsdp`` exchange.
        how: other arguments of ``fully_shard``.

    Returns:
        The units, in the order of the plan's buckets.

    Raises:
        InvalidValueError: the model is under ``fully_shard``, the plan is of another exchange, or
            an argument is said by the plan.
        PlanError: the plan is for another model or number of ranks, or a unit is no whole modules.
    """
    if plan.sharding is None:
        rule = f"one of the {FSDP} exchange: syncopate plan --exchange {FSDP}"
        raise InvalidValueError("exchange of the plan", plan.exchange, rule)
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        rule = (
            "one that is not under fully_shard yet, beside a plan, which says what to apply it to"
        )
        raise InvalidValueError("model", type(model).__name__, rule)
    for name in _SAID_BY_PLAN:
        if name in how:
            raise InvalidValueError(name, how[name], "left out beside a plan")
    if is_recorded(plan.buckets[0].tensors[0]):
        held = _recorded(model, plan)
    else:
        _require_fit(model, plan)
        held = [_modules(model, bucket) for bucket in plan.buckets[:-1]]
    if "mesh" not in how:
        how = {**how, "mesh": _mesh(model, plan)}
    kept = plan.sharding.kept
    for index, modules in enumerate(held):
        fully_shard(modules, reshard_after_forward=index not in kept, **how)
    root = len(plan.buckets) - 1
    fully_shard(model, reshard_after_forward=root not in kept, **how)
    first = [modules[0] for modules in held] + [model]
    units = [Unit(bucket, module) for bucket, module in zip(plan.buckets, first, strict=True)]
    _prefetch(units, plan.sharding.prefetch, kept)
    return units


def _require_fit(model: nn.Module, plan: Plan) -> None:
    """Refuse a plan for another model or number of ranks."""
    tensors = [
        (plain_name(name), one.numel(), dtype_name(one.dtype))
        for name, one in model.named_parameters()
        if one.requires_grad
    ]
    plan.require_fit(tensors, dist.get_world_size())


def _prefetch(units: Sequence[Unit], ahead: int, kept: Sequence[int]) -> None:
    """Let each unit ask for the weights of the next ones, in forward and in backward."""
    for index, unit in enumerate(units):
        later = [one.module for one in reversed(units[max(index - ahead, 0) : index])]
        if later:
            unit.module.set_modules_to_forward_prefetch(later)
        ends = range(index + 1, min(index + ahead, len(units) - 1) + 1)
        earlier = [units[one].module for one in ends if one not in kept]
        if earlier:
            unit.module.set_modules_to_backward_prefetch(earlier)


def _mesh(model: nn.Module, plan: Plan) -> Any:
    """Return the ranks as a mesh, of two dimensions where groups of them share all weights."""
    assert plan.sharding is not None
    device = next(iter(model.parameters())).device.type
    ranks = plan.sharding.ranks
    if ranks in (0, plan.world_size):
        return init_device_mesh(device, (plan.world_size,))
    shape = (plan.world_size // ranks, ranks)
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))


def _modules(model: nn.Module, bucket: Bucket) -> list[nn.Module]:
    """Return the largest modules whose parameters are those of a bucket, in order of definition.

    Parameters that are not trained go with the modules that they lie in.

    Raises:
        PlanError: some parameter lies in a module that has others.
    """
    names = {id(one): plain_name(name) for name, one in model.named_parameters()}
    wanted = set(bucket.tensors)
    found: list[nn.Module] = []
    reached: set[str] = set()

    def look_at(module: nn.Module) -> None:
        inside = {names[id(one)] for one in module.parameters() if one.requires_grad}
        if not inside & wanted:
            return
        if inside <= wanted and not isinstance(module, _CONTAINERS):
            found.append(module)
            reached.update(inside)
            return
        for child in module.children():
            look_at(child)

    look_at(model)
    if missed := [name for name in bucket.tensors if name not in reached]:
        raise PlanError(
            f"{missed[0]!r} cannot be in a unit of its own: its module has parameters of other "
            "units. Put it into the last bucket, the root unit, or plan again"
        )
    return found


def _recorded(model: nn.Module, plan: Plan) -> list[list[nn.Module]]:
    """Return the modules of all units but the root's, by the names that a recording has.

    Raises:
        PlanError: the recording names none, or others, or they have other sizes.
    """
    plan.require_ranks(dist.get_world_size())
    named = blocks(name for bucket in plan.buckets for name in bucket.tensors)
    found = []
    for bucket in plan.buckets[:-1]:
        units = dict.fromkeys(named[name] for name in reversed(bucket.tensors))
        paths = [path for unit in units for path in unit.split("+")]
        try:
            modules = [model.get_submodule(path) for path in paths]
        except AttributeError:
            raise PlanError(
                f"this plan was made from a recording, whose {paths[0]!r} is no module of this "
                f"{type(model).__name__}. Profile the model, or record it under fully_shard"
            ) from None
        weights = {id(one): one for module in modules for one in module.parameters()}
        nbytes = sum(one.nbytes for one in weights.values() if one.requires_grad)
        if nbytes != bucket.nbytes:
            raise PlanError(
                f"this plan is for another model: {', '.join(paths)} have {nbytes} bytes, and "
                f"{bucket.nbytes} in the plan"
            )
        found.append(modules)
    return found
