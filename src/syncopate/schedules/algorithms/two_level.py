"""Two levels: reduce to one leader per node, ring among the leaders, broadcast in the node.

With p = p0 p1, the ranks c p0, .., (c + 1) p0 - 1 are node c and its first rank leads it. The node
reduces and broadcasts by bidirectional exchange (``bidirectional_exchange.py``), as the paper's
cost of it has it. Six ranks, two nodes of three, the ring::

    0 <-> 3     1, 2, 4, 5 idle

Steps and bytes: 4 ceil(log2 p0) + 2(p1 - 1) rounds; 4(p0 - 1)/p0 n bytes in the node and
2(p1 - 1)/p1 n bytes across nodes, sent by the leaders alone: p0 - 1 of p0 ranks stand idle
meanwhile, which is what BlueConnect puts right (``blueconnect.py``).

Source: BlueConnect (Cho et al. 2019), Section 2.2 and Eq. 4; Jia et al., "Highly scalable deep
learning training system with mixed-precision" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from syncopate.schedules.algorithms import bidirectional_exchange, ring
from syncopate.schedules.base import Schedule, Transfers
from syncopate.schedules.compose import embedded, in_turn
from syncopate.schedules.factors import default_factors, require_factors


def all_reduce(world_size: int, *, factors: Sequence[int] | None = None) -> Schedule:
    """Return the two-level all-reduce; p chunks.

    Args:
        world_size: number of ranks p.
        factors: ranks per node, then nodes; of more than two, the first is the node.
    """
    if factors is None:
        factors = default_factors(world_size)
    require_factors(world_size, factors)
    node, nodes = factors[0], math.prod(factors[1:])
    if len(factors) == 1:
        node, nodes = 1, world_size
    ranks = np.arange(world_size).reshape(nodes, node)
    chunks = np.arange(world_size)
    shards = np.broadcast_to(chunks.reshape(1, node, nodes), (nodes, node, nodes))
    leaders = ranks[:, 0][None]
    table = in_turn(
        [
            embedded(bidirectional_exchange.reduce(node, 0).table.table, ranks, shards),
            embedded(ring.all_reduce(nodes).table.table, leaders, chunks.reshape(1, nodes, node)),
            embedded(bidirectional_exchange.broadcast(node, 0).table.table, ranks, shards),
        ]
    )
    return Schedule("all_reduce", "two_level", world_size, world_size, Transfers(table))
