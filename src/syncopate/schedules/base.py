"""Base: a collective algorithm as data, and how a buffer is cut into chunks.

A :class:`Schedule` is a table of transfers ``(round, src, dst, chunk range, copy | reduce)`` over
``world_size`` ranks. The same object is proved (:mod:`syncopate.schedules.checker`), priced
(:mod:`syncopate.costs.schedule.price`) and executed.

What a schedule means:

* Every rank works in place on one buffer of ``numel`` elements, cut into ``chunks`` pieces by
  :func:`chunk_offsets`, or as long as each rank's shard is to be
  (:func:`syncopate.schedules.conditions.element_offsets`); a piece may be empty, and then its
  transfers carry nothing.
* Within one round every send reads the buffers as they were when the round began. A ``"reduce"``
  is added to the receiver's chunks, a ``"copy"`` overwrites them.
* Rounds are logical: a rank enters its next round when its own transfers are done, and does not
  wait for the others. The transfers of one round between the same two ranks form one message.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from syncopate.errors import InvalidValueError, ScheduleError

Table = npt.NDArray[np.int32]
"""Transfers as rows of six integers: round, src, dst, start, stop, index into ``OPS``."""

OPS: tuple[str, str] = ("copy", "reduce")
"""What a transfer does at the receiver; a :data:`Table` stores the index."""

COPY, REDUCE = range(2)
_ROUND, _SRC, _DST, _START, _STOP, _OP = range(6)


class Transfer(NamedTuple):
    """One message part: chunks ``[start, stop)`` of ``src`` go to the same chunks of ``dst``.

    Attributes:
        round: logical step, counted from 0.
        src: sending rank.
        dst: receiving rank.
        start: first chunk.
        stop: one past the last chunk.
        op: ``"copy"`` overwrites the receiver's chunks, ``"reduce"`` adds to them.
    """

    round: int
    src: int
    dst: int
    start: int
    stop: int
    op: str


def rows(
    round_index: npt.ArrayLike,
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    chunks: tuple[npt.ArrayLike, npt.ArrayLike],
    op: npt.ArrayLike,
) -> Table:
    """Return a table of transfers from columns, which broadcast against each other.

    Args:
        round_index: logical step of each transfer.
        src: sending ranks.
        dst: receiving ranks.
        chunks: first chunk of each transfer and one past its last; a row with an empty range
            carries nothing and is left out.
        op: ``COPY`` or ``REDUCE``.
    """
    columns = np.broadcast_arrays(round_index, src, dst, *chunks, op)
    table = np.stack([column.ravel() for column in columns], axis=1).astype(np.int32)
    return table[table[:, _STOP] > table[:, _START]]


def stacked(tables: Iterable[Table]) -> Table:
    """Return the rows of all ``tables``; no table gives no rows."""
    return np.concatenate([np.empty((0, 6), np.int32), *tables])


def rounds_of(table: Table) -> int:
    """Return the number of rounds that ``table`` spans."""
    return int(table[:, _ROUND].max()) + 1 if len(table) else 0


def mirrored(table: Table, first_round: int = 0, op: int = COPY) -> Table:
    """Return ``table`` run backwards, every transfer turned round.

    The mirror of a reduction is the distribution of its result: where partial sums flowed from
    leaves to owner along a tree, the sum flows back from owner to leaves along the same tree. So
    it makes an all-gather of a reduce-scatter and a broadcast of a reduce, or the other way round.

    Args:
        table: transfers, rounds counted from 0.
        first_round: the round at which the mirror begins.
        op: what all its transfers do: ``COPY`` distributes, ``REDUCE`` makes a reduction of copies.
    """
    back = table[:, [_ROUND, _DST, _SRC, _START, _STOP, _OP]]
    back[:, _ROUND] = first_round + rounds_of(table) - 1 - back[:, _ROUND]
    back[:, _OP] = op
    return back


class Transfers(Sequence[Transfer]):
    """A sequence of transfers, stored as one array so that millions of them stay cheap.

    Reads like a tuple of :class:`Transfer`; whole columns are the attributes ``round``, ``src``,
    ``dst``, ``start``, ``stop`` and ``op`` (index into ``OPS``).

    Args:
        table: rows as in :data:`Table`; taken over and made read-only.
    """

    def __init__(self, table: Table) -> None:
        table.setflags(write=False)
        self.table = table
        self.round, self.src, self.dst, self.start, self.stop, self.op = table.T
        self._hash: int | None = None

    @classmethod
    def of(cls, transfers: Iterable[Transfer]) -> Transfers:
        """Return the stored form of any iterable of transfers, in the order given.

        Raises:
            ScheduleError: an ``op`` is neither ``"copy"`` nor ``"reduce"``.
        """
        if isinstance(transfers, Transfers):
            return transfers
        found = []
        for transfer in transfers:
            if transfer.op not in OPS:
                raise ScheduleError(f"{transfer}: op must be one of {', '.join(OPS)}")
            found.append((*transfer[:_OP], OPS.index(transfer.op)))
        return cls(np.array(found, np.int32).reshape(len(found), 6))

    @overload
    def __getitem__(self, index: int) -> Transfer: ...

    @overload
    def __getitem__(self, index: slice) -> Transfers: ...

    def __getitem__(self, index: int | slice) -> Transfer | Transfers:
        if isinstance(index, slice):
            return Transfers(self.table[index])
        return _transfer(self.table[index].tolist())

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Transfer]:
        return map(_transfer, self.table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transfers) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.table.tobytes())
        return self._hash

    def __repr__(self) -> str:
        return f"<{len(self)} transfers>"


def _transfer(row: list[int]) -> Transfer:
    step, src, dst, start, stop, op = row
    return Transfer(step, src, dst, start, stop, OPS[op])


@dataclass(frozen=True)
class Schedule:
    """One algorithm of one collective for one world size; see the module.

    Attributes:
        collective: such as ``"all_reduce"``; :mod:`syncopate.schedules.conditions` says what each
            one starts from and must end with.
        algorithm: the name in the registry.
        world_size: number of ranks p; >= 1.
        chunks: pieces the buffer is cut into; >= 1. Collectives with shards need a multiple of p.
        transfers: by round, then src, dst and start, in any given order.
        root: the rank that reduces to or broadcasts from; 0 where the collective has none.

    Raises:
        ScheduleError: a transfer names a rank, a chunk or a round that does not exist, or a rank
            sends to itself.
    """

    collective: str
    algorithm: str
    world_size: int
    chunks: int
    transfers: Sequence[Transfer] = field(repr=False)
    root: int = 0

    def __post_init__(self) -> None:
        for what, value in (("world_size", self.world_size), ("chunks", self.chunks)):
            if value < 1:
                raise InvalidValueError(what, value, "an integer >= 1")
        if not 0 <= self.root < self.world_size:
            raise InvalidValueError("root", self.root, f"a rank in 0..{self.world_size - 1}")
        table = self._well_formed(Transfers.of(self.transfers))
        object.__setattr__(self, "transfers", table)

    def _well_formed(self, transfers: Transfers) -> Transfers:
        t, p = transfers, self.world_size
        bad = (
            (t.round < 0)
            | (np.minimum(t.src, t.dst) < 0)
            | (np.maximum(t.src, t.dst) >= p)
            | (t.src == t.dst)
            | (t.start < 0)
            | (t.start >= t.stop)
            | (t.stop > self.chunks)
        )
        if bad.any():
            raise ScheduleError(
                f"{self.title}: {t[int(np.argmax(bad))]} is no transfer between two of {p} ranks "
                f"of a non-empty range of {self.chunks} chunks"
            )
        key = ((t.round.astype(np.int64) * p + t.src) * p + t.dst) * self.chunks + t.start
        if np.all(key[1:] >= key[:-1]):
            return t
        return Transfers(t.table[np.argsort(key, kind="stable")])

    @property
    def title(self) -> str:
        """Its name for messages and reports, such as ``"all_reduce (ring), 4 ranks"``."""
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{self.collective} ({self.algorithm}), {ranks}"

    @property
    def table(self) -> Transfers:
        """The transfers, with their columns as arrays."""
        return Transfers.of(self.transfers)

    @property
    def rounds(self) -> int:
        """Number of rounds; 0 when nothing is transferred."""
        return rounds_of(self.table.table)

    def of_rank(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers that ``rank`` sends or receives, in the schedule's order.

        Raises:
            InvalidValueError: no such rank.
        """
        self._require_rank(rank)
        table = self.table
        return tuple(Transfers(table.table[(table.src == rank) | (table.dst == rank)]))

    def shard(self, rank: int) -> tuple[int, int]:
        """Return the chunks ``[start, stop)`` that ``rank`` owns in a sharded collective.

        Raises:
            InvalidValueError: no such rank.
            ScheduleError: the chunks do not divide among the ranks.
        """
        self._require_rank(rank)
        share, left = divmod(self.chunks, self.world_size)
        if left:
            raise ScheduleError(
                f"{self.title}: {self.chunks} chunks do not divide into one shard per rank; "
                f"use a multiple of {self.world_size}"
            )
        return rank * share, (rank + 1) * share

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise InvalidValueError("rank", rank, f"in 0..{self.world_size - 1}")


