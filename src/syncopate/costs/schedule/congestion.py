"""Congestion: the time the busiest shared link of a schedule needs.

The ranks of a host share the host's link, and the hosts of a rack the rack's:
``bandwidth_bytes_per_s`` of a level is what one *unit*, all ranks below it together, sends across.
The price of a schedule (``price.py``) shares a link among the messages of one round. Messages of
different rounds can meet on it too, where ranks run ahead of each other; that the longest path does
not see. But in any order of messages, a unit's link is busy for at least its bytes over its
bandwidth, so a schedule takes at least as long as the busiest link of each level needs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from syncopate.artifacts.cluster import Cluster, LinearFit
from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.costs.schedule.links import Machines
from syncopate.schedules.base import Schedule


def congestion_lines(schedule: Schedule, cluster: Cluster) -> tuple[LinearFit, ...]:
    """Return one line through the origin per shared level: seconds its busiest link needs.

    All traffic that leaves a unit passes its link, wherever it goes.

    Returns:
        Lines with no start-up; none on a cluster of one level, whose ranks share nothing.
    """
    if len(cluster.levels) == 1 or not len(schedule.table):
        return ()
    busy = _busy(schedule, Machines.of(cluster))
    # Level 0 joins single ranks, whose ports the longest path already counts.
    return tuple(
        LinearFit(a_s=0.0, b_s_per_byte=s_per_byte)
        for level, s_per_byte in zip(cluster.levels[1:], busy[1:], strict=True)
        if level.joins
    )


def busiest_s_per_byte(schedule: Schedule, cluster: Cluster) -> float:
    """Return how long the busiest link of any level, single ranks' included, takes for a byte.

    No execution of the schedule is faster than this times the buffer, in any order that messages
    leave: they all have to pass that link.
    """
    if not len(schedule.table):
        return 0.0
    return max(_busy(schedule, Machines.of(cluster)))


@lru_cache(maxsize=256)
def _busy(schedule: Schedule, machines: Machines) -> tuple[float, ...]:
    """Return per level the seconds that its busiest link needs for a byte of the buffer."""
    table = schedule.table
    src, dst = table.src.astype(np.int64), table.dst.astype(np.int64)
    share = (table.stop - table.start) / schedule.chunks
    apart = machines.apart(src, dst)
    found = []
    for index, (level, unit) in enumerate(zip(machines.levels, machines.units(), strict=True)):
        leaving = 0.0
        if level.joins:
            leaving = _busiest(unit[src], unit[dst], share, apart >= index)
        found.append(leaving * level.byte_time_s)
    return tuple(found)


def _busiest(src: IntArray, dst: IntArray, share: FloatArray, crossing: np.ndarray) -> float:
    """Return the most any unit sends or receives, as a share of the buffer."""
    if not crossing.any():
        return 0.0
    sent = np.bincount(src[crossing], share[crossing])
    received = np.bincount(dst[crossing], share[crossing])
    return float(max(sent.max(), received.max()))
