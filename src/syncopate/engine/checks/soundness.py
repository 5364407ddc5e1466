"""Soundness: what distribute is given, looked at in whole before anything is built.

Model, optimizers and arguments are checked here and nowhere else. :func:`checks` is one row for
:func:`~syncopate.engine.checks.agreement.agree`, so that all ranks refuse together, and what it
found fit goes on as one record.

[Note: Several modules, one optimizer]
A module with parameters of its own is distributed by a call of its own; a loss with parameters is
one. An optimizer that trains several is given to each call. It may hold parameters that are
distributed only later, so that a parameter whose gradient is not averaged is refused at the
optimizer's first step and not before. An optimizer without any parameter of the model is refused at
once: it was built from another copy. So are the models of a GAN distributed, one by one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import DECOUPLED, EXCHANGES, SERVED, Plan, plain_name
from syncopate.collectives.store import Store
from syncopate.delay import Delay, LocalSGD, delay_of
from syncopate.engine.buckets import Trainable
from syncopate.engine.checks.agreement import Checks, Fact
from syncopate.engine.checks.fit import require_delay, require_whole_weights
from syncopate.engine.checks.sparse import (
    Sparse,
    of_others,
    require_whole_rows,
    sound_rows,
    sound_tables,
    sparse_weights,
)
from syncopate.engine.exchange.optimizers import kind_of
from syncopate.engine.exchange.serving.servers import Servers, served_by
from syncopate.engine.exchange.serving.tables import Embedded
from syncopate.engine.model import module as modules
from syncopate.engine.model import ownership
from syncopate.engine.selfplan.wishes import PLANNED, Wishes
from syncopate.errors import EngineError, InvalidValueError, UnknownNameError
from syncopate.units import dtype_bytes, dtype_name


@dataclass(frozen=True)
class Given:
    """What the user gave beside model and optimizer; None for what was left out.

    Attributes:
        plan: the plan to run.
        wishes: what is asked of self-planning.
        broadcast_buffers: whether buffers become rank 0's.
        ignore: names of what every rank keeps for itself.
        delay: what to train on between pulls of weights.
        store: the parameter servers.
    """

    plan: Plan | None
    wishes: Wishes
    broadcast_buffers: bool = True
    ignore: Iterable[str] = ()
    delay: Delay | LocalSGD | int | None = None
    store: object = None

    @property
    def exchange(self) -> str | None:
        """The exchange that was asked for, by name or by a plan."""
        return self.plan.exchange if isinstance(self.plan, Plan) else self.wishes.exchange

    @property
    def delayed(self) -> bool:
        """Whether a delay was asked for, by itself or by a plan."""
        plan = self.plan if isinstance(self.plan, Plan) else None
        return self.delay is not None or bool(plan and (plan.delay or plan.local_sgd))


class Sound(NamedTuple):
    """The model, optimizers and options, checked.

    Attributes:
        ignored: names of what stays every rank's own, and of tables.
        weights: every parameter that all ranks share, frozen ones too.
        trainables: every parameter whose gradient is exchanged, but for tables.
        optimizers: each once that trains some of them.
        delay: what was asked for.
        servers: what holds the weights, if servers do.
        sparse: every parameter whose gradient has rows, where ranks average them.
    """

    ignored: frozenset[str]
    weights: tuple[Tensor, ...]
    trainables: tuple[Trainable, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    delay: Delay | LocalSGD | None
    servers: Servers | None
    sparse: tuple[Trainable, ...] = ()


def checks(
    model: nn.Module, optimizers: Sequence[object], given: Given, world_size: int
) -> Checks[Sound]:
    """Check all that can be checked before anything is built.

    Raises:
        EngineError: it cannot be trained so.
        InvalidValueError: an argument that cannot be, or not beside another one.
        UnknownNameError: no such policy or exchange.
    """
    ignored = ignored_names(model, given.ignore)
    yield ()
    shared, sparse, trainables = sound_model(model, ignored, rows=True)
    trainables = named_for(given.plan, trainables)
    yield ()
    known = tuple(dict.fromkeys(sound_optimizer(each, model) for each in optimizers))
    served = given.exchange == SERVED
    tables = sound_tables(sparse, known, delayed=given.delayed) if served else ()
    known = of_others(known, sparse)
    yield ()
    _require_arguments(given, world_size)
    yield ()
    _require_updatable(given.exchange, known)
    if sparse and not served:
        require_whole_rows(given.exchange, delayed=given.delayed)
    rows = () if served else sound_rows(sparse)
    yield ()
    delay = _sound_delay(given, known)
    servers = _sound_servers(given, known, delay, world_size, tables)
    named = model.named_buffers() if given.broadcast_buffers else ()
    buffers = [(name, held) for name, held in named if name not in ignored]
    for name, held in buffers:
        require_shape(name, held)
    yield [
        *_facts(given, ignored),
        (
            "embeddings with sparse=True",
            tuple(name for each in sparse.values() for name, _ in each),
        ),
        *tensor_facts("parameter", shared),
        *tensor_facts("buffer", buffers),
    ]
    ownership.require_free(model, (*trainables, *rows))
    modules.require_extensible(model)
    weights = tuple(parameter.data for _, parameter in shared)
    ignored = ignored.union((t.name for t in tables), (row.name for row in rows))
    return Sound(ignored, weights, trainables, known, delay, servers, rows)


# -- the model -----------------------------------------------------------------------------------


def sound_model(
    model: nn.Module, ignored: frozenset[str], *, rows: bool
) -> tuple[list[tuple[str, nn.Parameter]], Sparse, tuple[Trainable, ...]]:
    """Return the parameters that all ranks share, sparse embeddings, and what is trained else.

    Args:
        model: wrapped in nothing.
        ignored: names of what stays every rank's own.
        rows: whether gradients may be sparse.

    Raises:
        EngineError: the model is wrapped already, or has a parameter that cannot be exchanged.
    """
    for name, module in model.named_modules():
        require_plain(name, module)
    shared = shared_parameters(model, ignored)
    sparse = sparse_weights(model, shared, rows=rows)
    return shared, sparse, _trainables(model, shared, sparse)


def named_for(plan: object, trainables: Sequence[Trainable]) -> tuple[Trainable, ...]:
    """Return the trainables by the names that plans have for them.

    These are without what ``torch.compile`` puts into them, so that one plan fits a model and the
    compiled model, but for a plan that was made from such names.
    """
    planned = (
        [name for one in plan.buckets for name in one.tensors] if isinstance(plan, Plan) else ()
    )
    if any(plain_name(name) != name for name in planned):
        return tuple(trainables)
    return tuple(replace(one, name=plain_name(one.name)) for one in trainables)


def ignored_names(model: object, asked: Iterable[str]) -> frozenset[str]:
    """Return the names of parameters and buffers that each rank keeps for itself."""
    if not isinstance(model, nn.Module):
        raise InvalidValueError("model", type(model).__name__, "a torch.nn.Module")
    names = None if isinstance(asked, str) else frozenset(asked)
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidValueError("ignore", asked, "a list of names of parameters and buffers")
    known = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    known += [name for name, _ in model.named_buffers(remove_duplicate=False)]
    for name in sorted(names.difference(known)):
        raise EngineError(
            f"ignore names {name!r}, which is no parameter or buffer of the model; names are those "
            f"of named_parameters() and named_buffers(), such as {min(known, default='')!r}"
        )
    return names.union(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))


def shared_parameters(model: nn.Module, ignored: frozenset[str]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that all ranks share; one is ignored if all its names are."""
    named = model.named_parameters(remove_duplicate=False)
    shared = {id(parameter) for name, parameter in named if name not in ignored}
    return [(name, p) for name, p in model.named_parameters() if id(p) in shared]


