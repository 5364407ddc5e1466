"""Objects: Python objects from rank to rank, pickled, in collectives that can be given up.

``torch.distributed`` has the same, but its waits cannot be ended: see [Note: what Gloo forgets] in
:mod:`syncopate.collectives.rescue`.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives.rescue import finish


def broadcast_object(obj: Any, src: int, group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return rank ``src``'s object on every rank of ``group``.

    Args:
        obj: the object; of no consequence on other ranks.
        src: a rank of ``group``.
        group: the ranks.
        device: where the group's tensors live.

    Raises:
        RuntimeError: it failed, or the group was broken from another thread.
    """
    here = dist.get_rank(group) == src
    payload = _pickled(obj, device) if here else torch.empty(0, dtype=torch.uint8, device=device)
    length = torch.tensor([payload.numel()], device=device)
    finish(dist.broadcast, length, group_src=src, group=group)
    if not here:
        payload = payload.new_empty(int(length))
    finish(dist.broadcast, payload, group_src=src, group=group)
    return obj if here else _unpickled(payload)


def all_gather_object(obj: Any, group: dist.ProcessGroup, device: torch.device) -> list[Any]:
    """Return the objects of all ranks of ``group``, in rank order; otherwise as above."""
    world_size = dist.get_world_size(group)
    payload = _pickled(obj, device)
    length = torch.tensor([payload.numel()], device=device)
    lengths = [torch.empty_like(length) for _ in range(world_size)]
    finish(dist.all_gather, lengths, length, group=group)
    padded = payload.new_zeros(int(max(lengths)))
    padded[: payload.numel()] = payload
    rows = [torch.empty_like(padded) for _ in range(world_size)]
    finish(dist.all_gather, rows, padded, group=group)
    return [_unpickled(row[: int(count)]) for row, count in zip(rows, lengths, strict=True)]


def _pickled(obj: Any, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8).to(device)


def _unpickled(payload: torch.Tensor) -> Any:
    return pickle.loads(payload.cpu().numpy().tobytes())
