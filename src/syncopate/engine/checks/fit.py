"""Fit: whether a plan can train a model by its optimizers, and whether all ranks have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from syncopate.artifacts.plan import DECOUPLED, EXCHANGES, SERVED, Plan
from syncopate.collectives.request import schedule_of
from syncopate.delay import Delay, LocalSGD
from syncopate.engine.buckets import Trainable
from syncopate.engine.checks.agreement import Checks, Fact
from syncopate.engine.exchange.delay.rules import require_rule
from syncopate.engine.exchange.groups import parameters_of
from syncopate.engine.exchange.optimizers import kind_of, trained_by
from syncopate.errors import EngineError, InvalidValueError
from syncopate.units import dtype_name

Tensors = tuple[tuple[str, int, str], ...]
"""``(name, numel, dtype)`` of every exchanged gradient."""


def tensors_of(trainables: Sequence[Trainable]) -> Tensors:
    """Return the name, size and type of every gradient, as a plan must have them."""
    return tuple((t.name, t.parameter.numel(), dtype_name(t.parameter.dtype)) for t in trainables)


def require_fit(
    plan: object,
    trainables: Sequence[Trainable],
    optimizers: Sequence[torch.optim.Optimizer],
    world_size: int,
) -> None:
    """Refuse a plan that cannot train these parameters; no communication.

    Raises:
        InvalidValueError: it is no plan, or an option has no such value.
        PlanError: it is for another model or rank count.
        UnknownNameError: no such algorithm, or an option that it does not take.
        EngineError: it needs optimizers that are not there, or others.
    """
    if not isinstance(plan, Plan):
        raise InvalidValueError("plan", plan, "a syncopate.Plan")
    require_whole_weights(plan.exchange)
    plan.require_fit(tensors_of(trainables), world_size)
    if plan.weight_sync_period and not optimizers:
        raise EngineError(
            f"this plan broadcasts the weights after every {plan.weight_sync_period} steps of "
            "the optimizer (weight_sync_period), and none was given. Give the optimizer to "
            "distribute, or plan with weight_sync_period=0"
        )
    if EXCHANGES[plan.exchange].pull:
        if not optimizers:
            raise EngineError(
                f"the {plan.exchange} exchange updates weights in the optimizer's step; give "
                "distribute the optimizer too, or train with exchange='allreduce'"
            )
        if plan.exchange != DECOUPLED:  # there every rank takes every step
            trained_by(trainables, optimizers)
    require_delay(plan.delay or plan.local_sgd, optimizers)
    require_recipes(plan)


def require_whole_weights(exchange: str) -> None:
    """Refuse an exchange whose weights are gathered before each use.

    Raises:
        EngineError: it is such a one.
    """
    if EXCHANGES[exchange].gathers:
        raise EngineError(
            f"the {exchange} exchange is that of torch's fully_shard: give this plan to "
            "syncopate.fsdp2(model, plan=plan), or plan another exchange"
        )


def require_recipes(plan: Plan) -> None:
    """Refuse a plan whose collectives are not known here.

    Raises:
        InvalidValueError: an option has no such value.
        UnknownNameError: no such algorithm, or an option that it does not take.
    """
    for bucket in plan.buckets if plan.exchange != SERVED else ():
        for _, recipe in bucket.recipes:
            schedule_of(recipe.in_order(plan.order), plan.world_size)


def require_delay(
    delay: Delay | LocalSGD | None, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Refuse a delay that cannot go with these optimizers.

    Raises:
        EngineError: there is none, or its steps do not tell what the local rule needs.
    """
    if isinstance(delay, Delay):
        require_rule(delay, optimizers)
    elif delay is not None and not optimizers:
        raise EngineError(
            "local SGD averages weights after steps of the optimizer, and none was given; give "
            "the optimizer, too: distribute(model, optimizer, ...)"
        )


def checks_of(
    plan: Plan,
    trainables: Sequence[Trainable],
    optimizers: Sequence[torch.optim.Optimizer],
    world_size: int,
) -> Checks[None]:
    """Check that the ranks have one plan, which fits (:func:`require_fit`)."""
    require_fit(plan, trainables, optimizers, world_size)
    digest = hashlib.sha256(plan.to_json()).hexdigest()[:16]
    summary = f"{plan.policy}, {len(plan.buckets)} buckets, sha256 {digest}"
    facts: list[Fact] = [("the plan", summary)]
    if plan.exchange == DECOUPLED:
        for place, optimizer in enumerate(optimizers):
            facts.append((f"optimizer {place}", type(optimizer).__name__))
            shapes = [[tuple(p.shape) for p in held] for held in parameters_of(optimizer)]
            facts.append((f"the groups of optimizer {place}", str(shapes)))
    elif EXCHANGES[plan.exchange].pull:
        for place, optimizer in enumerate(optimizers):
            what = f"the shards of optimizer {place}, a {type(optimizer).__name__}"
            facts.append((what, kind_of(optimizer)))
        trained = trained_by(trainables, optimizers)
        for trainable, (place, _) in zip(trainables, trained, strict=True):
            facts.append((f"the optimizer of {trainable.name!r}", place))
    yield facts
