"""Catalogue: the rows of the registry's table, one per collective and algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from syncopate.artifacts.cluster import Cluster
from syncopate.schedules.algorithms import (
    bidirectional_exchange,
    binary_tree,
    blueconnect,
    flat_tree,
    halving_doubling,
    linear_pipeline,
    mst,
    recursive_doubling,
    ring,
    two_level,
)
from syncopate.schedules.base import Schedule
from syncopate.schedules.factors import cluster_factors
from syncopate.units import KIB


@dataclass(frozen=True)
class Algorithm:
    """One row: an algorithm of a collective.

    Attributes:
        collective: a name in :data:`syncopate.schedules.conditions.CONDITIONS`.
        name: how plans and users call it.
        build: world size to schedule; world size and root for a rooted collective.
        summary: one line: rounds and bytes per rank.
        source: where it comes from.
        options: what ``build`` takes by name, each with a default.
        hierarchical: whether it is made for clusters of several levels.
        twin: an algorithm of the same collective that costs the same on every flat cluster, so
            that measuring both is in vain; empty when there is none.
        most_bytes: longer messages it had better not carry, on any cluster, so that measuring them
            is in vain; 0 when there is no such limit.
    """

    collective: str
    name: str
    build: Callable[..., Schedule]
    summary: str
    source: str
    options: tuple[str, ...] = ()
    hierarchical: bool = False
    twin: str = ""
    most_bytes: int = 0

    def applies(self, cluster: Cluster) -> bool:
        """Say whether it can be of use on ``cluster``: a hierarchy needs two levels of units."""
        return not self.hierarchical or len(cluster_factors(cluster)) > 1

    def carries(self, nbytes: int) -> bool:
        """Say whether it may be worth measuring at ``nbytes``, the total buffer."""
        return not self.most_bytes or nbytes <= self.most_bytes


_PATARASUK = "Patarasuk and Yuan 2009"
_RABENSEIFNER = "Rabenseifner 2004; Träff 2024"
_THAKUR = "Thakur, Rabenseifner and Gropp 2005"
_LP = "LP (Wang et al. 2017)"
_CHAN = "Chan et al. 2007; LP, Table 1"
_BLUECONNECT = "BlueConnect (Cho et al. 2019)"

_SHORT_BYTES = 64 * KIB
"""Longer messages, all to one port at the same time, lose packets there."""

ROWS = (
    Algorithm(
        "all_reduce",
        "ring",
        ring.all_reduce,
        "2(p-1) rounds, 2(p-1)/p n bytes",
        _PATARASUK,
    ),
    Algorithm(
        "all_reduce",
        "flat_tree",
        flat_tree.all_reduce,
        "2(p-1) rounds of n bytes, all through one rank",
        _THAKUR,
        most_bytes=_SHORT_BYTES,
    ),
    Algorithm(
        "all_reduce",
        "recursive_doubling",
        recursive_doubling.all_reduce,
        "log2 p rounds of n bytes; ceil(log2 p) + 1 when p is no power of two",
        _THAKUR,
    ),
    Algorithm(
        "all_reduce",
        "halving_doubling",
        halving_doubling.all_reduce,
        "2 ceil(log2 p) rounds, 2(p-1)/p n bytes",
        _RABENSEIFNER,
    ),
    Algorithm(
        "all_reduce",
        "binary_tree",
        binary_tree.all_reduce,
        "2 ceil(log2 p) rounds of n bytes",
        _THAKUR,
    ),
    Algorithm(
        "all_reduce",
        "mst",
        mst.all_reduce,
        "2 ceil(log2 p) rounds of n bytes",
        _CHAN,
        twin="binary_tree",
    ),
    Algorithm(
        "all_reduce",
        "be",
        bidirectional_exchange.all_reduce,
        "2 ceil(log2 p) rounds, 2(p-1)/p n bytes; farthest ranks first",
        _CHAN,
        twin="halving_doubling",
    ),
    Algorithm(
        "all_reduce",
        "lp",
        linear_pipeline.all_reduce,
        "2(p-2+B)-1 rounds, 2n bytes, in B blocks",
        _LP,
        options=("blocks",),
    ),
    Algorithm(
        "all_reduce",
        "two_level",
        two_level.all_reduce,
        "p = p0 p1: 4(p0-1)/p0 n bytes in the node, 2(p1-1)/p1 n bytes between leaders",
        "Jia et al. 2018; BlueConnect, Eq. 4",
        options=("factors",),
        hierarchical=True,
    ),
    Algorithm(
        "all_reduce",
        "blueconnect",
        blueconnect.all_reduce,
        "p = p0 .. pk: 2(p-1)/p n bytes, of which 2(pi-1)/(p0 .. pi) n bytes at level i",
        _BLUECONNECT,
        options=("factors", "stages", "pipelines"),
        hierarchical=True,
    ),
    Algorithm(
        "reduce_scatter",
        "ring",
        ring.reduce_scatter,
        "p-1 rounds, (p-1)/p n bytes",
        _PATARASUK,
    ),
    Algorithm(
        "reduce_scatter",
        "recursive",
        halving_doubling.reduce_scatter,
        "ceil(log2 p) rounds, (p-1)/p n bytes",
        _RABENSEIFNER,
    ),
    Algorithm(
        "reduce_scatter",
        "hierarchical",
        blueconnect.reduce_scatter,
        "p = p0 .. pk: (p-1)/p n bytes, of which (pi-1)/(p0 .. pi) n bytes at level i",
        _BLUECONNECT,
        options=("factors", "stages"),
        hierarchical=True,
    ),
    Algorithm(
        "all_gather",
        "ring",
        ring.all_gather,
        "p-1 rounds, (p-1)/p n bytes",
        _PATARASUK,
    ),
    Algorithm(
        "all_gather",
        "recursive",
        halving_doubling.all_gather,
        "ceil(log2 p) rounds, (p-1)/p n bytes",
        "Bruck et al. 1997; Träff 2024",
    ),
    Algorithm(
        "all_gather",
        "hierarchical",
        blueconnect.all_gather,
        "p = p0 .. pk: (p-1)/p n bytes, of which (pi-1)/(p0 .. pi) n bytes at level i",
        _BLUECONNECT,
        options=("factors", "stages"),
        hierarchical=True,
    ),
    Algorithm(
        "broadcast",
        "mst",
        mst.broadcast,
        "ceil(log2 p) rounds of n bytes",
        _CHAN,
    ),
    Algorithm(
        "broadcast",
        "flat_tree",
        flat_tree.broadcast,
        "p-1 rounds of n bytes, all from the root",
        _THAKUR,
        most_bytes=_SHORT_BYTES,
    ),
    Algorithm(
        "broadcast",
        "be",
        bidirectional_exchange.broadcast,
        "2 ceil(log2 p) rounds, 2(p-1)/p n bytes",
        _CHAN,
    ),
    Algorithm(
        "broadcast",
        "lp",
        linear_pipeline.broadcast,
        "p-2+B rounds, n bytes, in B blocks",
        _LP,
        options=("blocks",),
    ),
    Algorithm(
        "reduce",
        "mst",
        mst.reduce,
        "ceil(log2 p) rounds of n bytes",
        _CHAN,
    ),
    Algorithm(
        "reduce",
        "flat_tree",
        flat_tree.reduce,
        "p-1 rounds of n bytes, all to the root",
        _THAKUR,
        most_bytes=_SHORT_BYTES,
    ),
    Algorithm(
        "reduce",
        "be",
        bidirectional_exchange.reduce,
        "2 ceil(log2 p) rounds, 2(p-1)/p n bytes",
        _CHAN,
    ),
    Algorithm(
        "reduce",
        "lp",
        linear_pipeline.reduce,
        "p-2+B rounds, n bytes, in B blocks",
        _LP,
        options=("blocks",),
    ),
)
"""In the order in which they are listed everywhere."""
