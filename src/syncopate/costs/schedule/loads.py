"""Loads: what the messages of a schedule carry at given sizes, before any figure of handling.

Bytes, blocks, and times on the wire depend on the schedule, the cluster and the sizes alone. So
they are worked out apart from the clocks (:mod:`syncopate.costs.schedule.execution`), which may
then be played again and again. Several schedules can be joined, and are then played side by side,
each on ranks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.relay import Rounds, Turn, rounds_of
from syncopate.schedules.base import Schedule
from syncopate.schedules.blocks import MAX_BLOCKS, block_count
from syncopate.units import MIB

BUFFERED_BYTES = MIB
"""What the kernel takes of a message before it has left."""


@dataclass(frozen=True)
class Load:
    """The messages of a turn, each of shape (m, sizes) unless said otherwise.

    Attributes:
        src: sending ranks, shape (m,).
        dst: receiving ranks, shape (m,).
        out: sending ports, shape (m,).
        into: receiving ports, shape (m,).
        of: which of the schedules played side by side they belong to, shape (m,); None where there
            is one.
        latency_s: α, shape (m, 1).
        lag_s: how far the link's clock may be behind, shape (m, 1).
        nbytes: bytes.
        blocks: into how many blocks they are cut; >= 1.
        wire_s: time on the wire.
        behind_s: time on the wire of what the kernel may still hold when the next message leaves.
        addition_s: time that adding takes.
        forwards: whether they hand on what their sender received last, shape (m, 1).
        part: when the first block of that can leave, as a share of the time from the first block's
            arrival to the last one's.
    """

    src: IntArray
    dst: IntArray
    out: IntArray
    into: IntArray
    of: IntArray | None
    latency_s: FloatArray
    lag_s: FloatArray
    nbytes: FloatArray
    blocks: FloatArray
    wire_s: FloatArray
    behind_s: FloatArray
    addition_s: FloatArray
    forwards: NDArray[np.bool_]
    part: FloatArray

    @cached_property
    def empty(self) -> NDArray[np.bool_] | None:
        """Which messages are not sent; None where all are."""
        empty = np.asarray(self.nbytes == 0)
        return empty if empty.any() else None

    @cached_property
    def cut(self) -> bool:
        """Whether any message is more than one block."""
        return bool((self.blocks > 1).any())

    @cached_property
    def adds(self) -> bool:
        """Whether anything is added."""
        return bool(self.addition_s.any())

    @cached_property
    def lingers(self) -> bool:
        """Whether anything may be left over."""
        return bool(self.behind_s.any())

    @cached_property
    def relays(self) -> bool:
        """Whether any message hands on what came last."""
        return bool(self.forwards.any())

    @cached_property
    def rest(self) -> FloatArray:
        """Share of a message that is behind its first block."""
        return np.asarray(1 - 1 / self.blocks)


class Work(NamedTuple):
    """The load of a round on processors; arrays of shape (schedules, sizes).

    Attributes:
        messages: how many are sent.
        transfers: what they consist of. The executor sends each by itself, but only the first of a
            message is waited for.
        added: those of them that are added.
        nbytes: bytes that a processor handles.
    """

    messages: FloatArray
    transfers: FloatArray
    added: FloatArray
    nbytes: FloatArray


class Round(NamedTuple):
    """A round at given sizes: its turns, and their work."""

    turns: tuple[Load, ...]
    work: Work


def loads(
    schedule: Schedule, cluster: Cluster, counts: FloatArray, itemsize: int
) -> Iterator[Round]:
    """Yield the rounds of a schedule with at least one transfer; one at a time, as they are large.

    Args:
        schedule: for as many ranks as the cluster has.
        cluster: levels, placement and γ.
        counts: elements of the whole buffer, shape (sizes,).
        itemsize: bytes per element.
    """
    known = rounds_of(schedule, Machines.of(cluster))
    shares = np.divmod(counts, schedule.chunks)
    had = np.ones((schedule.world_size, len(counts)))
    for turns in known.turns:
        carried = [_carried(turn, shares, itemsize) for turn in turns]
        begun = had.copy()
        yield Round(
            tuple(
                _load(turn, nbytes, cluster.reduction_s_per_byte, (begun, had))
                for turn, (nbytes, _) in zip(turns, carried, strict=True)
            ),
            _work(turns, carried),
        )


def joined(schedules: Sequence[Iterator[Round]], ranks: int, ports: Sequence[int]) -> list[Round]:
    """Return the rounds of several schedules at the same sizes side by side.

    Rank r and port q of schedule k become k ``ranks`` + r and k ``ranks`` ``ports[k]`` + q.

    Args:
        schedules: rounds of each.
        ranks: of each schedule.
        ports: of a rank, by schedule.
    """
    first_port = np.cumsum([0, *ports]) * ranks
    found = []
    for rounds in zip_longest(*schedules):
        present = [(k, one) for k, one in enumerate(rounds) if one is not None]
        turns = zip_longest(
            *(
                [_moved(load, k, k * ranks, first_port[k]) for load in one.turns]
                for k, one in present
            )
        )
        sizes = present[0][1].work.messages.shape[1]
        work = Work(*np.zeros((len(Work._fields), len(rounds), sizes)))
        for k, one in present:
            for whole, part in zip(work, one.work, strict=True):
                whole[k] = part[0]
        found.append(Round(tuple(_beside(turn) for turn in turns), work))
    return found


def ports_of(schedule: Schedule, cluster: Cluster) -> int:
    """Return how many ports a rank has in a schedule with at least one transfer."""
    known: Rounds = rounds_of(schedule, Machines.of(cluster))
    return known.ports


def _moved(load: Load, number: int, rank: int, port: int) -> Load:
    """Return a load as schedule ``number``, whose ranks and ports begin there."""
    rows = {name: getattr(load, name) for name in _FIELDS}
    rows |= {"src": load.src + rank, "dst": load.dst + rank, "of": np.full(len(load.src), number)}
    return Load(**(rows | {"out": load.out + port, "into": load.into + port}))


def _beside(loads: Sequence[Load | None]) -> Load:
    """Return loads that share neither ranks nor ports as one."""
    some = [load for load in loads if load is not None]
    return Load(**{name: np.concatenate([getattr(one, name) for one in some]) for name in _FIELDS})


def _carried(
    turn: Turn, shares: tuple[FloatArray, FloatArray], itemsize: int
) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of every message, and in how many transfers; (messages, sizes) each."""
    whole, left = shares
    ends = turn.stop[:, None], turn.start[:, None]
    stop, start = (end * whole + np.minimum(end, left) for end in ends)
    nbytes = np.asarray((stop - start) * itemsize, np.float64)
    sent = np.asarray(nbytes > 0, np.float64)
    if turn.parts is None:
        return nbytes, sent
    return np.add.reduceat(nbytes, turn.parts), np.add.reduceat(sent, turn.parts)


