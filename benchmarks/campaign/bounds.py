"""Bounds: the least bytes that links must carry, whatever the algorithm, and what schedules carry.

Of every collective each unit must send or receive at least a certain share of the n bytes:
``2 (u-1)/u n`` of an all-reduce (Patarasuk and Yuan 2009), ``(u-1)/u n`` of a reduce-scatter or an
all-gather, n of a broadcast or a reduce, u units in all. These are the factors by which nccl-tests
makes a bus bandwidth. At every level of the network the units are what its links join: hosts at
their links, racks at their uplinks. Two racks all-reduce no less than ``2 (2-1)/2 n = n`` bytes
over each uplink, eight hosts ``2 (8-1)/8 n = 1.75 n`` over each link. The line-rate bound is the
slowest of them at the rate that TCP's payload gets, 1448 of the 1514 bytes in a frame; for
all-reduce it is :func:`syncopate.costs.model.bound.wire_s` of the lab's cluster.
"""

from __future__ import annotations

from collections import Counter

from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.lab import Topology
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.schedules.base import Schedule, chunk_offsets


def least_bytes(collective: str, units: int, nbytes: float) -> float:
    """Return the bytes that some unit must send or receive, of ``units``."""
    return BUS_FACTORS[collective](units) * nbytes if units > 1 else 0.0


def bound_s(
    topology: Topology, collective: str, nbytes: float, *, hosts: int | None = None
) -> float:
    """Return the line-rate bound in seconds.

    Args:
        topology: the emulated cluster; all its links of a kind are alike.
        collective: such as ``"broadcast"``.
        nbytes: the total buffer.
        hosts: how many hosts take part; all when left out. Racks count when all do.
    """
    rate = min(topology.rate_of(host) for host in range(topology.hosts)) * TCP_GOODPUT
    seconds = least_bytes(collective, hosts or topology.hosts, nbytes) / rate
    if topology.racks > 1 and hosts in (None, topology.hosts):
        uplink = min(topology.uplink_of(rack) for rack in range(topology.racks)) * TCP_GOODPUT
        seconds = max(seconds, least_bytes(collective, topology.racks, nbytes) / uplink)
    return seconds


def sent_bytes(schedule: Schedule, topology: Topology, numel: int, itemsize: int) -> dict[str, int]:
    """Return the payload that each host's link, and each rack's uplink, sends by a schedule.

    Args:
        schedule: of as many ranks as the topology has, or fewer.
        topology: which rank sits where.
        numel: elements of the buffer.
        itemsize: bytes per element.
    """
    offsets = chunk_offsets(numel, schedule.chunks)
    sent: Counter[str] = Counter({f"host{host}": 0 for host in range(topology.hosts)})
    if topology.racks > 1:
        sent.update({f"rack{rack}": 0 for rack in range(topology.racks)})
    for transfer in schedule.transfers:
        here, there = topology.host_of(transfer.src), topology.host_of(transfer.dst)
        nbytes = (offsets[transfer.stop] - offsets[transfer.start]) * itemsize
        if here != there:
            sent[f"host{here}"] += nbytes
        if topology.rack_of(here) != topology.rack_of(there):
            sent[f"rack{topology.rack_of(here)}"] += nbytes
    return dict(sent)
