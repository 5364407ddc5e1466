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


class Subgroup:
    """Some ranks of a group, whose collectives are those of :mod:`.calls` on the backend.

    Args:
        group: a group of this package's own, all of whose ranks live.
        ranks: ranks of ``group``, this one among them; the subgroup counts them in this order.
        device: the type of its tensors' device, such as ``"cuda"``; one that a backend of
            ``transport.MADE_HERE`` serves.
        timeout_s: how long its collectives may take.

    Raises:
        RuntimeError: Gloo did not find the other ranks in time. NCCL looks for them at the first
            collective.

    Attributes:
        backend: torch's, which joins them.
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
        kind = transport.backends(group)[device]
        self.backend = transport.make_backend(kind, seat)
        self._gloo = kind == "gloo"

    def introduce(self, device: torch.device) -> None:
        """Connect the ranks, which NCCL does at the first collective and each of them waits for."""
        if not self._gloo:
            calls.end(calls.all_reduce(self.backend, torch.zeros(1, device=device)))

    def interrupt(self) -> None:
        """Make what is under way here, and on the other ranks, fail now instead of hang."""
        if self._gloo:
            peers = [rank for rank in range(self.size) if rank != self.rank]
            transport.close_connections(self.backend, peers)
            return
        with contextlib.suppress(Exception):  # it cannot be more broken than it is
            self.backend.abort()

    def close(self) -> None:
        """Finish what was queued and give the connections up."""
        if self._gloo:
            self.interrupt()
            return
        with contextlib.suppress(Exception):  # a broken one has nothing left to lose
            self.backend.shutdown()
