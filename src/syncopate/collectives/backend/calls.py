"""Calls: the collectives of a torch process group or backend, called on the object itself.

``torch.distributed``'s functions take only groups that torch has registered; a group of some ranks
of the job, and a subgroup of those, are not (see :mod:`syncopate.collectives.transport`). The
objects have the same methods, whether they are process groups or backends, and that is what those
functions call. Calls other than those for ``later`` NCCL runs on the current stream itself, and the
order of that stream is all there is to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_c10d: Any = distributed_c10d


def all_reduce(group: Any, tensor: torch.Tensor, *, later: bool = False) -> dist.Work | None:
    """Start to replace ``tensor`` by its sum over the ranks."""
    return _started(later, dist.AllreduceOptions(), group.allreduce, [tensor])


def reduce(group: Any, tensor: torch.Tensor, root: int) -> dist.Work | None:
    """Start to replace the ``tensor`` of ``root`` by the sum; the others' are undefined."""
    options = dist.ReduceOptions()
    options.rootRank = root
    return _started(False, options, group.reduce, [tensor])


def broadcast(group: Any, tensor: torch.Tensor, root: int) -> dist.Work | None:
    """Start to overwrite ``tensor`` with that of ``root``."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    return _started(False, options, group.broadcast, [tensor])


def reduce_scatter(
    group: Any, share: torch.Tensor, whole: torch.Tensor, *, later: bool = False
) -> dist.Work | None:
    """Start to sum ``whole`` over the ranks and leave this rank's equal part of it in ``share``.

    Works in place too, when ``share`` is that part of ``whole``.
    """
    return _started(later, dist.ReduceScatterOptions(), group._reduce_scatter_base, share, whole)


def all_gather(
    group: Any, whole: torch.Tensor, share: torch.Tensor, *, later: bool = False
) -> dist.Work | None:
    """Start to fill ``whole`` with every rank's ``share``, all of a length and of any dtype.

    Works in place too, when ``share`` is this rank's part of ``whole``.
    """
    parts = whole.view(torch.uint8), share.view(torch.uint8)
    return _started(later, _c10d.AllgatherOptions(), group._allgather_base, *parts)


def all_to_all(
    group: Any,
    incoming: torch.Tensor,
    outgoing: torch.Tensor,
    sizes: tuple[Sequence[int], Sequence[int]],
) -> dist.Work | None:
    """Start to send each rank its part of ``outgoing``, and to fill ``incoming`` with theirs.

    Args:
        group: the ranks.
        incoming: one-dimensional, bytes.
        outgoing: one-dimensional, bytes.
        sizes: how many come from each rank, and how many go to each.
    """
    options = dist.AllToAllOptions()
    return _started(
        False, options, group.alltoall_base, incoming, outgoing, *(list(each) for each in sizes)
    )


def barrier(group: Any, device: torch.device) -> dist.Work | None:
    """Start to wait for every rank."""
    options = dist.BarrierOptions()
    options.device = device
    if device.index is not None:
        options.device_ids = [device.index]
    return _started(False, options, group.barrier)


def end(work: dist.Work | None) -> None:
    """Wait for a collective; nothing is left to wait for where the stream orders it."""
    if work is not None:
        work.wait()


class Message(NamedTuple):
    """One message of a batch.

    Attributes:
        tensor: what is sent, or where it lands.
        peer: a rank of the group.
        sends: whether it leaves; otherwise it comes.
    """

    tensor: torch.Tensor
    peer: int
    sends: bool


def batch(group: dist.ProcessGroup, messages: Sequence[Message]) -> list[dist.Work]:
    """Start messages between ranks together, so that no side of one blocks the other.

    NCCL makes one call of all of them, and one work.
    """
    if not messages:
        return []
    device = messages[0].tensor.device
    together = group._get_backend(device).supports_coalescing
    if together:
        group._start_coalescing(device)
    works: list[dist.Work] = [
        (group.send if message.sends else group.recv)([message.tensor], message.peer, 0)
        for message in messages
    ]
    return [group._end_coalescing(device)] if together else works


def _started(later: bool, options: Any, start: Any, *arguments: Any) -> dist.Work | None:
    options.asyncOp = later
    work: dist.Work | None = start(*arguments, options)
    return work
