"""Levels: what algorithms cost on a network of several levels, as formulas.

They hold where the ranks are in the order of the topology. A message that crosses level i takes α_i
and flows at the rate of the tightest link on its way: β_i or that of a slower inner level where it
has every link to itself, and the largest of u_j β_j, j <= i, where all u_j ranks of a unit of
level j send at the same time. Units may be unequal where one rank of a unit sends at a time: in a
ring, a flat tree and a linear pipeline, and with two levels where nodes are equal.

* *Ring*: every round waits for the slowest of its messages; it costs the most of the levels' own
  rings (BlueConnect, Eq. 3).
* *By stages* (BlueConnect, the reduce-scatter and all-gather by levels): in every round all ranks
  do the same, so rounds add up (BlueConnect, Eqs. 6 and 7).
* *Two levels*: bidirectional exchange in the nodes, a ring of leaders, one to a node.
* *Exchanges and trees* over levels that are all powers of two: round k joins ranks 2^k apart, which
  is a single level. In an exchange all ranks of a unit send, in a tree one.
* *Flat tree*: the root's messages one after the other, so many for each level.
* *Linear pipeline*: every hop once, and all further blocks at the pace of the slowest hop::

      broadcast, reduce    sum c_i + (B - 1) max c_i
      all-reduce           sum (c_i + d_i) + (B - 1) max (c_i + d_i) - min(c_0, max d_i)

  with c_i the hops of the reduction, the last of them c_0, and d_i those of the broadcast back. Its
  first block leaves the root's end as the last one comes in, which saves the all-reduce one hop.

All are the prices of the schedules (:mod:`syncopate.costs.schedule.price`) up to rounding, as tests
say, and take microseconds for any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from syncopate.artifacts.cluster import Cluster, LinearFit
from syncopate.artifacts.level import Level, unit_counts
from syncopate.schedules.algorithms.linear_pipeline import DEFAULT_BLOCKS
from syncopate.schedules.factors import equal_sizes


class Line(NamedTuple):
    """Seconds ``start + per_byte n``."""

    start: float
    per_byte: float

    def plus(self, other: Line, times: float = 1.0) -> Line:
        """Return the sum of this and ``times`` another."""
        return Line(self.start + times * other.start, self.per_byte + times * other.per_byte)


_NOTHING = Line(0.0, 0.0)


class Links:
    """The levels that join anything, and what a message takes that crosses one of them.

    Args:
        cluster: the machines.
        root: where the root of a collective is, counted in the order of the topology.

    Attributes:
        levels: those that join anything, innermost first.
        counts: how many units each joins.
        sizes: of the levels up to the first that has unequal units.
        units: ranks in a unit of each of these, that is in one of what its links join.
        root: as given.
        ranks: of the cluster.
    """

    def __init__(self, cluster: Cluster, root: int = 0) -> None:
        self.root = root
        self.levels: tuple[Level, ...] = cluster.joining
        self.counts = unit_counts(self.levels)[:-1]
        self.gamma = cluster.reduction_s_per_byte
        self.sizes = equal_sizes(cluster)
        self.units = tuple(math.prod(self.sizes[:i]) for i in range(len(self.sizes)))
        self.ranks = cluster.world_size

    def message(self, index: int, share: float, *, reduced: bool, together: bool = False) -> Line:
        """Return what a message takes that crosses a level.

        Args:
            index: of the level.
            share: of the buffer.
            reduced: whether it is added.
            together: whether all ranks of a unit send at the same time, rather than one; units are
                equal.
        """
        units = self.units if together else (1,) * len(self.levels)
        byte_s = max(
            level.byte_time_s * unit
            for level, unit in zip(self.levels[: index + 1], units, strict=False)
        )
        added_s = self.gamma if reduced else 0.0
        return Line(self.levels[index].latency_s, share * (byte_s + added_s))

    def between(self, distance: int) -> int:
        """Return which level joins ranks ``distance`` apart; all sizes are powers of two."""
        return max(index for index, unit in enumerate(self.units) if unit <= distance)

    def apart(self, one: int, other: int) -> int:
        """Return which level joins two ranks, by their places in the order of the topology."""
        found = 0
        for index, level in enumerate(self.levels):
            found = index if one != other else found
            one, other = level.place(one)[0], level.place(other)[0]
        return found

    def held(self, place: int) -> tuple[int, ...]:
        """Return how many ranks the unit has that a rank is in: that of each level, then all."""
        found, unit = [1], place
        for index, level in enumerate(self.levels):
            unit = level.place(unit)[0]
            inside = range(unit, unit + 1)
            for below in reversed(self.levels[: index + 1]):
                inside = range(below.held(inside[0])[0], below.held(inside[-1])[-1] + 1)
            found.append(len(inside))
        return tuple(found)

    @property
    def equal(self) -> bool:
        """Whether the units of every level are equal."""
        return len(self.sizes) == len(self.levels)

    @property
    def binary(self) -> bool:
        """Whether the units of every level are equal, and all sizes powers of two."""
        return self.equal and all(size & (size - 1) == 0 for size in self.sizes)

    def ring(self, *, ranks: int, reduced: bool, first: int = 0) -> tuple[Line, ...]:
        """Return half a ring all-reduce of ranks of which one is in each unit of level ``first``.

        Returns:
            Lines, of which the ring takes the longest.
        """
        found = []
        for index in range(first, len(self.levels)):
            hop = self.message(index, 1 / ranks, reduced=reduced)
            found.append(_NOTHING.plus(hop, ranks - 1))
        return tuple(found)


def level_lines(
    cluster: Cluster, collective: str, algorithm: str, options: Mapping[str, Any], root: int = 0
) -> tuple[LinearFit, ...]:
    """Return the lines whose maximum an algorithm costs in topology order; none without a formula.

    Args:
        cluster: the machines, of several levels; the placement does not count.
        collective: such as ``"all_reduce"``.
        algorithm: a name from the registry.
        options: as checked by the registry, without the order.
        root: where the root of a rooted one is in that order.
    """
    form = _FORMS.get((collective, algorithm))
    lines = () if form is None else form(Links(cluster, root), **options)
    return tuple(LinearFit(a_s=line.start, b_s_per_byte=line.per_byte) for line in lines)


def _ring(links: Links, *, adds: bool, back: bool) -> tuple[Line, ...]:
    there = links.ring(ranks=links.ranks, reduced=adds)
    if not back:
        return there
    copies = links.ring(ranks=links.ranks, reduced=False)
    return tuple(x.plus(y) for x, y in zip(there, copies, strict=True))


def _stages(
    links: Links,
    *,
    adds: bool,
    back: bool,
    factors: Sequence[int] | None = None,
    stages: Sequence[str] | None = None,
    pipelines: int = 1,
) -> tuple[Line, ...]:
    kinds = ("ring", "recursive")
    known = stages is None or (len(stages) == len(links.sizes) and set(stages) <= set(kinds))
    fits = links.equal and factors is not None and tuple(factors) == links.sizes
    if not fits or pipelines != 1 or not known:
        return ()
    return (inner_stages(links, stages, adds=adds, back=back),)


def inner_stages(links: Links, stages: Sequence[str] | None, *, adds: bool, back: bool) -> Line:
    """Return what stages take at the levels up to the first that has unequal units.

    Args:
        links: of the cluster.
        stages: ``"ring"`` or ``"recursive"`` of each level; None: all recursive.
        adds: whether there are reduce-scatters, and not all-gathers alone.
        back: whether there are all-gathers as well.
    """
    total = _NOTHING
    for index, size in enumerate(links.sizes):
        ring = stages is not None and stages[index] == "ring"
        rounds = size - 1 if ring else (size - 1).bit_length()
        share = (size - 1) / size / links.units[index]
        for reduced in (adds, False)[: 2 if back else 1]:
            bytes_only = links.message(index, share, reduced=reduced, together=True)
            startups = rounds * links.levels[index].latency_s
            total = total.plus(Line(startups, bytes_only.per_byte))
    return total


def _two_level(links: Links, *, factors: Sequence[int] | None = None) -> tuple[Line, ...]:
    if factors is None or factors[0] not in links.sizes[:1]:
        return ()
    node = links.sizes[0]
    inside = _NOTHING
    rounds, share = (node - 1).bit_length(), (node - 1) / node
    for reduced in (True, False, False, False):
        part = links.message(0, share, reduced=reduced)
        inside = inside.plus(Line(rounds * part.start, part.per_byte))
    leaders = links.ranks // node
    there = links.ring(ranks=leaders, reduced=True, first=1)
    copies = links.ring(ranks=leaders, reduced=False, first=1)
    return tuple(inside.plus(x).plus(y) for x, y in zip(there, copies, strict=True))


def _rounds(links: Links, shares: Callable[[int], float], *, reduced: bool, together: bool) -> Line:
    """Return the rounds in which ranks 1, 2, 4, .. apart meet, with a share of the buffer each."""
    total, distance = _NOTHING, 1
    while distance < links.ranks:
        index = links.between(distance)
        part = links.message(index, shares(distance), reduced=reduced, together=together)
        total = total.plus(part)
        distance *= 2
    return total


def _exchange(
    links: Links, *, adds: bool, back: bool, nearest_first: bool = False
) -> tuple[Line, ...]:
    """Return recursive halving, and doubling back: half of what is left in every round."""
    if not links.binary:
        return ()

    def share(distance: int) -> float:
        return 0.5 / distance if nearest_first else distance / links.ranks

    total = _rounds(links, share, reduced=adds, together=True)
    if back:
        total = total.plus(_rounds(links, share, reduced=False, together=True))
    return (total,)


def _doubling(links: Links) -> tuple[Line, ...]:
    if not links.binary:
        return ()
    return (_rounds(links, lambda _: 1.0, reduced=True, together=True),)


def _tree(links: Links, *, up: bool, down: bool) -> tuple[Line, ...]:
    if not links.binary:
        return ()
    total = _NOTHING
    for wanted, reduced in ((up, True), (down, False)):
        if wanted:
            total = total.plus(_rounds(links, lambda _: 1.0, reduced=reduced, together=False))
    return (total,)


def _scattered(links: Links, *, adds: bool) -> tuple[Line, ...]:
    """Return a rooted bidirectional exchange: a tree of pieces, and an exchange of them."""
    if not links.binary:
        return ()
    pieces = _rounds(links, lambda d: d / links.ranks, reduced=False, together=False)
    (exchange,) = _exchange(links, adds=adds, back=False)
    return (pieces.plus(exchange),)


def _flat_tree(links: Links, *, up: bool, down: bool) -> tuple[Line, ...]:
    total = _NOTHING
    for index, (inside, around) in enumerate(pairwise(links.held(links.root))):
        for wanted, reduced in ((up, True), (down, False)):
            if wanted:
                message = links.message(index, 1.0, reduced=reduced)
                total = total.plus(message, around - inside)
    return (total,)


def _chain(links: Links, blocks: int, *, reduced: bool) -> tuple[Line, list[Line]]:
    """Return all hops of a chain one after the other, and a hop of each level."""
    hops = [links.message(i, 1 / blocks, reduced=reduced) for i in range(len(links.levels))]
    total = _NOTHING
    for (joined, units), hop in zip(pairwise((*links.counts, 1)), hops, strict=True):
        total = total.plus(hop, joined - units)
    return total, hops


def _pipeline(links: Links, *, adds: bool, blocks: int = DEFAULT_BLOCKS) -> tuple[Line, ...]:
    if blocks < 1:
        return ()
    total, hops = _chain(links, blocks, reduced=adds)
    if links.root:
        # The chain goes on from the last rank to the first, and ends before the root.
        missing = links.apart(links.root - 1, links.root)
        total = total.plus(hops[-1]).plus(hops[missing], -1.0)
    return tuple(total.plus(hop, blocks - 1) for hop in hops)


def _pipelines(links: Links, blocks: int = DEFAULT_BLOCKS) -> tuple[Line, ...]:
    if blocks < 1:
        return ()
    (there, hops), (back, copies) = (
        _chain(links, blocks, reduced=reduced) for reduced in (True, False)
    )
    total = there.plus(back)
    if blocks == 1:
        return (total,)
    found = []
    for hop, copy in zip(hops, copies, strict=True):
        whole = total.plus(hop, blocks - 1).plus(copy, blocks - 1)
        found += [whole.plus(hops[links.apart(0, 1)], -1.0), whole.plus(copy, -1.0)]
    return tuple(found)


_FORMS: dict[tuple[str, str], Callable[..., tuple[Line, ...]]] = {
    ("all_reduce", "ring"): lambda links: _ring(links, adds=True, back=True),
    ("reduce_scatter", "ring"): lambda links: _ring(links, adds=True, back=False),
    ("all_gather", "ring"): lambda links: _ring(links, adds=False, back=False),
    ("all_reduce", "blueconnect"): lambda links, **o: _stages(links, adds=True, back=True, **o),
    ("reduce_scatter", "hierarchical"): lambda links, **o: _stages(
        links, adds=True, back=False, **o
    ),
    ("all_gather", "hierarchical"): lambda links, **o: _stages(links, adds=False, back=False, **o),
    ("all_reduce", "two_level"): _two_level,
    ("all_reduce", "recursive_doubling"): _doubling,
    ("all_reduce", "halving_doubling"): lambda links: _exchange(
        links, adds=True, back=True, nearest_first=True
    ),
    ("all_reduce", "be"): lambda links: _exchange(links, adds=True, back=True),
    ("reduce_scatter", "recursive"): lambda links: _exchange(links, adds=True, back=False),
    ("all_gather", "recursive"): lambda links: _exchange(links, adds=False, back=False),
    ("broadcast", "be"): lambda links: _scattered(links, adds=False),
    ("reduce", "be"): lambda links: _scattered(links, adds=True),
    ("all_reduce", "binary_tree"): lambda links: _tree(links, up=True, down=True),
    ("all_reduce", "mst"): lambda links: _tree(links, up=True, down=True),
    ("broadcast", "mst"): lambda links: _tree(links, up=False, down=True),
    ("reduce", "mst"): lambda links: _tree(links, up=True, down=False),
    ("all_reduce", "flat_tree"): lambda links: _flat_tree(links, up=True, down=True),
    ("broadcast", "flat_tree"): lambda links: _flat_tree(links, up=False, down=True),
    ("reduce", "flat_tree"): lambda links: _flat_tree(links, up=True, down=False),
    ("all_reduce", "lp"): _pipelines,
    ("broadcast", "lp"): lambda links, **o: _pipeline(links, adds=False, **o),
    ("reduce", "lp"): lambda links, **o: _pipeline(links, adds=True, **o),
}
"""(collective, algorithm) -> its lines on links, with the options of the registry."""
