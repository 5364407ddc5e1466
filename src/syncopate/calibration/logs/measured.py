"""Measured: what a log tells, the same for all tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One row of a collective's table.

    Attributes:
        nbytes: message size, as nccl-tests counts it (the total buffer).
        seconds: durations, out of place and in place, those that the row has; at least one.
        algorithm: what the library chose, such as ``"tree"``; empty where the log does not tell.
    """

    nbytes: int
    seconds: tuple[float, ...]
    algorithm: str = ""


@dataclass(frozen=True)
class CollectiveLog:
    """One table of nccl-tests.

    Attributes:
        path: of the file.
        collective: such as ``"all_reduce"``; ``"sendrecv"`` for messages around a ring.
        ranks: how many took part; 0 where neither ranks nor rates tell.
        hosts: host name of each rank; empty where not every rank is listed.
        host_count: how many hosts; 0 where the log does not tell.
        samples: by their order in the log.
        forced: the only algorithm that the environment allowed; empty where the library chose.
        carrier: ``"tcp"`` or ``"rdma"``; empty where the log does not tell.
        device: name of the GPUs; may be empty.
        version: of the tool and the library; may be empty.
        remarks: what is wrong with the log, a sentence each.
    """

    path: str
    collective: str
    ranks: int
    hosts: tuple[str, ...]
    host_count: int
    samples: tuple[Sample, ...]
    forced: str = ""
    carrier: str = ""
    device: str = ""
    version: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each host; 0 where that is not known, or differs."""
        if self.hosts:
            counts = {self.hosts.count(host) for host in self.hosts}
            return counts.pop() if len(counts) == 1 else 0
        if not self.host_count or self.ranks % self.host_count:
            return 0
        return self.ranks // self.host_count


@dataclass(frozen=True)
class LinkLog:
    """A tool's measurement between two hosts.

    Attributes:
        path: of the file.
        tool: such as ``"ib_write_bw"``.
        carrier: ``"tcp"`` or ``"rdma"``.
        rate_bytes_per_s: payload in one direction; None where it was not measured.
        one_way: sizes in bytes and seconds of single messages; empty where not measured.
        remarks: what is wrong with the log, a sentence each.
    """

    path: str
    tool: str
    carrier: str
    rate_bytes_per_s: float | None = None
    one_way: tuple[tuple[int, float], ...] = ()
    remarks: tuple[str, ...] = ()


Log = CollectiveLog | LinkLog


def sizes_of(samples: Sequence[Sample]) -> dict[int, tuple[float, ...]]:
    """Return the durations of every size, ascending."""
    found: dict[int, tuple[float, ...]] = {}
    for sample in sorted(samples, key=lambda sample: sample.nbytes):
        found[sample.nbytes] = found.get(sample.nbytes, ()) + sample.seconds
    return found
