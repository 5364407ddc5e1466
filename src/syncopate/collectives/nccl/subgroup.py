"""Subgroup: a backend that joins some ranks of a group, made when it is first needed.

[Note: groups made on the way] ``torch.distributed.new_group`` names a group by how many the process
has had, and asks ranks that are not in it to take part. So ranks whose channels make their groups
in another order would meet in the wrong ones. A subgroup is named by the group it is part of and by
its ranks, in the store that the job has anyway; its ranks alone take part. torch does not know of
it: its maker closes it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from syncopate.collectives import transport
from syncopate.collectives.backend import calls
from syncopate.collectives.backend.calls import Work


class Subgroup:
    """Collectives among some ranks of a group, on tensors of one type of device.

    Every collective is over, or the current stream ordered after it, on return; with ``later``
    what returns is to be waited for, and meanwhile a CUDA collective runs beside that stream.

    Args:
        group: a group of this package's own, all of whose ranks live.
        ranks: ranks of ``group``, this one among them; the subgroup counts them in this order.
        device: such as ``"cuda"``; one that a backend of ``transport.MADE_HERE`` serves.
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
        self.rank = list(ranks).index(group.rank())
        mark = hashlib.sha1(repr((device, *ranks)).encode(), usedforsecurity=False).hexdigest()
        everyone = transport.job_ranks(group)
        seat = transport.Seat(
            transport.group_store(group, f"syncopate/part/{mark}", timeout_s),
            mark,
            self.rank,
            [everyone[rank] for rank in ranks],
            timeout_s,
        )
        backend = transport.backends(group)[device]
        self._backend = transport.make_backend(backend, seat)
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
        work = calls.reduce_scatter(self._backend, share, whole, later=later)
        return work if later else _ended(work)

    def all_gather(
        self, whole: torch.Tensor, share: torch.Tensor, *, later: bool = False
    ) -> Work | None:
        """Fill ``whole`` with every rank's ``share``, all of a length and of any dtype.

        Works in place too, when ``share`` is this rank's part of ``whole``.
        """
        work = calls.all_gather(self._backend, whole, share, later=later)
        return work if later else _ended(work)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by its sum over the ranks."""
        _ended(calls.all_reduce(self._backend, tensor))

    def reduce(self, tensor: torch.Tensor, root: int) -> None:
        """Replace the ``tensor`` of ``root`` by the sum; the others' are undefined."""
        _ended(calls.reduce(self._backend, tensor, root))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite ``tensor`` with that of ``root``."""
        _ended(calls.broadcast(self._backend, tensor, root))

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


def _ended(work: Work | None) -> Work | None:
    """Wait for ``work``; nothing is left to wait for."""
    if work is not None:
        work.wait()
    return None
