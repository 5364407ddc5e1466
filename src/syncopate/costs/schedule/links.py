"""Links: which links of the network a message passes, and how it shares them.

The network is a tree. Every unit (a rank, a host, a rack) hangs on one link up and one link down,
which carry all that leaves or enters it: at level i the units are the groups of ranks, equal or
not, that the levels below make up, and the link's rate is the level's bandwidth. So all ranks of a
host share the host's link, and all hosts of a rack the rack's. A message passes the up-links of all
units that it leaves and the down-links of all that it enters.

Messages that are on their way at the same time share a link fairly, each at the same rate until it
is through: one of m bytes beside others of m_j is done when sum_j min(m_j, m) bytes are. A message
takes as long as on the link that takes it longest. Levels of one unit join nothing and have no
links.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, unit_counts
from syncopate.costs.model.pieces import FloatArray, IntArray


class Machines(NamedTuple):
    """What the price of a schedule depends on, of a cluster; prices are remembered by it.

    Attributes:
        levels: innermost first.
        placement: the rank at each position, or empty.
        reduction_s_per_byte: γ.
    """

    levels: tuple[Level, ...]
    placement: tuple[int, ...] = ()
    reduction_s_per_byte: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster) -> Machines:
        """Return those of a cluster, with all its levels."""
        return cls(cluster.levels, cluster.placement, cluster.reduction_s_per_byte)

    def apart(self, a: IntArray, b: IntArray) -> IntArray:
        """Return the index of the level between ranks ``a`` and ``b``, elementwise.

        The array form of :meth:`syncopate.artifacts.cluster.Cluster.level_between`: two ranks are
        apart at every level whose unit they do not share, and the message crosses the outermost.
        """
        apart = [of_rank[a] != of_rank[b] for of_rank in self.units()[1:]]
        return np.asarray(np.count_nonzero(apart, axis=0)) if apart else np.zeros(len(a), np.int64)

    def units(self) -> list[IntArray]:
        """Return for each level which of the units that it joins a rank is in, shape (ranks,) each.

        The innermost joins ranks: there it is where the rank sits.
        """
        ranks = unit_counts(self.levels)[0]
        unit = np.argsort(self.placement) if self.placement else np.arange(ranks)
        found = []
        for level in self.levels:
            found.append(unit)
            if isinstance(level.size, int):
                unit = unit // level.size
            else:
                unit = np.searchsorted(np.cumsum(level.size), unit, side="right")
        return found


def wire_times(
    machines: Machines,
    ends: tuple[IntArray, IntArray],
    sizes: IntArray,
    turns: IntArray,
    *,
    one_each: bool,
) -> FloatArray:
    """Return how long each message is on the wire, start-up not counted.

    Args:
        machines: that send them.
        ends: sending and receiving ranks, shape (m,) each.
        sizes: of the messages in any unit, shape (m,); whole numbers, so that sums are exact.
        turns: messages with the same number are on their way at the same time, shape (m,).
        one_each: whether no rank sends or receives two messages at a time, so that none shares a
            rank's own link; saves looking.

    Returns:
        Seconds for a unit of one byte, shape (m,).
    """
    apart = machines.apart(*ends)
    seconds = np.zeros(len(sizes))
    counts = unit_counts(machines.levels)
    for index, (level, unit) in enumerate(zip(machines.levels, machines.units(), strict=True)):
        if level.joins:
            passing = np.flatnonzero(apart >= index)
            for end in ends:
                load = sizes[passing]
                if counts[index] < counts[0] or not one_each:
                    link = turns[passing] * counts[index] + unit[end[passing]]
                    load = _shared(link, load)
                seconds[passing] = np.maximum(seconds[passing], load * level.byte_time_s)
    return seconds


def _shared(link: IntArray, sizes: IntArray) -> IntArray:
    """Return what a link has carried when each message is through: sum_j min(size_j, size)."""
    if len(link) == 0 or len(np.unique(link)) == len(link):
        return sizes
    order = np.lexsort((sizes, link))
    size = sizes[order]
    begins = np.flatnonzero(np.diff(link[order], prepend=-1))
    counts = np.diff(np.append(begins, len(link)))
    before = np.cumsum(size) - size
    smaller = before - np.repeat(before[begins], counts)
    left = np.repeat(begins + counts, counts) - np.arange(len(link))
    carried = np.empty_like(sizes)
    carried[order] = smaller + size * left
    return carried