def _work(turns: Sequence[Turn], carried: Sequence[tuple[FloatArray, FloatArray]]) -> Work:
    """Count the work of a round whose messages carry that many bytes in that many transfers."""
    both = list(zip(turns, carried, strict=True))
    counted = (
        sum((nbytes > 0).sum(axis=0) for _, (nbytes, _) in both),
        sum(sent.sum(axis=0) for _, (_, sent) in both),
        sum((sent * turn.adds[:, None]).sum(axis=0) for turn, (_, sent) in both),
        sum(turn.worked @ nbytes for turn, (nbytes, _) in both),
    )
    return Work(*(np.asarray(count, np.float64)[None] for count in counted))


def _load(turn: Turn, nbytes: FloatArray, gamma: float, had: tuple[FloatArray, FloatArray]) -> Load:
    """Return the messages of a turn.

    Args:
        turn: of a round.
        nbytes: bytes of every message, shape (m, sizes).
        gamma: γ.
        had: in how many blocks every rank received what it received last, before the round and
            now, shape (ranks, sizes); the latter is brought up to date.
    """
    begun, now = had
    blocks = block_counts(nbytes)
    live = nbytes > 0
    part = np.zeros(nbytes.shape)
    if turn.forwards.any():
        needed = np.minimum(turn.offset[:, None] + turn.share[:, None] / blocks, 1.0)
        number = np.maximum(np.ceil(needed * begun[turn.src] - 1e-9), 1.0)
        part = (number - 1) / np.maximum(begun[turn.src] - 1, 1.0)
    now[turn.dst] = np.where(live, blocks, now[turn.dst])
    buffered = np.minimum(nbytes * turn.beside[:, None], BUFFERED_BYTES)
    lag = turn.lag_s[:, None]
    return Load(
        src=turn.src,
        dst=turn.dst,
        out=turn.out,
        into=turn.into,
        of=None,
        latency_s=turn.latency_s[:, None],
        lag_s=lag,
        nbytes=nbytes,
        blocks=blocks,
        wire_s=nbytes * turn.wire_s_per_byte[:, None],
        behind_s=np.maximum(buffered * turn.wire_s_per_byte[:, None] - lag, 0.0),
        addition_s=nbytes * (turn.reduced * gamma)[:, None],
        forwards=turn.forwards[:, None],
        part=part,
    )


def block_counts(nbytes: FloatArray) -> FloatArray:
    """Return :func:`~syncopate.schedules.blocks.block_count` elementwise."""
    return np.asarray(np.searchsorted(_longest_of_blocks(), nbytes, side="left") + 1.0)


@lru_cache(maxsize=1)
def _longest_of_blocks() -> FloatArray:
    """Return the longest transfers of 1, 2, .., ``MAX_BLOCKS`` - 1 blocks."""
    longest = []
    for blocks in range(1, MAX_BLOCKS):
        low, high = 0, 1 << 40
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if block_count(middle) <= blocks else (low, middle)
        longest.append(low)
    return np.array(longest, float)


_FIELDS = tuple(field.name for field in fields(Load))
