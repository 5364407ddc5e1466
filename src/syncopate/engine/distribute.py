"""Distribute: the one call that makes a model and its optimizer train over all ranks.

[Note: models that change]
After layers are added, replaced or converted, ``model.syncopate.detach()`` gives the model back, to
be distributed again. A module may be compiled before or after; with ``fullgraph=True`` before.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import SERVED, Plan
from syncopate.collectives import Communicator
from syncopate.collectives.store import Store
from syncopate.delay import Delay, LocalSGD
from syncopate.engine.checks.agreement import Checks, T, agree
from syncopate.engine.checks.connect import require_process_group
from syncopate.engine.checks.soundness import Given, checks, require_plain
from syncopate.engine.engine import Engine
from syncopate.engine.model.module import DistributedModule, attach
from syncopate.engine.model.ownership import adopt
from syncopate.engine.model.state import Buffers, broadcast_tensors
from syncopate.engine.published import publish_if_asked
from syncopate.engine.recording import tell
from syncopate.engine.selfplan.start import start
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.tracing.capture import current

_Model = TypeVar("_Model", bound=nn.Module)
_Optimizers = TypeVar("_Optimizers", bound=torch.optim.Optimizer | Sequence[torch.optim.Optimizer])


@runtime_checkable
class Distributed(Protocol):
    """A model that :func:`distribute` returned.

    A distributed model keeps its own type, and ``isinstance`` tells a type checker what it has
    besides.

    Example:
        >>> assert isinstance(model, Distributed)  # doctest: +SKIP
        >>> model.syncopate.plan  # doctest: +SKIP
    """

    @property
    def syncopate(self) -> Engine:
        """What exchanges the gradients: the plan, the record, checkpoints."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a block whose forwards' gradients accumulate on this rank, as under DDP."""

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        """Return a block in which ranks may run out of inputs, as under DDP."""


class _Options(TypedDict, total=False):
    """The keywords of :func:`distribute`, for its two signatures."""

    plan: Plan | str | None
    cluster: Cluster | None
    exchange: str | Store | None
    delay: Delay | LocalSGD | int | None
    channels: int | None
    cache: bool
    deterministic: bool | None
    broadcast_buffers: bool
    ignore: Iterable[str]
    group: dist.ProcessGroup | None
    timeout_s: float | None


@overload
def distribute(model: _Model, optimizer: None = None, **options: Unpack[_Options]) -> _Model: ...


@overload
def distribute(
    model: _Model, optimizer: _Optimizers, **options: Unpack[_Options]
) -> tuple[_Model, _Optimizers]: ...


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    plan: Plan | str | None = None,
    cluster: Cluster | None = None,
    exchange: str | Store | None = None,
    delay: Delay | LocalSGD | int | None = None,
    channels: int | None = None,
    cache: bool = True,
    deterministic: bool | None = None,
    broadcast_buffers: bool = True,
    ignore: Iterable[str] = (),
    group: dist.ProcessGroup | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Train ``model`` data-parallel: the call that stands where DistributedDataParallel stood.

    The model stays the same object, keeps its type, and gets ``no_sync()``, ``join()`` and
    ``syncopate``, its :class:`~syncopate.engine.engine.Engine` (:class:`Distributed`). Parameters
    and buffers become rank 0's. Every backward ends with gradients averaged over the ranks: views
    of communication buffers, so copy one that is to survive the next. Every training forward
    begins with rank 0's buffers; with ``no_sync`` the first one of an accumulation does.

    Without a plan, training measures itself on the way and settles on the fastest of several plans,
    which the next run starts with. Where steps become slower later, it measures again. It logs what
    it does.

    Args:
        model: on its device; the same on every rank.
        optimizer: over parameters of the model, and of other distributed models; or a list of
            several, such as Muon for matrices and AdamW for the rest. All ranks take their steps
            in the same order, and leave the same ones out.
        plan: the plan to run; or the name of a policy, which makes it; the fastest when left out.
        cluster: hosts, levels and links as these, instead of probing them; not beside a plan.
        exchange: ``"allreduce"``, ``"decoupled"``, where half of each all-reduce hides behind the
            next forward, or ``"sharded"``, where each rank updates its share of the weights
            (docs/sharded.md); the faster of the first two when left out; not beside a plan.
            A :class:`~syncopate.KVStore`, where its servers hold and update the weights, and
            tables of embeddings with ``sparse=True`` (docs/paramserver.md); a plan of the
            ``served`` exchange needs one beside it.
        delay: pull weights every so many steps and train on each rank's own between
            (docs/ssd_sgd.md), a :class:`~syncopate.delay.Delay` or its ``k``; from servers of mode
            ``ssgd``, where they are given, or of the ``sharded`` exchange, which it asks for. Or
            average weights every so many steps of each rank's own (docs/local_sgd.md), a
            :class:`~syncopate.delay.LocalSGD`; of the ``allreduce`` exchange, which it asks for.
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
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    made, policy = (None, plan) if isinstance(plan, str) else (plan, None)
    name, store = _exchange_of(exchange, delay, made)
    wishes = Wishes(policy, channels, name, cluster, cache, deterministic)
    given = Given(made, wishes, broadcast_buffers, ignore, delay, store)
    _begin(model, _listed(optimizer), given, group, timeout_s)
    return model if optimizer is None else (model, optimizer)


