"""Native: the backend's own collectives, with the buffers and shards of this package.

``reduce_scatter`` and ``all_gather`` work in place on the full buffer, whose shards are balanced
and so may differ by one element. The backends want equal shards; then an unequal buffer goes
through a padded copy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from syncopate.schedules.base import chunk_offsets

_WIDER = {torch.int16: torch.int32}
"""Dtypes that Gloo and NCCL cannot add, and one that holds their sums modulo the narrow range."""

# torch 2.13 renamed both, and warns about the older names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum ``tensor`` over the ranks, in place."""
    wider = _widened(tensor)
    dist.all_reduce(wider, group=group)
    if wider is not tensor:
        tensor.copy_(wider)


def reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Leave the sum of rank r's shard in rank r's shard; the rest of ``tensor`` is undefined."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    begin, end = _shard(tensor.numel(), rank, world_size)
    source = _widened(_padded(tensor.view(-1), world_size))
    total = torch.empty(source.numel() // world_size, dtype=source.dtype, device=source.device)
    _reduce_scatter(total, source, group=group)
    tensor.view(-1)[begin:end].copy_(total[: end - begin])


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Fill ``tensor`` with every rank's shard, given that each rank's own is there."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    begin, end = _shard(flat.numel(), rank, world_size)
    share = -(-flat.numel() // world_size)
    even = flat.numel() % world_size == 0
    mine = torch.zeros(share, dtype=tensor.dtype, device=tensor.device)
    mine[: end - begin].copy_(flat[begin:end])
    full = flat if even else torch.empty(share * world_size, dtype=flat.dtype, device=flat.device)
    # Bytes, because Gloo moves some dtypes only when it does not know them.
    _all_gather(full.view(torch.uint8), mine.view(torch.uint8), group=group)
    if not even:
        for peer in range(world_size):
            begin, end = _shard(flat.numel(), peer, world_size)
            flat[begin:end].copy_(full[peer * share : peer * share + end - begin])


def broadcast(tensor: torch.Tensor, src: int, group: dist.ProcessGroup) -> None:
    """Overwrite ``tensor`` with that of rank ``src`` of the group."""
    dist.broadcast(tensor.view(-1).view(torch.uint8), group_src=src, group=group)


def reduce(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup) -> None:
    """Sum ``tensor`` over the ranks into that of rank ``dst``; the others' are undefined."""
    wider = _widened(tensor)
    dist.reduce(wider, group_dst=dst, group=group)
    if wider is not tensor:
        tensor.copy_(wider)


NATIVE: dict[str, Callable[[torch.Tensor, dist.ProcessGroup], None]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
}
"""The backend's own version of each collective without a root that also has schedules."""

ROOTED: dict[str, Callable[[torch.Tensor, int, dist.ProcessGroup], None]] = {
    "broadcast": broadcast,
    "reduce": reduce,
}
"""The same for the collectives that have a root, which they take second."""


def _shard(numel: int, rank: int, world_size: int) -> tuple[int, int]:
    offsets = chunk_offsets(numel, world_size)
    return offsets[rank], offsets[rank + 1]


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    wider = _WIDER.get(tensor.dtype)
    return tensor if wider is None else tensor.to(wider)


def _padded(flat: torch.Tensor, world_size: int) -> torch.Tensor:
    """Return ``flat`` itself when it cuts into equal shards, else a copy with padded shards."""
    if flat.numel() % world_size == 0:
        return flat
    share = -(-flat.numel() // world_size)
    padded = torch.zeros(share * world_size, dtype=flat.dtype, device=flat.device)
    for peer in range(world_size):
        begin, end = _shard(flat.numel(), peer, world_size)
        padded[peer * share : peer * share + end - begin].copy_(flat[begin:end])
    return padded
