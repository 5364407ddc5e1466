"""Groups: an optimizer's parameter groups while pieces stand in for parameters.

For the length of a step the groups of an optimizer hold what this rank updates. One optimizer may
train several models; each of them exchanges its own parameters for pieces, and the first that comes
afterwards puts the parameters back for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Held(NamedTuple):
    """The groups of one optimizer between its steps.

    Attributes:
        groups: each group with its parameters.
        parties: those who have exchanged theirs in this step; weakly, for they know the optimizer,
            and a step that raised may never be followed by another.
    """

    groups: list[tuple[dict[str, Any], list[Tensor]]]
    parties: weakref.WeakSet[object]


_held: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Held] = weakref.WeakKeyDictionary()
"""The optimizers in whose groups pieces stand."""


def exchange(
    optimizer: torch.optim.Optimizer,
    party: object,
    standing_for: Callable[[Tensor], Iterable[Tensor]],
) -> None:
    """Replace each parameter in the groups by its pieces.

    Args:
        optimizer: about to step.
        party: exchanges its parameters, once in a step. Where it comes a second time, the step
            before raised, and the parameters have not been put back.
        standing_for: maps a parameter to its pieces; returns any other parameter as it is.
    """
    if optimizer in _held and party in _held[optimizer].parties:
        put_back(optimizer)
    if optimizer not in _held:
        _held[optimizer] = _Held(
            [(g, g["params"]) for g in optimizer.param_groups], weakref.WeakSet()
        )
    _held[optimizer].parties.add(party)
    for group in optimizer.param_groups:
        group["params"] = [found for held in group["params"] for found in standing_for(held)]


def put_back(optimizer: torch.optim.Optimizer) -> None:
    """Put the parameters back into the groups."""
    if optimizer in _held:
        for group, parameters in _held.pop(optimizer).groups:
            group["params"] = parameters


def trained_ids(*optimizers: torch.optim.Optimizer) -> set[int]:
    """Return the identities of the parameters that these optimizers train."""
    held = (parameters for each in optimizers for parameters in parameters_of(each))
    return {id(parameter) for parameters in held for parameter in parameters}


def parameters_of(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """Return per group the parameters that ``optimizer`` trains; also while it holds pieces."""
    if optimizer in _held:
        return [parameters for _, parameters in _held[optimizer].groups]
    return [group["params"] for group in optimizer.param_groups]
