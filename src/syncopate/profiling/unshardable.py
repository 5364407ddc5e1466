"""Unshardable: which parameters of a model an optimizer looks at whole.

Where ranks own shards, such tensors are not cut, and shards are unequal
(:mod:`syncopate.simulation.shards`). What is known is known of torch's optimizers, by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from syncopate.artifacts.workload import ELEMENT, OPTIMIZERS, kind_named

_OF_MATRICES = ("Muon",)
"""Optimizers that take matrices alone; another one trains the rest of the model, by element."""


def looked_at_whole(
    parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer | str | None
) -> frozenset[str]:
    """Return the names of the parameters that ``optimizer`` looks at whole.

    Args:
        parameters: of the model, by name.
        optimizer: one, whose own parameters count; or the name of a class of ``torch.optim``, or of
            a kind, which trains all of ``parameters`` that it can. With None, and with an optimizer
            that is none of torch's, every element is updated by itself.

    Raises:
        UnknownNameError: no such name; lists those there are.
    """
    if optimizer is None:
        return frozenset()
    if isinstance(optimizer, str):
        if kind_named(optimizer) == ELEMENT:
            return frozenset()
        matrices = optimizer in _OF_MATRICES
        return frozenset(n for n, p in parameters.items() if p.dim() == 2 or not matrices)
    if _kind_of(type(optimizer)) == ELEMENT:
        return frozenset()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return frozenset(name for name, p in parameters.items() if id(p) in trained)


def _kind_of(optimizer_class: type) -> str:
    """Return the kind of the class of torch's whose ``step`` this one runs."""
    step = _step_of(optimizer_class)
    for name, kind in OPTIMIZERS.items():
        known = getattr(torch.optim, name, None)
        if known is not None and issubclass(optimizer_class, known) and step is _step_of(known):
            return kind
    return ELEMENT


def _step_of(optimizer_class: Any) -> Any:
    """Return the ``step`` of the user's class; torch wraps that of the first class to be used."""
    return inspect.unwrap(optimizer_class.step)