def chunk_offsets(numel: int, chunks: int) -> tuple[int, ...]:
    """Return where each chunk of a buffer begins, and at the end ``numel``.

    The cut is balanced: the first ``numel % chunks`` chunks are one element longer, and with fewer
    elements than chunks the last ones are empty.

    Args:
        numel: elements of the buffer; >= 0.
        chunks: pieces; >= 1.

    Returns:
        ``chunks + 1`` offsets; chunk c is ``[offsets[c], offsets[c + 1])``.

    Raises:
        InvalidValueError: ``numel`` or ``chunks`` is too small.

    Example:
        >>> chunk_offsets(10, 4)
        (0, 3, 6, 8, 10)
    """
    if numel < 0:
        raise InvalidValueError("numel", numel, "an integer >= 0")
    if chunks < 1:
        raise InvalidValueError("chunks", chunks, "an integer >= 1")
    share, longer = divmod(numel, chunks)
    return tuple(chunk * share + min(chunk, longer) for chunk in range(chunks + 1))


def checked_bounds(bounds: Iterable[int], numel: int, world_size: int) -> tuple[int, ...] | None:
    """Return ``bounds`` as a tuple, or None where they are the balanced cut.

    Args:
        bounds: where each rank's shard of a buffer begins, and at the end ``numel``; a shard may be
            empty.
        numel: elements of the buffer.
        world_size: number of ranks p.

    Raises:
        InvalidValueError: they are not p + 1 integers that never decrease, from 0 to ``numel``.

    Example:
        >>> checked_bounds([0, 7, 7, 10], 10, 3)
        (0, 7, 7, 10)
    """
    try:
        found = tuple(map(operator.index, bounds))
    except TypeError:
        found = ()
    right = len(found) == world_size + 1 and (found[0], found[-1]) == (0, numel)
    if not right or any(end < begin for begin, end in pairwise(found)):
        rule = (
            f"{world_size + 1} element offsets that never decrease, from 0 to the {numel} elements "
            f"of the tensor, so that rank r's shard is bounds[r]:bounds[r + 1]; or None for shards "
            f"of equal length"
        )
        raise InvalidValueError("bounds", bounds, rule)
    return None if found == chunk_offsets(numel, world_size) else found
