"""MST: a minimum spanning tree of messages, which doubles the informed ranks in every round.

To broadcast among an interval of ranks, cut it in two, let the root send the buffer to the first
rank of the other part, and do the same in both parts. The cut leaves the root in a part whose size
is the largest power of two below that of the interval: messages that go far are sent first and
once, ranks that are neighbours stay together, and power-of-two hosts are not cut. Six ranks,
root 0::

    round 0     0 -> 4
    round 1     0 -> 2     4 -> 5
    round 2     0 -> 1     2 -> 3

The reduce is the same backwards, and the all-reduce is a reduce to rank 0 and a broadcast from it.
The same tree scatters (every message carries only what the other part will own) and gathers.

Steps and bytes, for every p and root:

* broadcast, reduce: ceil(log2 p) rounds of n bytes.
* all-reduce: 2 ceil(log2 p) rounds of n bytes.
* scatter, gather: ceil(log2 p) rounds; the root sends or receives (p - 1)/p n bytes.

Source: LP (Wang et al. 2017), Table 1 ("MST"); Chan, Heimlich, Purkayastha and van de Geijn,
"Collective communication: theory, practice, and experience" (2007).
"""

from __future__ import annotations

from syncopate.schedules.base import (
    COPY,
    REDUCE,
    Schedule,
    Table,
    Transfers,
    mirrored,
    rows,
    stacked,
)
from syncopate.schedules.compose import in_turn


def broadcast(world_size: int, root: int) -> Schedule:
    """Return the tree broadcast; one chunk."""
    table = distribute(world_size, root, scatter=False)
    return Schedule("broadcast", "mst", world_size, 1, Transfers(table), root)


def reduce(world_size: int, root: int) -> Schedule:
    """Return the tree reduce; one chunk."""
    table = mirrored(distribute(world_size, root, scatter=False), op=REDUCE)
    return Schedule("reduce", "mst", world_size, 1, Transfers(table), root)


def all_reduce(world_size: int) -> Schedule:
    """Return the tree reduce to rank 0 and the tree broadcast from it; one chunk."""
    down = distribute(world_size, 0, scatter=False)
    table = in_turn([mirrored(down, op=REDUCE), down])
    return Schedule("all_reduce", "mst", world_size, 1, Transfers(table))


def distribute(world_size: int, root: int, *, scatter: bool) -> Table:
    """Return the copies that carry data from ``root`` down the tree.

    Args:
        world_size: number of ranks p.
        root: where the data are.
        scatter: send each rank chunk r of p for every rank r below it in the tree, instead of the
            whole buffer as one chunk.
    """
    tables = []
    open_parts = [(0, 0, world_size, root)]
    while open_parts:
        step, low, high, source = open_parts.pop()
        if high - low == 1:
            continue
        power = 1 << ((high - low - 1).bit_length() - 1)
        if source < low + power:
            other = (low + power, high)
            own = (low, low + power)
        else:
            other = (low, high - power)
            own = (high - power, high)
        chunks = other if scatter else (0, 1)
        tables.append(rows(step, source, other[0], chunks, COPY))
        open_parts.append((step + 1, *own, source))
        open_parts.append((step + 1, *other, other[0]))
    return stacked(tables)
