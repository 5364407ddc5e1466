"""Tuning: whether NCCL's all-reduce takes a tree or a ring, and by which protocol, by size.

NCCL expects ``latency + n / bandwidth`` of each algorithm and protocol, and takes the least. The
latencies, the corrections of the bandwidth and the speeds that it believes a link to have are
constants of its source. Its choice follows from them alone: a slow TCP stack does not change it.
So these constants say what NCCL chooses, and never what that takes
(:mod:`syncopate.costs.nccl.curves`).

With p ranks, g on each of h nodes, and a bus bandwidth w in bytes per microsecond::

    ring   LL       3.6 + 2 (p-1) l            w/4 p / (2 (p-1))
    ring   Simple   8.4 + 2 (p-1) l            w   p / (2 (p-1))
    tree   LL       4.4 + 2 ((g-1) i + log2(h) l)    0.9 w/3 c(n) / 2
    tree   Simple     0 + 2 ((g-1) i + log2(h) l)    0.9 w   c(n) / 2

with a single channel, where l is the latency of the network (of PCIe or NVLink in a single node), i
that inside a node, and c(n) a correction that NCCL found for trees of medium sizes. LL sends a flag
of four bytes with each four bytes of data. LL128, which NCCL enables on NVLink of Volta alone in
this version, and collectives in switches are left out.

Source: NVIDIA NCCL 2.6.4, ``src/graph/tuning.cc`` (``ncclTopoSetThresholds``,
``ncclTopoGetAlgoTime``) and the speeds of ``src/graph/search.cc``. Later versions change constants.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from syncopate.errors import InvalidValueError, UnknownNameError

RING, TREE = "ring", "tree"
LL, SIMPLE = "LL", "Simple"
PCIE, NVLINK = "pcie", "nvlink"

_NETWORK = "network"
_BASE_US = {(TREE, LL): 4.4, (TREE, SIMPLE): 0.0, (RING, LL): 3.6, (RING, SIMPLE): 8.4}
_STEP_US = {
    NVLINK: {(TREE, LL): 0.5, (TREE, SIMPLE): 28.0, (RING, LL): 0.4, (RING, SIMPLE): 5.7},
    PCIE: {(TREE, LL): 1.0, (TREE, SIMPLE): 28.0, (RING, LL): 1.0, (RING, SIMPLE): 5.7},
    _NETWORK: {(TREE, LL): 5.0, (TREE, SIMPLE): 50.0, (RING, LL): 0.9, (RING, SIMPLE): 6.6},
}
_SHARE = {(RING, LL): 1 / 4, (RING, SIMPLE): 1.0, (TREE, LL): 0.9 / 3, (TREE, SIMPLE): 0.9}
"""Of the bus bandwidth."""

_TREE_CORRECTION = {
    LL: (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6,
         0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 1.0, 1.0, 1.0),
    SIMPLE: (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6,
             0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.9),
}  # fmt: skip
"""Of the bandwidth of trees, by powers of two from 64 bytes on."""

_SPEEDS_GB_PER_S = (
    24.0, 21.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12,
)  # fmt: skip
"""What NCCL may believe a channel to carry; it takes the highest that the link allows."""


class Way(NamedTuple):
    """One way of NCCL's to all-reduce.

    Attributes:
        algorithm: ``"ring"`` or ``"tree"``.
        protocol: ``"LL"`` or ``"Simple"``.
    """

    algorithm: str
    protocol: str

    def network_steps(self, nodes: int, per_node: int) -> float:
        """Return how many messages in a row cross the network: those of a node's share of a ring.

        Example:
            >>> Way("ring", "LL").network_steps(8, 4), Way("tree", "LL").network_steps(8, 4)
            (15.5, 6.0)
        """
        if self.algorithm == RING:
            return 2 * (nodes * per_node - 1) / per_node if nodes > 1 else 0.0
        return 2.0 * int(math.log2(nodes))

    def inner_steps(self, nodes: int, per_node: int) -> float:
        """Return how many messages in a row stay inside a node.

        Example:
            >>> Way("ring", "LL").inner_steps(8, 4), Way("tree", "LL").inner_steps(8, 4)
            (46.5, 6.0)
        """
        if self.algorithm == RING:
            return 2 * (nodes * per_node - 1) - self.network_steps(nodes, per_node)
        return 2.0 * (per_node - 1)

    def network_bytes(self, nbytes: float, ranks: int) -> float:
        """Return the bytes that pass the busiest link, each direction, flags of LL among them.

        Those of a ring are 2 (p-1)/p n; a tree sends the whole message up and down.
        """
        share = 2 * (ranks - 1) / ranks if self.algorithm == RING else 2.0
        return share * nbytes * (2 if self.protocol == LL else 1)


WAYS = (Way(TREE, LL), Way(TREE, SIMPLE), Way(RING, LL), Way(RING, SIMPLE))
"""In the order in which NCCL tries them: the first of two equals is taken."""


class Layout(NamedTuple):
    """The inputs of NCCL's choice.

    Attributes:
        nodes: how many.
        per_node: GPUs on each.
        link_bytes_per_s: nominal rate of a node's network link, each direction.
        inside: what joins the GPUs of a node, ``"pcie"`` or ``"nvlink"``.
    """

    nodes: int
    per_node: int
    link_bytes_per_s: float
    inside: str = PCIE

    @property
    def ranks(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.per_node


def expected_s(nbytes: float, layout: Layout, way: Way) -> float:
    """Return what NCCL believes an all-reduce to take, in seconds; see the module.

    Args:
        nbytes: of the buffer; > 0.
        layout: of at least two ranks.
        way: algorithm and protocol.

    Raises:
        InvalidValueError: fewer than two ranks, or no size.
        UnknownNameError: nothing is known of what joins the GPUs of a node.
    """
    _require(nbytes, layout)
    bandwidth = believed_bytes_per_s(layout.link_bytes_per_s) / 1e6 * _SHARE[way]
    p, inside = layout.ranks, _STEP_US[layout.inside][way]
    outside = _STEP_US[_NETWORK][way] if layout.nodes > 1 else inside
    if way.algorithm == RING:
        latency_us = _BASE_US[way] + 2 * (p - 1) * outside
        bandwidth *= p / (2 * (p - 1))
    else:
        depth_us = (layout.per_node - 1) * inside + int(math.log2(layout.nodes)) * outside
        latency_us = _BASE_US[way] + 2 * depth_us
        power = max(int(nbytes) // 64, 1).bit_length() - 1
        corrections = _TREE_CORRECTION[way.protocol]
        bandwidth *= 0.5 * (corrections[power] if power < len(corrections) else 1.0)
    return (latency_us + nbytes / bandwidth) * 1e-6


def chosen(nbytes: float, layout: Layout) -> Way:
    """Return the way that NCCL takes for a message of ``nbytes``.

    Raises:
        InvalidValueError: fewer than two ranks, or no size.
        UnknownNameError: nothing is known of what joins the GPUs of a node.

    Example:
        >>> boxes = Layout(nodes=8, per_node=4, link_bytes_per_s=1.25e9)
        >>> [chosen(n, boxes) for n in (8192, 16384, 1 << 20)]  # doctest: +NORMALIZE_WHITESPACE
        [Way(algorithm='tree', protocol='LL'), Way(algorithm='ring', protocol='LL'),
         Way(algorithm='ring', protocol='Simple')]
    """
    return min(WAYS, key=lambda way: expected_s(nbytes, layout, way))


def believed_bytes_per_s(link_bytes_per_s: float) -> float:
    """Return the speed that NCCL believes a link to have: the highest of its steps below the rate.

    Example:
        >>> believed_bytes_per_s(1.25e9) / 1e9
        1.2
    """
    steps = [1e9 * speed for speed in _SPEEDS_GB_PER_S]
    return next((step for step in steps if step <= link_bytes_per_s), steps[-1])


def _require(nbytes: float, layout: Layout) -> None:
    if layout.inside not in (PCIE, NVLINK):
        raise UnknownNameError("link inside a node", layout.inside, (PCIE, NVLINK))
    if layout.nodes < 1 or layout.per_node < 1 or layout.ranks < 2:
        given = f"{layout.nodes} x {layout.per_node}"
        raise InvalidValueError("nodes x GPUs", given, "at least two GPUs in all")
    if not nbytes > 0:
        raise InvalidValueError("nbytes", nbytes, "a number > 0")
