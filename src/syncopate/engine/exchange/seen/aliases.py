"""Aliases: whether something else is on the memory of a tensor, by counting who holds it.

A view, a ``state_dict`` that was taken once, an array of numpy: who reads one of them reads memory,
and reading memory asks nobody. But each of them holds the storage that it is on, and torch counts
who does. What autograd keeps for a backward is gone when the backward is over.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def holders(storage: torch.UntypedStorage) -> int:
    """Return how many hold ``storage``: each tensor on it counts, and ``storage`` itself."""
    count: int = torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]
    return count


def _references(entry: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return how many hold an entry of a state, and at most a value of it, and its memory."""
    values = storages = 0
    for value in entry.values():
        if isinstance(value, Tensor):
            values = max(values, sys.getrefcount(value))
            storages = max(storages, holders(value.untyped_storage()))
    return sys.getrefcount(entry), values, storages


def _probe(entry: Any) -> tuple[int, int, int]:
    """Return :func:`_references`, called as :func:`is_held` calls it."""
    return _references(entry)


_STATE = {0: {"value": torch.zeros(1)}}

_ALONE = _probe(_STATE.get(0))
"""What :func:`_references` says of an entry that the state alone holds."""


def is_held(entry: Any) -> bool:
    """Say whether somebody holds an entry of an optimizer's state, or memory of it.

    Call it with ``state.get(parameter)`` itself: a name for it would count.
    """
    if entry is None:
        return False
    here, values, storages = _references(entry)
    return here > _ALONE[0] or values > _ALONE[1] or storages > _ALONE[2]
