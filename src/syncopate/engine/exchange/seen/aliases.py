"""Aliases: whether something else is on the memory of a tensor, by counting who holds it.

A view, a ``state_dict`` that was taken once, an array of numpy: who reads one of them reads memory,
and reading memory asks nobody. But each of them holds the storage that it is on, and torch counts
who does. What autograd keeps for a backward is gone when the backward is over.
"""

from __future__ import annotations

import torch


def holders(storage: torch.UntypedStorage) -> int:
    """Return how many hold ``storage``: each tensor on it counts, and ``storage`` itself."""
    count: int = torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]
    return count