def require_plain(name: str, module: nn.Module) -> None:
    """Refuse a module of the model that is trained over ranks already; the model has no name."""
    where = f"its module {name!r}" if name else "the model"
    if isinstance(module, DistributedDataParallel):
        raise EngineError(
            f"{where} is wrapped in DistributedDataParallel already; give the module inside "
            "(.module)"
        )
    if isinstance(module, modules.DistributedModule):
        raise EngineError(
            f"{where} is distributed already; call .syncopate.detach() on it first, or "
            ".syncopate.install(plan) to change its plan"
        )


def require_shape(name: str, held: Tensor) -> None:
    """Refuse a parameter or buffer of a lazy module that has no shape yet."""
    if is_lazy(held):
        raise EngineError(
            f"{name!r} has no shape yet; run one forward through the lazy modules first"
        )


def require_parameter(name: str, parameter: nn.Parameter) -> None:
    """Refuse a parameter that is no plain tensor with values, or of no known dtype."""
    if parameter.is_meta:
        raise EngineError(f"{name!r} is on the meta device; materialise the model first")
    if type(parameter.data) is not torch.Tensor:
        raise EngineError(
            f"{name!r} is a {type(parameter.data).__name__}; every rank must hold whole, plain "
            "tensors (no sharding)"
        )
    if parameter.requires_grad:
        dtype_bytes(dtype_name(parameter.dtype))


