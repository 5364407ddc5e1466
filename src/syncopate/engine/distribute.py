"""Distribute: the one call that makes a model and its optimizer train over all ranks.

[Note: Several modules, one optimizer]
A module with parameters of its own is distributed by a call of its own; a loss with parameters is
one. An optimizer that trains several is given to each call. It may hold parameters that are
distributed only later, so that a parameter which nobody averages is refused at the optimizer's
first step and not before. An optimizer without any parameter of the model is refused at once:
it was built from another copy. So are the models of a GAN distributed, one by one.

[Note: models that change]
After layers are added, replaced or converted, ``model.syncopate.detach()`` gives the model back, to
be distributed again. A module may be compiled before or after; with ``fullgraph=True`` before.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.cluster import Cluster
from syncopate.collectives import Communicator
from syncopate.collectives.store import Store
from syncopate.delay import Delay, delay_of
from syncopate.engine import module as modules
from syncopate.engine import ownership
from syncopate.engine.agreement import Checks, Fact, agree, tensor_facts
from syncopate.engine.buckets import Trainable, dtype_name
from syncopate.engine.connect import require_process_group
from syncopate.engine.engine import Engine
from syncopate.engine.exchange.delay.rules import require_rule
from syncopate.engine.exchange.optimizers import kind_of
from syncopate.engine.exchange.serving.servers import Servers, served_by
from syncopate.engine.selfplan import PLANNED, Asked, Wishes, start
from syncopate.engine.state import Buffers, broadcast_tensors
from syncopate.errors import EngineError, InvalidValueError, UnknownNameError
from syncopate.plan import EXCHANGES, SERVED, SHARDED, Plan
from syncopate.units import dtype_bytes

_Optimizers = TypeVar("_Optimizers", bound=torch.optim.Optimizer | Sequence[torch.optim.Optimizer])


class _Options(TypedDict, total=False):
    """The keywords of :func:`distribute`, for its two signatures."""

    plan: Plan | str | None
    cluster: Cluster | None
    exchange: str | None
    delay: Delay | int | None
    channels: int | None
    cache: bool
    deterministic: bool | None
    broadcast_buffers: bool
    ignore: Iterable[str]
    group: dist.ProcessGroup | None
    timeout_s: float | None
    store: Store | None


@overload
def distribute(model: nn.Module, optimizer: None = None, **options: Unpack[_Options]) -> Any: ...


@overload
def distribute(
    model: nn.Module, optimizer: _Optimizers, **options: Unpack[_Options]
) -> tuple[Any, _Optimizers]: ...


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    plan: Plan | str | None = None,
    cluster: Cluster | None = None,
    exchange: str | None = None,
    delay: Delay | int | None = None,
    channels: int | None = None,
    cache: bool = True,
    deterministic: bool | None = None,
    broadcast_buffers: bool = True,
    ignore: Iterable[str] = (),
    group: dist.ProcessGroup | None = None,
    timeout_s: float | None = None,
    store: Store | None = None,
) -> Any:
    """Train ``model`` data-parallel: the call that stands where DistributedDataParallel stood.

    The model stays the same object and gets ``no_sync()``, ``join()`` and ``syncopate``, its
    :class:`~syncopate.engine.engine.Engine`. Parameters and buffers become rank 0's. Every backward
    ends with gradients averaged over the ranks: views of communication buffers, so copy one that is
    to survive the next. Every training forward outside ``no_sync`` begins with rank 0's buffers.

    Without a plan, training measures itself on the way and settles on the fastest of several plans,
    which the next run starts with. It logs what it does.

    Args:
        model: on its device; the same on every rank.
        optimizer: over parameters of the model, and of other distributed models; or a list of
            several, such as Muon for matrices and AdamW for the rest. All ranks take their steps
            in the same order, and leave the same ones out.
        plan: the plan to run; or the name of a policy, which makes it; the fastest when left out.
        cluster: hosts, levels and links as these, instead of probing them; not beside a plan.
        exchange: ``"allreduce"``, where every rank updates all weights, or ``"sharded"``, where
            each updates its share (docs/sharded.md); the faster when left out; not beside a plan.
            ``"served"``, where servers update, with a store.
        delay: pull weights every so many steps and train on each rank's own between
            (docs/ssd_sgd.md), a :class:`~syncopate.delay.Delay` or its ``k``; only with the
            ``sharded`` exchange, which it asks for.
        channels: how many collectives run at once; the best when left out; not beside a plan.
        cache: use the plan that an earlier run kept for this model, these hosts and versions, and
            keep the one found. ``SYNCOPATE_CACHE`` names the folder, or is ``off``.
        deterministic: make no plan that depends on a clock: a kept one, or DDP's buckets. By
            default what ``torch.use_deterministic_algorithms`` says.
        broadcast_buffers: False leaves every rank its own buffers, from the start.
        ignore: names of parameters and buffers that every rank keeps for itself, as are those in
            the model's ``_ddp_params_and_buffers_to_ignore``.
        group: the ranks; all of them when left out.
        timeout_s: how long a rank waits for another in a collective; by default as ``group`` does.
        store: parameter servers that hold and update the weights, a :class:`~syncopate.KVStore`
            (docs/paramserver.md); asks for the ``served`` exchange, which needs it.

    Returns:
        The model and the optimizer or optimizers as given; the model alone where none was.

    Raises:
        EngineError: model, optimizer or ranks that cannot be trained together; on every rank.
        InvalidValueError: an argument that cannot be, or not beside a plan.
        PlanError: the plan is for another model or rank count.
        UnknownNameError: no such policy or algorithm.
        CollectiveError: a rank is lost or late.

    Example:
        >>> model, optimizer = distribute(model, optimizer)  # doctest: +SKIP
    """
    require_process_group(model, timeout_s)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    given, policy = (None, plan) if isinstance(plan, str) else (plan, None)
    if delay is not None and given is None and exchange is None:
        exchange = SHARDED
    if store is not None and given is None and exchange is None:
        exchange = SERVED
    wishes = Wishes(cluster, Asked(policy, channels, exchange), cache, deterministic)
    asked = _Asked(given, wishes, broadcast_buffers, ignore, delay, store)
    _begin(model, _listed(optimizer), asked, group, timeout_s)
    return model if optimizer is None else (model, optimizer)


@dataclass(frozen=True)
class _Asked:
    """What the user gave beside model and optimizer; None for what was left out."""

    plan: Plan | None
    wishes: Wishes
    broadcast_buffers: bool
    ignore: Iterable[str]
    delay: Delay | int | None = None
    store: Store | None = None


def _begin(
    model: nn.Module,
    optimizers: Sequence[object],
    asked: _Asked,
    group: dist.ProcessGroup | None,
    timeout_s: float | None,
) -> None:
    """Build an engine and start it, or leave nothing behind."""
    # One channel until it is known that all ranks ask for the same number of them.
    communicator = Communicator(group, timeout_s=timeout_s)
    try:
        checks = _checks(model, optimizers, asked, communicator)
        sound, hosts = agree(communicator, checks, beside=socket.gethostname())
        engine = _build(model, sound, asked, communicator, group)
    except BaseException:
        communicator.close()
        raise
    try:
        engine.servers = sound.servers
        if asked.plan is not None:
            engine.install(asked.plan.delayed(sound.delay) if sound.delay else asked.plan)
        else:
            start(engine, asked.wishes, hosts)
        modules.attach(model, engine)
    except BaseException:
        engine.detach()
        raise


class _Sound(NamedTuple):
    """What was found fit to be trained.

    Attributes:
        ignored: names of what stays every rank's own.
        trainables: every parameter whose gradient is exchanged.
        optimizers: each once.
        delay: what was asked for.
        servers: what holds the weights, if servers do.
    """

    ignored: frozenset[str]
    trainables: tuple[Trainable, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    delay: Delay | None
    servers: Servers | None


def _checks(
    model: nn.Module, optimizers: Sequence[object], asked: _Asked, communicator: Communicator
) -> Checks[_Sound]:
    """Check everything that can be checked before anything is built."""
    ignored = _ignored(model, asked.ignore)
    yield ()
    trainables = _require_sound(model, ignored)
    yield ()
    known = _sound_optimizers(optimizers, model)
    yield ()
    _require_arguments(communicator, asked)
    yield ()
    _require_updatable(asked, optimizers)
    yield ()
    delay = _sound_delay(asked, known)
    servers = _sound_servers(asked, known, communicator.world_size)
    yield _facts(model, asked, ignored)
    modules.require_extensible(model)
    return _Sound(ignored, trainables, known, delay, servers)


def _build(
    model: nn.Module,
    sound: _Sound,
    asked: _Asked,
    communicator: Communicator,
    group: dist.ProcessGroup | None,
) -> Engine:
    """Make all ranks start alike, and return the engine."""
    device = sound.trainables[0].parameter.device
    buffers = Buffers(model, device, sound.ignored, shared=asked.broadcast_buffers)
    parameters = [parameter.data for _, parameter in _considered(model, sound.ignored)]
    broadcast_tensors(communicator, parameters + buffers.tensors)
    buffers.take(buffers.kept)
    engine = Engine(
        model,
        sound.optimizers,
        trainables=sound.trainables,
        buffers=buffers,
        ignored=sound.ignored,
        group=group,
        communicator=communicator,
    )
    engine.delay = sound.delay
    return engine


def _ignored(model: object, asked: Iterable[str]) -> frozenset[str]:
    """Return the names that stay every rank's own."""
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