def _exchange_of(given: object, delay: object, plan: Plan | None) -> tuple[Any, object]:
    """Return the name of the exchange asked for, if it is asked for, and the store given for it.

    A plan names its own. Without one a delay asks for its own, and a store for ``served``.
    Nothing is checked yet.
    """
    if given is not None and not isinstance(given, str):
        return (SERVED if plan is None else None), given
    if given is None and delay is not None and plan is None:
        return (LocalSGD if isinstance(delay, LocalSGD) else Delay).EXCHANGES[0], None
    return given, None


def _begin(
    model: nn.Module,
    optimizers: Sequence[object],
    given: Given,
    group: dist.ProcessGroup | None,
    timeout_s: float | None,
) -> None:
    """Start what is built, or leave nothing behind."""
    engine, hosts = _built(model, optimizers, given, group, timeout_s)
    try:
        if given.plan is not None:
            engine.install(given.plan.delayed(engine.delay) if engine.delay else given.plan)
        else:
            start(engine, given.wishes, hosts)
        attach(model, engine)
        publish_if_asked(engine)
    except BaseException:
        engine.detach()
        raise


def _built(
    model: nn.Module,
    optimizers: Sequence[object],
    given: Given,
    group: dist.ProcessGroup | None,
    timeout_s: float | None,
) -> tuple[Engine, Sequence[str]]:
    """Check everything and make all ranks alike; return the engine and every rank's host."""
    require_process_group(model, timeout_s)
    if isinstance(model, DistributedModule):
        require_plain("", model)  # at once: other ranks may be in a collective of it
    # One channel until it is known that all ranks ask for the same number of them.
    communicator = Communicator(group, timeout_s=timeout_s)
    try:
        row = _with_capture(checks(model, optimizers, given, communicator.world_size))
        sound, told = agree(communicator, row, beside=tell(socket.gethostname()))
        adopt(model)
        device, shared = sound.trainables[0].parameter.device, given.broadcast_buffers
        buffers = Buffers(model, device, sound.ignored, shared=shared)
        broadcast_tensors(communicator, [*sound.weights, *buffers.tensors])
        buffers.take(buffers.kept)
        engine = Engine(model, sound, buffers, communicator)
        engine.recording.enrol(told)
        return engine, [one.host for one in told]
    except BaseException:
        communicator.close()
        raise


def _with_capture(row: Checks[T]) -> Checks[T]:
    """Return a row of checks, and before it that the capture that is asked for can be written."""
    current()
    return (yield from row)


def _listed(optimizer: object) -> Sequence[object]:
    """Return the optimizers that were given, none or one or several."""
    if optimizer is None:
        return ()
    return optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