def _trainables(
    model: nn.Module, shared: Sequence[tuple[str, nn.Parameter]], sparse: Container[int]
) -> tuple[Trainable, ...]:
    """Return which of the parameters that ranks share are trained, or refuse one.

    Not those of the identities ``sparse``.
    """
    for name, parameter in shared:
        require_shape(name, parameter)
        require_parameter(name, parameter)
    devices = {str(parameter.device) for _, parameter in shared}
    if len(devices) > 1:
        raise EngineError(
            f"the parameters are on several devices ({', '.join(sorted(devices))}); one rank "
            "trains on one device"
        )
    trained = [(name, p) for name, p in shared if p.requires_grad and id(p) not in sparse]
    if not trained and sparse:
        raise EngineError(
            f"{type(model).__name__} has no trainable parameter beside embeddings with "
            "sparse=True; give it one, or push and pull rows by KVStore.push_rows and pull_rows"
        )
    if not trained:
        raise EngineError(
            f"{type(model).__name__} has no trainable parameter among its {len(shared)}, so "
            "there is nothing to exchange; set requires_grad on those to be trained"
        )
    return tuple(Trainable(index, name, p) for index, (name, p) in enumerate(trained))


# -- the optimizers and the arguments --------------------------------------------------------------


def sound_optimizer(optimizer: object, model: nn.Module) -> torch.optim.Optimizer:
    """Refuse the optimizer of another model ([Note: Several modules, one optimizer])."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidValueError("optimizer", type(optimizer).__name__, "a torch.optim.Optimizer")
    known = {id(parameter) for parameter in model.parameters()}
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(id(parameter) in known for parameter in trained):
        first = ownership.in_optimizer(0, 0, trained[0]) if trained else "it has none"
        raise EngineError(
            f"none of the optimizer's {len(trained)} parameters is in the model ({first}), so it "
            "trains something else; build the optimizer from this model's parameters()"
        )
    return optimizer


def _require_arguments(given: Given, world_size: int) -> None:
    wishes, cluster = given.wishes, given.wishes.cluster
    if given.plan is not None:
        rule = "left out beside a plan, which says it already"
        _require_left_out(rule, cluster=cluster, exchange=wishes.exchange, channels=wishes.channels)
    if wishes.policy is not None and wishes.policy.endswith(".json"):
        rule = "a syncopate.Plan, which Plan.load reads from a file, or the name of a policy"
        raise InvalidValueError("plan", wishes.policy, rule)
    if wishes.policy is not None:
        # Loads all of planning, which a kept plan does without.
        from syncopate.planning.registry import require_policy  # noqa: PLC0415

        require_policy(wishes.policy)
    _require_exchange(given)
    channels = wishes.channels
    if channels is not None and (not isinstance(channels, int) or channels < 1):
        raise InvalidValueError("channels", channels, "an integer >= 1")
    if cluster is None:
        return
    if not isinstance(cluster, Cluster):
        raise InvalidValueError("cluster", type(cluster).__name__, "a syncopate.Cluster")
    if cluster.world_size != world_size:
        raise EngineError(
            f"the cluster {cluster.name!r} has {cluster.world_size} ranks; "
            f"{world_size} are running. Calibrate this one"
        )


def _require_left_out(rule: str, **arguments: object) -> None:
    for what, value in arguments.items():
        if value is not None:
            shown = value if isinstance(value, str | int) else type(value).__name__
            raise InvalidValueError(f"{what}=", shown, rule)


def _require_exchange(given: Given) -> None:
    wishes, exchange = given.wishes, given.wishes.exchange
    if given.store is not None and not isinstance(given.store, Store):
        rule = f"one of {', '.join(map(repr, PLANNED))}, or a syncopate.KVStore"
        raise InvalidValueError("exchange", given.store, rule)
    if exchange is not None and exchange not in (*PLANNED, SERVED):
        raise UnknownNameError("exchange", exchange, (*PLANNED, "a syncopate.KVStore"))
    if exchange == SERVED:
        rule = f"left out with the {SERVED} exchange, or a plan that make_plan returned"
        cluster, channels = wishes.cluster, wishes.channels
        _require_left_out(rule, plan=wishes.policy, cluster=cluster, channels=channels)


def _require_updatable(exchange: str | None, optimizers: Sequence[Any]) -> None:
    """Refuse an exchange that goes through the optimizers' steps where that cannot be."""
    if exchange is None or not EXCHANGES[exchange].pull:
        return
    require_whole_weights(exchange)
    if not optimizers:
        raise EngineError(
            f"the {exchange} exchange updates weights in the optimizer's step; give the optimizer, "
            "too: distribute(model, optimizer, ...)"
        )
    for optimizer in optimizers if exchange != DECOUPLED else ():  # there it may be unknown
        kind_of(optimizer)


