"""Native: the backend's own collectives, with the buffers and shards of this package.

``reduce_scatter`` and ``all_gather`` work in place on the full buffer. The backends want equal
shards; a buffer that does not divide goes through a padded copy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from syncopate.collectives.rescue import finish
from syncopate.collectives.shards import bounds, fill, rows, summable, take_back

# torch 2.13 renamed both, and warns about the older names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum ``tensor`` over the ranks, in place."""
    wider = summable(tensor)
    finish(dist.all_reduce, wider, group=group)
    take_back(tensor, wider)


def reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Leave the sum of rank r's shard in rank r's shard; the rest of ``tensor`` is undefined."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    begin, end = bounds(flat.numel(), rank, world_size)
    wider = summable(flat)
    if flat.numel() % world_size:
        matrix = rows(wider, world_size)
        finish(_reduce_scatter, matrix[rank], matrix.flatten(0, 1), group=group)
        take_back(flat[begin:end], matrix[rank, : end - begin])
    else:
        finish(_reduce_scatter, wider[begin:end], wider, group=group)
        take_back(flat[begin:end], wider[begin:end])


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Fill ``tensor`` with every rank's shard, given that each rank's own is there."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    begin, end = bounds(flat.numel(), rank, world_size)
    # Bytes, because the backends move some dtypes only when they do not know them.
    if flat.numel() % world_size:
        matrix = flat.new_empty((world_size, -(-flat.numel() // world_size)))
        matrix[rank, : end - begin].copy_(flat[begin:end])
        raw = matrix.view(torch.uint8)
        finish(_all_gather, raw.view(-1), raw[rank], group=group)
        fill(flat, matrix)
    else:
        finish(_all_gather, flat.view(torch.uint8), flat[begin:end].view(torch.uint8), group=group)


def broadcast(tensor: torch.Tensor, src: int, group: dist.ProcessGroup) -> None:
    """Overwrite ``tensor`` with that of rank ``src`` of the group."""
    finish(dist.broadcast, tensor.view(-1).view(torch.uint8), group_src=src, group=group)


def reduce(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup) -> None:
    """Sum ``tensor`` over the ranks into that of rank ``dst``; the others' are undefined."""
    wider = summable(tensor)
    finish(dist.reduce, wider, group_dst=dst, group=group)
    take_back(tensor, wider)


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
