"""Aliases: whether something else is on the memory of a tensor, by counting references.

A view, a ``state_dict`` that was taken once, an array of numpy: a read of one of them is a read of
memory, which cannot be seen. But each of them refers to the storage that it is on, and torch counts
these references. What autograd keeps for a backward is gone when the backward is over.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.torch_compat import storage_holders


def _references(entry: Mapping[str, Any] | None) -> tuple[int, int, int]:
    """Return how many hold an entry of a state, and at most a value of it, and its memory."""
    if entry is None:
        return 0, 0, 0
    values = storages = 0
    for value in entry.values():
        if isinstance(value, Tensor):
            values = max(values, sys.getrefcount(value))
            storages = max(storages, storage_holders(value.untyped_storage()))
    return sys.getrefcount(entry), values, storages


_STATE = {0: {"value": torch.zeros(1)}}

_ALONE = _references(_STATE.get(0))
"""What :func:`_references` says of an entry that the state alone holds."""


def is_held(state: Mapping[Any, Any], key: Any) -> bool:
    """Say whether anything beside ``state`` holds the entry of ``key``, or memory of it."""
    here, values, storages = _references(state.get(key))
    return here > _ALONE[0] or values > _ALONE[1] or storages > _ALONE[2]
