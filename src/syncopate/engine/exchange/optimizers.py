"""Optimizers: which of them may update a part of a parameter by itself.

Those of torch are in a table (:mod:`syncopate.workload`); what is not in it says so by
:func:`declare_optimizer`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from syncopate.engine.buckets import Trainable
from syncopate.errors import EngineError, InvalidValueError
from syncopate.workload import ELEMENT, OPTIMIZERS, TENSOR

_KNOWN: dict[type, str] = {
    getattr(torch.optim, name): kind
    for name, kind in OPTIMIZERS.items()
    if hasattr(torch.optim, name)
}


def declare_optimizer(optimizer_class: type[torch.optim.Optimizer], shards: str) -> None:
    """Say how an optimizer's work may be spread over ranks.

    Args:
        optimizer_class: the class; classes of the same ``step`` are meant too.
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
        EngineError: nobody said; the error says how to.
    """
    for known in type(optimizer).__mro__:
        if known in _KNOWN and same_step(type(optimizer), known):
            return _KNOWN[known]
    name = type(optimizer).__name__
    raise EngineError(
        f"it is not known whether {name} may update a part of a tensor by itself. Call "
        f"syncopate.declare_optimizer({name}, 'element') if it treats every element alike, or "
        f"syncopate.declare_optimizer({name}, 'tensor') if it looks at whole tensors; or train "
        "with exchange='allreduce', where every rank updates everything"
    )


def same_step(one: type, other: type) -> bool:
    """Say whether optimizers of two classes update by the same ``step``."""
    return step_of(one) is step_of(other)


def step_of(optimizer_class: Any) -> Any:
    """Return the ``step`` that somebody wrote; torch wraps that of the first class to be used."""
    return inspect.unwrap(optimizer_class.step)


class Trained(NamedTuple):
    """Who updates a parameter, and how.

    Attributes:
        optimizer: the place of its optimizer among those of the model; 0 where nobody trains it.
        kind: ``"tensor"`` where some optimizer of it looks at whole tensors, ``"element"`` else.
    """

    optimizer: int
    kind: str


def trained_by(
    trainables: Sequence[Trainable], optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[Trained, ...]:
    """Return for each of some parameters who updates it.

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
