"""Ownership: a parameter's gradient is exchanged by one engine, and by nothing else.

Two engines that exchange one gradient average it twice, and each puts its own buffer into
``parameter.grad``, so neither launches gradients that the other accumulated. Hence a second engine
is refused, and so is DistributedDataParallel around a distributed model.

[Note: DDP around a distributed model]
DDP hooks autograd below Python, so its construction is not noticed. But it exchanges only the
gradients of its own forward, and names itself there for torch.compile. A distributed model that is
called meanwhile notices it, in any order of wrapping, before any gradient is wrong. Its
reducer in Python (``torch._dynamo.config.optimize_ddp = "python_reducer"``) does not name itself,
and hooks the parameters where they can be seen.

[Note: A model that is dropped]
Hooks do not hold an engine or a part of it: the garbage collector does not see through a parameter
to its hooks, and would keep buffers and sockets for ever. Model and optimizer hold the engine. If
both are gone and a layer is still trained, a hook of its own says that its gradients are not
exchanged.
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange import groups
from syncopate.engine.model.inventory import Inventory
from syncopate.engine.torch_compat import active_ddp, without_overrides
from syncopate.errors import EngineError

_HOOKS = operator.attrgetter("_post_accumulate_grad_hooks")


_owners: weakref.WeakSet[Inventory] = weakref.WeakSet()
"""What every engine that is at work on a model exchanges."""

_orphans: list[tuple[weakref.ref[torch.Tensor], RemovableHandle]] = []
"""Parameters whose engine is gone, and the hooks that say so when they are trained."""


def claim(owner: Inventory) -> None:
    """Note that an engine exchanges the gradients of ``owner`` from now on."""
    _owners.add(owner)


def release(owner: Inventory) -> None:
    """Note that no engine does any more."""
    _owners.discard(owner)


def orphan(parameters: Mapping[str, weakref.ref[torch.Tensor]]) -> None:
    """Let parameters that are not exchanged any more say so, by name, when they are trained."""
    for name, found in parameters.items():
        if (parameter := found()) is not None:
            _orphans.append((found, _refusing(parameter, name)))


def _refusing(parameter: torch.Tensor, name: str) -> RemovableHandle:
    """Return a hook that refuses to train ``parameter``, which need not be trained now."""

    def refuse(_: torch.Tensor) -> None:
        raise dropped(name)

    trained = parameter.requires_grad
    parameter.requires_grad_(True)
    hook: Any = parameter.register_post_accumulate_grad_hook(refuse)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(trained)
    return cast("RemovableHandle", hook)


def adopt(model: nn.Module) -> None:
    """Take the hooks of an engine that is gone off the parameters of ``model``."""
    here = {id(parameter) for parameter in model.parameters()}
    kept = []
    for parameter, hook in _orphans:
        alive = parameter()
        if alive is not None and id(alive) in here:
            hook.remove()
        elif alive is not None:
            kept.append((parameter, hook))
    _orphans[:] = kept


def dropped(name: str) -> EngineError:
    """Return what a parameter raises that outlived the engine that exchanged its gradients."""
    return EngineError(
        f"{name!r} is trained, but the model that was distributed with it is gone, and with it the "
        "exchange of gradients. Keep model and optimizer, or call the model's .syncopate.detach() "
        "before it goes"
    )


def require_free(model: nn.Module, trainables: Sequence[Trainable]) -> None:
    """Refuse a model of which one of ``trainables`` is exchanged already.

    Raises:
        EngineError: names the parameter and both models.
    """
    if _shared(trainables) is not None:
        # A model that was dropped is at work until Python frees it.
        gc.collect()
    shared = _shared(trainables)
    if shared is not None:
        name, owner, there = shared
        raise EngineError(
            f"{name!r} of this {type(model).__name__} is {there!r} of a {owner.model_name} that "
            "is distributed already, and a gradient is averaged only once. Distribute one module "
            "that holds both, or call .syncopate.detach() on the other first"
        )


def _shared(trainables: Sequence[Trainable]) -> tuple[str, Inventory, str] | None:
    for owner in tuple(_owners):
        owned = owner.owned
        for trainable in trainables:
            there = owned.get(id(trainable.parameter))
            if there is not None:
                return trainable.name, owner, there
    return None


def require_alone(owner: Inventory, trainables: Sequence[Trainable]) -> None:
    """Refuse a forward inside DDP's ([Note: DDP around a distributed model]).

    Raises:
        EngineError: names a parameter that both would exchange.
    """
    parameters = [trainable.parameter for trainable in trainables]
    with without_overrides():  # no value is looked at, on its way or not
        hooked = list(map(_HOOKS, parameters))
    for trainable, hooks in zip(trainables, hooked, strict=True):
        if hooks and any(map(_is_of_ddp, hooks.values())):
            raise _exchanged_twice(owner, trainable.name)
    outer = active_ddp()
    if outer is None:
        return
    owned = owner.owned
    for name, parameter in outer.module.named_parameters():
        there = owned.get(id(parameter))
        if there is not None and name not in outer.parameters_to_ignore:
            raise _exchanged_twice(owner, there)


def _is_of_ddp(hook: object) -> bool:
    function = hook.func if isinstance(hook, partial) else hook
    return getattr(function, "__module__", "") == DistributedDataParallel.__module__


def _exchanged_twice(owner: Inventory, name: str) -> EngineError:
    return EngineError(
        f"DistributedDataParallel is wrapped around a {owner.model_name} that is distributed "
        f"already, so both would average the gradient of {name!r}. Call the model without the "
        "wrapper (its .module) and keep it from what wraps it, such as Accelerate's prepare or a "
        "Trainer; or call .syncopate.detach() to stay with DDP"
    )


def require_averaged(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that trains what no distributed model holds.

    Raises:
        EngineError: names the parameter.
    """
    for stranger in strangers(optimizer):
        raise not_averaged(stranger)


def strangers(optimizer: torch.optim.Optimizer, also: Collection[int] = ()) -> Iterator[str]:
    """Yield what ``optimizer`` trains that no distributed model holds, in words.

    Args:
        optimizer: of any models.
        also: identities of parameters that are going to be distributed.
    """
    known = set(also)
    for owner in tuple(_owners):
        known.update(owner.parameters)
    for number, parameters in enumerate(groups.parameters_of(optimizer)):
        for place, parameter in enumerate(parameters):
            if parameter.requires_grad and id(parameter) not in known:
                yield in_optimizer(number, place, parameter)


def not_averaged(stranger: str) -> EngineError:
    """Return what the step of an optimizer raises that trains a stranger."""
    return EngineError(
        f"{stranger} is in no distributed model, so its gradient is not averaged. Distribute its "
        "module as well (a loss with parameters, too: syncopate.distribute(loss)), or give it an "
        "optimizer of its own"
    )


def in_optimizer(group: int, place: int, parameter: torch.Tensor) -> str:
    """Say which parameter of an optimizer this is; an optimizer knows no names."""
    return f"parameter {place} of the optimizer's group {group} (shape {tuple(parameter.shape)})"
