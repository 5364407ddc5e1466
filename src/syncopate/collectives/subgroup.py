"""Subgroup: a backend that joins some ranks of a group, made when it is first needed.

[Note: groups made on the way] ``torch.distributed.new_group`` names a group by how many the process
has had, and asks ranks that are not in it to take part. So ranks whose channels make their groups
in another order would meet in the wrong ones. A subgroup is named by the group it is part of and by
its ranks, in the store that the job has anyway; its ranks alone take part. torch does not know of
it: whoever makes it closes it.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from syncopate.collectives import transport

_c10d: Any = distributed_c10d

BACKENDS = ("gloo", "nccl")
"""Backends that can join some ranks of a group."""


class Work(Protocol):
    """A collective on its way."""

    def wait(self) -> Any:
        """Return when it is over; on CUDA order the current stream after it instead."""


class Subgroup:
    """Collectives among some ranks of a group, on tensors of one type of device.

    Every collective is over, or the current stream ordered after it, on return; with ``later``
    what returns is to be waited for, and meanwhile a CUDA collective runs beside that stream.

    Args:
        group: a group of this package's own, all of whose ranks live.
        ranks: ranks of ``group``, this one among them; the subgroup counts them in this order.
        device: such as ``"cuda"``; one that a backend of :data:`BACKENDS` serves.
        timeout_s: how long its collectives may take.

    Raises:
        RuntimeError: Gloo did not find the other ranks in time. NCCL looks for them at the first
            collective.

    Attributes:
        size: number of ranks.
        rank: this one's place among them.
    """

    def __init__(
        self, group: dist.ProcessGroup, ranks: Sequence[int], device: str, timeout_s: float
    ) -> None:
        self.size = len(ranks)
        self.rank = list(ranks).index(dist.get_rank(group))
        mark = hashlib.sha1(repr((device, *ranks)).encode(), usedforsecurity=False).hexdigest()
        store: Any = transport.group_store(group, f"syncopate/part/{mark}", timeout_s)
        timeout = datetime.timedelta(seconds=timeout_s)
        backend = transport.backends(group)[device]
        if backend == "gloo":
            made: Any = dist.ProcessGroupGloo(store, self.rank, self.size, timeout)
        else:
            nccl = _c10d.ProcessGroupNCCL  # not in every build of torch
            options = nccl.Options()
            options._timeout = timeout
            everyone = dist.get_process_group_ranks(group)
            options.global_ranks_in_group = [everyone[rank] for rank in ranks]
            options.group_name = mark
            made = nccl(store, self.rank, self.size, options)
        self._backend = made
        self._gloo = backend == "gloo"

    def introduce(self, device: torch.device) -> None:
        """Connect the ranks, which NCCL does at the first collective and each of them waits for."""
        if not self._gloo:
            self.all_reduce(torch.zeros(1, device=device))

    def reduce_scatter(
        self, share: torch.Tensor, whole: torch.Tensor, *, later: bool = False
    ) -> Work | None:
        """Sum ``whole`` over the ranks and leave this rank's equal part of it in ``share``.

        Works in place too, when ``share`` is that part of ``whole``.
        """
        options = dist.ReduceScatterOptions()
        return self._started(later, options, self._backend._reduce_scatter_base, share, whole)

    def all_gather(
        self, whole: torch.Tensor, share: torch.Tensor, *, later: bool = False
    ) -> Work | None:
        """Fill ``whole`` with every rank's ``share``, all of a length and of any dtype.

        Works in place too, when ``share`` is this rank's part of ``whole``.
        """
        options = _c10d.AllgatherOptions()
        parts = whole.view(torch.uint8), share.view(torch.uint8)
        return self._started(later, options, self._backend._allgather_base, *parts)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by its sum over the ranks."""
        self._started(False, dist.AllreduceOptions(), self._backend.allreduce, [tensor])

    def reduce(self, tensor: torch.Tensor, root: int) -> None:
        """Replace the ``tensor`` of ``root`` by the sum; the others' are undefined."""
        options = dist.ReduceOptions()
        options.rootRank = root
        self._started(False, options, self._backend.reduce, [tensor])

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite ``tensor`` with that of ``root``."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._started(False, options, self._backend.broadcast, [tensor])

    def interrupt(self) -> None:
        """Make what is under way here, and on the other ranks, fail now instead of hang."""
        if self._gloo:
            peers = [rank for rank in range(self.size) if rank != self.rank]
            transport.close_connections(self._backend, peers)
            return
        with contextlib.suppress(Exception):  # it cannot be more broken than it is
            self._backend.abort()

    def close(self) -> None:
        """Finish what was queued and give the connections up."""
        if self._gloo:
            self.interrupt()
            return
        with contextlib.suppress(Exception):  # a broken one has nothing left to lose
            self._backend.shutdown()

    @staticmethod
    def _started(later: bool, options: Any, start: Any, *arguments: Any) -> Work | None:
        # What is not for later, NCCL runs on the current stream itself.
        options.asyncOp = later
        work = start(*arguments, options)
        if later or work is None:
            return cast("Work | None", work)
        work.wait()
        return None
