"""Replayed: what the messages of a recorded run cost on a cluster.

A recording knows the collective, the algorithm, the bytes and the ranks of a message, and not its
options: an algorithm is priced with those that suit the cluster. The backend's own is priced by its
measured curve, and as a ring where there is none. Ranks that are not all are a cluster of their
own: the units that they are in at each level.

A message to servers has W workers send n bytes each, of which each of S servers gets its share; see
:mod:`syncopate.costs.model.served`. Alone it takes ``a + n max(u b, b' / S)``, and with all others
at once ``a + n max(u b, W / S b')``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, size_of
from syncopate.artifacts.timelines.network import Message, Price
from syncopate.costs.model.bound import served_s_per_byte
from syncopate.costs.model.collective import collective_costs, schedule_cost
from syncopate.costs.model.functions import CostFunction
from syncopate.costs.model.unmeasured import for_native
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import NATIVE
from syncopate.schedules.registry import algorithms, collectives, has

_TO_SERVERS, _FROM_SERVERS = "send", "receive"
_TWO_RANKS = ("send", "recv", "receive")
_ONE_BY_ONE = ("all_to_all", "gather", "scatter")
"""Collectives without schedules: each rank has a message for, or of, each other."""


@dataclass(frozen=True)
class ClusterNetwork:
    """A cluster, as a network on which a recorded run is played.

    Attributes:
        cluster: the machines; as many ranks as were recorded.
        servers: how many parameter servers there are; 0: none, and ranks send to each other.

    Raises:
        InvalidValueError: fewer than no servers.

    Example:
        >>> from syncopate.artifacts.cluster import Cluster
        >>> there = ClusterNetwork(Cluster.preset("25gbe", 8))
        >>> round(there.price(Message("all_reduce", "ring", 1 << 20)).alone_s * 1e3, 3)
        1.135
    """

    cluster: Cluster
    servers: int = 0

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise InvalidValueError("servers", self.servers, "an integer >= 0")

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.cluster.name

    @property
    def world_size(self) -> int:
        """As many ranks as the cluster has."""
        return self.cluster.world_size

    @property
    def pool(self) -> float:
        """The rate of all servers' links together, over that of one worker's link."""
        if not self.servers:
            return 1.0
        outermost = self.cluster.levels[-1]
        return self.servers * self._worker_s_per_byte / outermost.byte_time_s

    @cached_property
    def _worker_s_per_byte(self) -> float:
        """Return what a byte of each worker takes to the servers on the way that workers share."""
        return served_s_per_byte(self.cluster, 1 << 40)

    def price(self, message: Message) -> Price:
        """Return what a message takes.

        Raises:
            UnknownNameError: a collective that has no price.
            InvalidValueError: it carries fewer than 0 bytes, or ranks that there are not.
        """
        if message.nbytes < 0:
            raise InvalidValueError("bytes of a message", message.nbytes, "an integer >= 0")
        if self.servers and message.collective in (_TO_SERVERS, _FROM_SERVERS):
            return self._served(message.nbytes)
        cluster = part_of(self.cluster, message.ranks)
        if cluster.world_size == 1 or not message.nbytes:
            return Price(0.0, 0.0, 0.0)
        if message.collective in (*_TWO_RANKS, *_ONE_BY_ONE):
            return _by_peers(cluster, message)
        cost = _cost(cluster, message)
        lasts_s = float(cost(message.nbytes))
        startup_s = min(cost.startup_s, lasts_s)
        return Price(startup_s, lasts_s - startup_s, lasts_s - startup_s)

    def _served(self, nbytes: int) -> Price:
        one_s = self.cluster.levels[-1].byte_time_s / self.servers
        alone_s = nbytes * max(self._worker_s_per_byte, one_s)
        crowded_s = nbytes * served_s_per_byte(self.cluster, self.servers)
        return Price(self.cluster.levels[-1].latency_s, alone_s, crowded_s)


def comparable(here: Cluster, there: Cluster) -> tuple[Cluster, Cluster]:
    """Return two clusters whose prices can be compared: both with measured curves, or neither."""
    known = [{(one.collective, one.algorithm) for one in each.curves} for each in (here, there)]
    if known[0] == known[1]:
        return here, there
    bare: Cluster = replace(here, curves=())
    return bare, replace(there, curves=())


def part_of(cluster: Cluster, ranks: tuple[int, ...]) -> Cluster:
    """Return the cluster of some ranks of another; of none the whole.

    Raises:
        InvalidValueError: ranks that it does not have.
    """
    if not ranks or len(ranks) == cluster.world_size:
        return cluster
    units = [cluster.position(rank) for rank in ranks]
    levels: list[Level] = []
    for level in cluster.levels:
        held = Counter(level.place(unit)[0] for unit in units)
        units = sorted(held)
        levels.append(replace(level, size=size_of(held[unit] for unit in units)))
    found: Cluster = replace(
        cluster, levels=tuple(levels), placement=(), hosts=(), curves=(), probes=()
    )
    return found


def _cost(cluster: Cluster, message: Message) -> CostFunction:
    """Return the cost of a collective by its algorithm, or by what stands in for it."""
    collective, name = message.collective, message.algorithm
    if collective not in collectives():
        raise UnknownNameError("collective", collective, (*collectives(), *_ONE_BY_ONE))
    measured = {one.algorithm for one in cluster.curves if one.collective == collective}
    known = has(collective, name)
    if not known:
        name = NATIVE
    if measured:
        found = collective_costs(cluster, collective)
        return found.of(name) if name in found.costs else found
    if not known:
        name = for_native(collective)
    assert name in algorithms(collective)
    return schedule_cost(cluster, collective, name)


def _by_peers(cluster: Cluster, message: Message) -> Price:
    """Return what messages of two ranks take, one after the other where a rank has several."""
    outer = [level for level in cluster.levels if level.joins][-1]
    p = cluster.world_size
    if message.collective in _ONE_BY_ONE:
        startup_s, sent = (p - 1) * outer.latency_s, message.nbytes * (p - 1) / p
    else:
        startup_s, sent = outer.latency_s, float(message.nbytes)
    lasts_s = sent * outer.byte_time_s
    assert math.isfinite(lasts_s)
    return Price(startup_s, lasts_s, lasts_s)