def _considered(model: nn.Module, ignored: frozenset[str]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that all ranks share; one is ignored if all its names are."""
    named = model.named_parameters(remove_duplicate=False)
    shared = {id(parameter) for name, parameter in named if name not in ignored}
    return [(name, p) for name, p in model.named_parameters() if id(p) in shared]


def _require_sound(model: nn.Module, ignored: frozenset[str]) -> tuple[Trainable, ...]:
    """Return the parameters to train, or refuse the model."""
    _require_plain(model)
    parameters = _considered(model, ignored)
    for name, parameter in parameters:
        _require_parameter(name, parameter)
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.sparse
            and any(module.weight is parameter for _, parameter in parameters)
        ):
            raise EngineError(
                f"{name or 'the model'!r} is an embedding with sparse=True; gradients must be "
                "dense. Build it with sparse=False"
            )
    devices = {str(parameter.device) for _, parameter in parameters}
    if len(devices) > 1:
        raise EngineError(
            f"the parameters are on several devices ({', '.join(sorted(devices))}); one rank "
            "trains on one device"
        )
    trained = [(name, p) for name, p in parameters if p.requires_grad]
    ownership.require_free(model, trained)
    if not trained:
        raise EngineError(
            f"{type(model).__name__} has no trainable parameter among its {len(parameters)}, so "
            "there is nothing to exchange; set requires_grad on those to be trained"
        )
    return tuple(Trainable(index, name, p) for index, (name, p) in enumerate(trained))


def _require_plain(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"its module {name!r}" if name else "the model"
        if isinstance(module, DistributedDataParallel):
            raise EngineError(
                f"{where} is wrapped in DistributedDataParallel already; distribute takes its "
                "place, so give the module inside (.module)"
            )
        if isinstance(module, modules.DistributedModule):
            raise EngineError(
                f"{where} is distributed already; call .syncopate.detach() on it first, or "
                ".syncopate.install(plan) to change its plan"
            )


def _require_parameter(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.UninitializedParameter):
        raise EngineError(
            f"{name!r} has no shape yet; run one forward through the lazy modules first"
        )
    if parameter.is_meta:
        raise EngineError(f"{name!r} is on the meta device; materialise the model first")
    if type(parameter.data) is not torch.Tensor:
        raise EngineError(
            f"{name!r} is a {type(parameter.data).__name__}; every rank must hold whole, plain "
            "tensors (no sharding)"
        )
    if parameter.requires_grad:
        dtype_bytes(dtype_name(parameter))


def _listed(optimizer: object) -> Sequence[object]:
    """Return the optimizers that were given, none or one or several."""
    if optimizer is None:
        return ()
    return optimizer if isinstance(optimizer, list | tuple) else (optimizer,)


def _sound_optimizers(
    optimizers: Sequence[object], model: nn.Module
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers, each once, or refuse one of them."""
    return tuple(dict.fromkeys(_sound_optimizer(optimizer, model) for optimizer in optimizers))


def _sound_optimizer(optimizer: object, model: nn.Module) -> torch.optim.Optimizer:
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


def _require_arguments(communicator: Communicator, asked: _Asked) -> None:
    policy, channels = asked.wishes.asked.policy, asked.wishes.asked.channels
    cluster, exchange = asked.wishes.cluster, asked.wishes.asked.exchange
    for what, given in (("cluster", cluster), ("exchange", exchange), ("channels", channels)):
        if asked.plan is not None and given is not None:
            value = given if isinstance(given, str | int) else type(given).__name__
            rule = "left out beside a plan, which says it already"
            raise InvalidValueError(f"{what}=", value, rule)
    if policy is not None and policy.endswith(".json"):
        rule = "a syncopate.Plan, which Plan.load reads from a file, or the name of a policy"
        raise InvalidValueError("plan", policy, rule)
    if policy is not None:
        # Loads all of planning, which a kept plan does without.
        from syncopate.planning.registry import require_policy  # noqa: PLC0415

        require_policy(policy)
    if exchange is not None and exchange not in (*PLANNED, SERVED):
        raise UnknownNameError("exchange", exchange, (*PLANNED, SERVED))
    if exchange == SERVED:
        asked_too = (("plan", policy), ("cluster", cluster), ("channels", channels))
        for what, given in asked_too:
            if given is not None:
                rule = f"left out with the {SERVED} exchange, or a plan that make_plan returned"
                raise InvalidValueError(f"{what}=", what, rule)
    if channels is not None and (not isinstance(channels, int) or channels < 1):
        raise InvalidValueError("channels", channels, "an integer >= 1")
    if cluster is None:
        return
    if not isinstance(cluster, Cluster):
        raise InvalidValueError("cluster", type(cluster).__name__, "a syncopate.Cluster")
    if cluster.world_size != communicator.world_size:
        raise EngineError(
            f"the cluster {cluster.name!r} has {cluster.world_size} ranks; "
            f"{communicator.world_size} are running. Calibrate this one"
        )


def _require_updatable(asked: _Asked, optimizers: Sequence[Any]) -> None:
    """Refuse an exchange that goes through the optimizers' steps where that cannot be."""
    plan, exchange = asked.plan, asked.wishes.asked.exchange
    if isinstance(plan, Plan):
        exchange = plan.exchange
    if exchange is None or not EXCHANGES[exchange].pull:
        return
    if not optimizers:
        raise EngineError(
            f"the {exchange} exchange takes the optimizer's step out of this rank's hands; give "
            "the optimizer, too: distribute(model, optimizer, ...)"
        )
    for optimizer in optimizers:
        kind_of(optimizer)


def _sound_delay(asked: _Asked, optimizers: Sequence[torch.optim.Optimizer]) -> Delay | None:
    """Return the delay that was asked for, or refuse it."""
    delay, exchange = delay_of(asked.delay), asked.wishes.asked.exchange
    if delay is None:
        return None
    if asked.plan is not None:
        exchange = asked.plan.exchange
        if asked.plan.delay not in (None, delay):
            raise InvalidValueError("delay", delay, "left out beside a plan that has another one")
    if exchange != SHARDED:
        rule = f"left out with the {exchange} exchange; only {SHARDED} pulls weights late"
        raise InvalidValueError("delay", delay, rule)
    require_rule(delay, optimizers)
    return delay


def _sound_servers(
    asked: _Asked, optimizers: Sequence[torch.optim.Optimizer], ranks: int
) -> Servers | None:
    """Return the servers that were asked for, or refuse them."""
    exchange = asked.plan.exchange if asked.plan is not None else asked.wishes.asked.exchange
    if (exchange == SERVED) != (asked.store is not None):
        given = "none" if asked.store is None else type(asked.store).__name__
        rule = f"a syncopate.KVStore with the {SERVED} exchange, and left out with any other"
        raise InvalidValueError("store", given, rule)
    return None if asked.store is None else served_by(asked.store, optimizers, ranks)


def _facts(model: nn.Module, asked: _Asked, ignored: frozenset[str]) -> list[Fact]:
    named = model.named_buffers() if asked.broadcast_buffers else ()
    buffers = [(name, buffer) for name, buffer in named if name not in ignored]
    return [
        ("whether a plan is given", asked.plan is not None),
        ("whether cluster= is given", asked.wishes.cluster is not None),
        ("policy", asked.wishes.asked.policy),
        ("exchange", asked.wishes.asked.exchange),
        ("delay", str(delay_of(asked.delay))),
        ("channels", asked.wishes.asked.channels),
        ("cache", asked.wishes.cache),
        ("deterministic", asked.wishes.deterministic),
        ("broadcast_buffers", asked.broadcast_buffers),
        ("what to ignore", tuple(sorted(ignored))),
        *tensor_facts("parameter", _considered(model, ignored)),
        *tensor_facts("buffer", buffers),
    ]
