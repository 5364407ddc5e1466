"""Native: the backend's own collectives, with the buffers and shards of this package.

``reduce_scatter`` and ``all_gather`` work in place on the full buffer. The backends want equal
shards; where they differ, each goes through a copy padded to the longest one. Where one rank has
all, nothing is padded: these are a reduction to it and a broadcast from it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from syncopate.collectives.backend import calls
from syncopate.collectives.backend.waits import GlooWaits
from syncopate.collectives.shards import (
    Bounds,
    bounds_of,
    empty_rows,
    fill,
    lone_owner,
    rows,
    summable,
    take_back,
)
from syncopate.schedules.conditions import conditions


class Native:
    """The collectives of one group's backends; one at a time, but for :meth:`interrupt`.

    Each is over on return, or ordered on the current CUDA stream. On CPU tensors each raises
    ``RuntimeError`` within a few seconds of :meth:`interrupt`.

    Args:
        group: the ranks.

    Attributes:
        group: as given.
        rank: this rank within the group.
        world_size: number of ranks.
        waits: for the group's CPU tensors.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.waits = GlooWaits(group)

    def interrupt(self) -> None:
        """Note that the group's connections have been closed: nothing can still end well."""
        self.waits.interrupt()

    def run(
        self, collective: str, tensor: torch.Tensor, root: int = 0, bounds: Bounds | None = None
    ) -> None:
        """Carry out the backend's own version of a collective that also has schedules.

        Args:
            collective: such as ``"all_reduce"``.
            tensor: on what, in place.
            root: of a collective that has one.
            bounds: where shards begin; None for equal ones.
        """
        needs = conditions(collective)
        how = ((root,) if needs.rooted else ()) + ((bounds,) if needs.sharded else ())
        getattr(self, collective)(tensor, *how)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum ``tensor`` over the ranks, in place."""
        wider = summable(tensor)
        self.wait(calls.all_reduce(self.group, wider), wider)
        take_back(tensor, wider)

    def reduce_scatter(self, tensor: torch.Tensor, bounds: Bounds | None = None) -> None:
        """Leave the sum of rank r's shard at rank r; the rest of ``tensor`` is undefined."""
        if bounds is not None and (owner := lone_owner(bounds)) is not None:
            self.reduce(tensor, owner)
            return
        flat = tensor.view(-1)
        cuts = bounds_of(flat, self.world_size, bounds)
        begin, end = cuts[self.rank : self.rank + 2]
        wider = summable(flat)
        if bounds is not None or flat.numel() % self.world_size:
            matrix = rows(wider, cuts)
            share, whole = matrix[self.rank], matrix.flatten(0, 1)
        else:
            share, whole = wider[begin:end], wider
        self.wait(calls.reduce_scatter(self.group, share, whole), whole)
        take_back(flat[begin:end], share[: end - begin])

    def all_gather(self, tensor: torch.Tensor, bounds: Bounds | None = None) -> None:
        """Fill ``tensor`` with every rank's shard, given that each rank's own is there."""
        if bounds is not None and (owner := lone_owner(bounds)) is not None:
            self.broadcast(tensor, owner)
            return
        flat = tensor.view(-1)
        cuts = bounds_of(flat, self.world_size, bounds)
        begin, end = cuts[self.rank : self.rank + 2]
        if bounds is None and flat.numel() % self.world_size == 0:
            self.wait(calls.all_gather(self.group, flat, flat[begin:end]), flat)
            return
        matrix = empty_rows(flat, cuts)
        matrix[self.rank, : end - begin].copy_(flat[begin:end])
        whole = matrix.view(-1)
        self.wait(calls.all_gather(self.group, whole, matrix[self.rank]), whole)
        fill(flat, matrix, cuts)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Overwrite ``tensor`` with that of rank ``src`` of the group."""
        # Bytes, because the backends move some dtypes only when they do not know them.
        raw = tensor.view(-1).view(torch.uint8)
        self.wait(calls.broadcast(self.group, raw, src), raw)

    def reduce(self, tensor: torch.Tensor, dst: int) -> None:
        """Sum ``tensor`` over the ranks into that of rank ``dst``; the others' are undefined."""
        wider = summable(tensor)
        self.wait(calls.reduce(self.group, wider, dst), wider)
        take_back(tensor, wider)

    def barrier(self, device: torch.device) -> None:
        """Return when every rank has come here.

        Args:
            device: where the group's tensors live.
        """
        self.wait(calls.barrier(self.group, device), torch.empty(0, device=device))

    def wait(self, work: dist.Work | None, tensor: torch.Tensor) -> None:
        """Wait for ``work`` of the group on ``tensor``.

        Raises:
            RuntimeError: it failed, or the group was interrupted from another thread.
        """
        if work is None:
            return
        if tensor.device.type == "cpu":
            self.waits.wait(work)
        else:
            work.wait()
