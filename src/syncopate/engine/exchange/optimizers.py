"""Optimizers: which of them may update a part of a parameter by itself.

Those of torch are in a table (:mod:`syncopate.artifacts.workload`); any other says so by
:func:`declare_optimizer`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from syncopate.artifacts.workload import ELEMENT, OPTIMIZERS, TENSOR
from syncopate.engine.buckets import Trainable
from syncopate.errors import EngineError, InvalidValueError

_KNOWN: dict[type, str] = {
    getattr(torch.optim, name): kind
    for name, kind in OPTIMIZERS.items()
    if hasattr(torch.optim, name)
}


def declare_optimizer(optimizer_class: type[torch.optim.Optimizer], shards: str) -> None:
    """Say how an optimizer's work may be spread over ranks.

    Args:
        optimizer_class: the class; subclasses that override nothing but ``__init__`` are meant too.
        shards: ``"element"`` where each element is updated from its own gradient and state alone,
            ``"tensor"`` where the whole tensor is looked at, as by LAMB or LARS.

    Raises:
        InvalidValueError: neither of them, or no optimizer.
    """
    if not (
        isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)
    ):
        raise InvalidValueError("optimizer_class", optimizer_class, "a torch.optim.Optimizer class")
    if shards not in (ELEMENT, TENSOR):
        raise InvalidValueError("shards", shards, f"{ELEMENT!r} or {TENSOR!r}")
    _KNOWN[optimizer_class] = shards


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Return ``"element"`` or ``"tensor"``.

    Raises:
        EngineError: it is not declared; the error says how to.
    """
    for known in type(optimizer).__mro__:
        if known in _KNOWN and updates_as(type(optimizer), known):
            return _KNOWN[known]
    name = type(optimizer).__name__
    raise EngineError(
        f"it is not known whether {name} may update a part of a tensor by itself. Call "
        f"syncopate.declare_optimizer({name}, 'element') if it treats every element alike, or "
        f"syncopate.declare_optimizer({name}, 'tensor') if it looks at whole tensors; or train "
        "with exchange='allreduce', where every rank updates everything"
    )


def updates_as(one: type, known: type) -> bool:
    """Say whether optimizers of the class ``one`` update as those of ``known`` do.

    A heir does that overrides nothing but ``__init__``: what a step does is spread over helpers
    (``_init_group``, hooks of ``zero_grad``, ...), and each of them may look at whole tensors.
    """
    return issubclass(one, known) and not changed_from(one, known)


def changed_from(one: type, known: type) -> set[str]:
    """Return the names that the class ``one``, a subclass of ``known``, has of its own."""
    heirs = [heir for heir in one.__mro__ if heir not in known.__mro__]
    changed = set(chain.from_iterable(map(vars, heirs))) - _HARMLESS
    if step_of(one) is step_of(known):
        changed.discard("step")  # where torch puts its wrapper
    return changed


def known_base(one: type) -> type | None:
    """Return the nearest declared class that ``one`` inherits from; None where there is none."""
    return next((each for each in one.__mro__ if each in _KNOWN), None)


_HARMLESS = frozenset(
    f"__{name}__"
    for name in (
        "init", "doc", "module", "qualname", "annotations", "annotate", "annotate_func",
        "annotations_cache", "dict", "weakref", "slots", "parameters", "orig_bases",
        "firstlineno", "static_attributes", "classdictcell",
    )
)  # fmt: skip
"""What a class may have of its own without another update."""


def step_of(optimizer_class: Any) -> Any:
    """Return the ``step`` as it was written; torch wraps that of the first class to be used."""
    return inspect.unwrap(optimizer_class.step)


def copy_for(
    optimizer: Any,
    parameters: Sequence[Sequence[torch.Tensor]],
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Return a copy of ``optimizer`` for other parameters, with today's hyper-parameters.

    [Note: a copy of the optimizer] A step that is left for later, or goes on aside, is the
    optimizer's own, called on a copy of it. A schedule changes the values of groups meanwhile, and
    fills those that are tensors anew; ``parameter.grad`` stays as it is.

    Args:
        optimizer: of which the copy has the class and the state.
        parameters: per group those of the copy; groups without any are left out.
        attributes: those of the optimizer, where they were noted before.
    """
    copy = object.__new__(type(optimizer))
    vars(copy).update(vars(optimizer) if attributes is None else attributes)
    copy.param_groups = [
        {key: _as_it_is_now(value) for key, value in items if key != "params"}
        | {"params": list(own)}
        for items, own in zip((g.items() for g in optimizer.param_groups), parameters, strict=True)
        if own
    ]
    return copy


@torch.no_grad()
def step_with(
    copy: torch.optim.Optimizer, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Let a copy of an optimizer step, on any thread.

    Args:
        copy: of :func:`copy_for`.
        gradients: parameters of the copy, each with the gradient that it has for the step.
    """
    for parameter, gradient in gradients:
        parameter.grad = gradient
    try:
        step_of(type(copy))(copy)
    finally:
        for parameter, _ in gradients:
            parameter.grad = None


def _as_it_is_now(value: Any) -> Any:
    """Return a copy of a group's value that later changes do not reach."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (tuple, list):
        return type(value)(map(_as_it_is_now, value))
    return value


class Trained(NamedTuple):
    """The optimizer of a parameter, and how it updates it.

    Attributes:
        optimizer: the place of its optimizer among those of the model; 0 where none trains it.
        kind: ``"tensor"`` where some optimizer of it looks at whole tensors, ``"element"`` else.
    """

    optimizer: int
    kind: str


def trained_by(
    trainables: Sequence[Trainable], optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[Trained, ...]:
    """Return for each of some parameters its optimizer, and how that updates it.

    A parameter of several optimizers counts as the first one's.

    Raises:
        EngineError: it is not known how one of the optimizers may be spread over ranks.
    """
    found: dict[int, Trained] = {}
    for place, optimizer in enumerate(optimizers):
        kind = kind_of(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known = found.setdefault(id(parameter), Trained(place, kind))
                if kind == TENSOR:
                    found[id(parameter)] = known._replace(kind=TENSOR)
    return tuple(found.get(id(each.parameter), Trained(0, ELEMENT)) for each in trainables)
