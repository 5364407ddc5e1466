"""Compose: schedules made out of schedules.

A collective among all ranks is often built from collectives among some: one per host, then one
across hosts. :func:`embedded` runs a small schedule in many groups at once, :func:`renamed` moves
one to other ranks and chunks, and :func:`relabelled` runs a whole schedule over the ranks in
another order, so that neighbours in the algorithm are neighbours in the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from syncopate.artifacts.cluster import Cluster
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule, Table, Transfers, rounds_of, rows, stacked
from syncopate.schedules.conditions import conditions, element_offsets

IntArray = npt.NDArray[np.int64]
_ROUND, _SRC, _DST, _START, _STOP, _OP = range(6)


def topology_order(cluster: Cluster) -> tuple[int, ...]:
    """Return the ranks by where they sit, innermost level fastest.

    The order to give a ring or a chain: it enters and leaves every host and every rack once,
    however the launcher numbered the ranks.
    """
    return cluster.placement or tuple(range(cluster.world_size))


def shifted(table: Table, rounds: int, chunks: int = 0) -> Table:
    """Return ``table`` later by ``rounds`` rounds and on chunks higher by ``chunks``."""
    moved = table.copy()
    moved[:, _ROUND] += rounds
    moved[:, [_START, _STOP]] += chunks
    return moved


def in_turn(tables: Iterable[Table]) -> Table:
    """Return the tables one after the other, each from the round after the last of the one before.

    Rounds of every table count from 0.
    """
    found: list[Table] = []
    first = 0
    for table in tables:
        found.append(shifted(table, first))
        first += rounds_of(table)
    return stacked(found)


def embedded(table: Table, ranks: npt.ArrayLike, chunks: npt.ArrayLike) -> Table:
    """Return a schedule of m ranks and c chunks, run in g groups of ranks at once.

    Args:
        table: the transfers of the small schedule.
        ranks: shape (g, m); the ranks that make up each group.
        chunks: shape (g, c, w); the w chunks of the whole buffer that stand for each of its own.
    """
    small = _expanded(table)
    members, places = np.asarray(ranks, np.int64), np.asarray(chunks, np.int64)
    chunk = places[:, small[:, _START], :]
    return _merged(
        rows(
            small[None, :, _ROUND, None],
            members[:, small[:, _SRC], None],
            members[:, small[:, _DST], None],
            (chunk, chunk + 1),
            small[None, :, _OP, None],
        )
    )


def renamed(table: Table, ranks: npt.ArrayLike, chunks: npt.ArrayLike) -> Table:
    """Return ``table`` with rank r called ``ranks[r]`` and chunk c called ``chunks[c]``."""
    return embedded(table, np.asarray(ranks)[None], np.asarray(chunks)[None, :, None])


def relabelled(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Return ``schedule`` with rank i of it played by rank ``order[i]``.

    The root moves along. In a sharded collective the shards do too, so that rank r still owns shard
    r of the buffer.

    Args:
        schedule: any schedule.
        order: every rank once.

    Raises:
        InvalidValueError: ``order`` is no permutation of the ranks.

    Example:
        >>> from syncopate.schedules.registry import build
        >>> ring = relabelled(build("all_reduce", "ring", 4), (0, 2, 1, 3))
        >>> sorted({(t.src, t.dst) for t in ring.transfers})
        [(0, 2), (1, 3), (2, 1), (3, 0)]
    """
    p = schedule.world_size
    require_order(p, order)
    ranks = np.array(order, np.int32)
    table = schedule.table.table
    if conditions(schedule.collective).sharded:
        share = schedule.shard(0)[1]
        chunks = (ranks[:, None] * share + np.arange(share)).ravel()
        table = renamed(table, ranks, chunks)
    else:
        table = table.copy()
        table[:, [_SRC, _DST]] = ranks[table[:, [_SRC, _DST]]]
    return Schedule(
        schedule.collective,
        schedule.algorithm,
        p,
        schedule.chunks,
        Transfers(table),
        int(ranks[schedule.root]),
    )


def by_element(schedule: Schedule, bounds: tuple[int, ...]) -> Schedule:
    """Return a sharded ``schedule`` with elements for chunks, so that shards may differ in length.

    It says what runs where rank r's shard is the elements ``bounds[r]:bounds[r + 1]``, and is
    proved (:func:`~syncopate.schedules.checker.check` takes the bounds too) and priced like any
    other; transfers that carry nothing are left out.

    Args:
        schedule: of a collective with shards.
        bounds: as :func:`~syncopate.schedules.base.checked_bounds` wants them, and not empty.

    Raises:
        InvalidValueError: more elements than a table can count, or none.

    Example:
        >>> from syncopate.schedules.registry import build
        >>> [t[1:5] for t in by_element(build("all_gather", "ring", 2), (0, 7, 9)).transfers]
        [(0, 1, 0, 7), (1, 0, 7, 9)]
    """
    numel = bounds[-1]
    if not 1 <= numel <= np.iinfo(np.int32).max:
        rule = f"of 1 to {np.iinfo(np.int32).max} elements; count in larger units"
        raise InvalidValueError("bounds", bounds, rule)
    offsets = np.array(element_offsets(schedule, numel, bounds), np.int64)
    t = schedule.table
    table = rows(t.round, t.src, t.dst, (offsets[t.start], offsets[t.stop]), t.op)
    title = schedule.collective, schedule.algorithm
    return Schedule(*title, schedule.world_size, numel, Transfers(table), schedule.root)


def require_order(world_size: int, order: Sequence[int]) -> None:
    """Refuse an order that does not name every rank once.

    Raises:
        InvalidValueError: it does not.
    """
    if sorted(order) != list(range(world_size)):
        raise InvalidValueError(
            "order", tuple(order), f"a permutation of the ranks 0..{world_size - 1}"
        )


def _expanded(table: Table) -> Table:
    """Return ``table`` with one row per chunk."""
    lengths = table[:, _STOP] - table[:, _START]
    units = np.repeat(table, lengths, axis=0)
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    units[:, _START] += np.arange(len(units), dtype=np.int32) - firsts.astype(np.int32)
    units[:, _STOP] = units[:, _START] + 1
    return units


def _merged(table: Table) -> Table:
    """Return ``table`` with adjacent chunks of one message joined to a range."""
    ordered = table[np.lexsort(table[:, [_START, _OP, _DST, _SRC, _ROUND]].T)]
    same = (ordered[1:, [_ROUND, _SRC, _DST, _OP]] == ordered[:-1, [_ROUND, _SRC, _DST, _OP]]).all(
        axis=1
    )
    same &= ordered[1:, _START] == ordered[:-1, _STOP]
    first, last = np.ones(len(ordered), bool), np.ones(len(ordered), bool)
    first[1:], last[:-1] = ~same, ~same
    joined = ordered[first]
    joined[:, _STOP] = ordered[last, _STOP]
    return joined