def _sound_delay(
    given: Given, optimizers: Sequence[torch.optim.Optimizer]
) -> Delay | LocalSGD | None:
    """Return the delay that was asked for, or refuse it."""
    delay = delay_of(given.delay)
    if delay is None:
        return None
    planned = given.plan if isinstance(given.plan, Plan) else None
    if planned is not None and (planned.delay or planned.local_sgd) not in (None, delay):
        raise InvalidValueError("delay", delay, "left out beside a plan that has another one")
    if given.exchange not in delay.EXCHANGES:
        known = " and ".join(delay.EXCHANGES)
        rule = f"left out with the {given.exchange} exchange; only {known} can take it"
        raise InvalidValueError("delay", delay, rule)
    require_delay(delay, optimizers)
    return delay


def _sound_servers(
    given: Given,
    optimizers: Sequence[torch.optim.Optimizer],
    delay: Delay | LocalSGD | None,
    world_size: int,
    tables: Sequence[Embedded],
) -> Servers | None:
    """Return the servers that were asked for, or refuse them."""
    if given.exchange == SERVED:
        if given.store is None:
            rule = "the syncopate.KVStore itself, where servers are to update the weights"
            raise InvalidValueError("exchange", given.wishes.exchange, rule)
        servers = served_by(cast(Store, given.store), optimizers, world_size, tables)
        servers.require_delay(delay or (given.plan.delay if given.plan is not None else None))
        return servers
    if given.store is not None:
        rule = f"left out beside a plan of the {given.exchange} exchange, where ranks hold weights"
        raise InvalidValueError("exchange", type(given.store).__name__, rule)
    return None


# -- what all ranks must have alike ---------------------------------------------------------------


def _facts(given: Given, ignored: frozenset[str]) -> list[Fact]:
    """Return the arguments that must be equal on all ranks."""
    wishes = given.wishes
    return [
        ("whether a plan is given", given.plan is not None),
        ("whether cluster= is given", wishes.cluster is not None),
        ("policy", wishes.policy),
        ("exchange", wishes.exchange),
        ("delay", str(delay_of(given.delay))),
        ("channels", wishes.channels),
        ("cache", wishes.cache),
        ("deterministic", wishes.deterministic),
        ("broadcast_buffers", given.broadcast_buffers),
        ("what to ignore", tuple(sorted(ignored))),
    ]


def tensor_facts(kind: str, tensors: Iterable[tuple[str, Tensor]]) -> list[Fact]:
    """Return one fact per tensor: shape, strides, dtype and whether it is trained."""
    return [
        (
            f"{kind} {name!r}",
            (
                f"shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}, {tensor.dtype}"
                f"{'' if tensor.requires_grad or kind != 'parameter' else ', frozen'}"
            ),
        )
        for name, tensor in tensors
    ]
