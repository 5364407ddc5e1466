"""Relay: the messages of a schedule with what each hands on of the one before.

A rank that sends on what it just received need not have all of it. :func:`rounds_of` finds these
messages, and gives every turn of a schedule (:mod:`syncopate.costs.schedule.messages`) as arrays
for playing it (:mod:`syncopate.costs.schedule.execution`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.messages import Messages, messages_of
from syncopate.schedules.base import Schedule

_BoolArray = NDArray[np.bool_]

_INSIDE = 0.25
"""Share of a byte's handling that is left when it stays within a host. There the link is a
processor already, but one that was measured while the others had nothing to do."""


@dataclass(frozen=True)
class Turn:
    """Messages that meet at no port; arrays of shape (m,) unless said otherwise.

    Attributes:
        src: sending ranks.
        dst: receiving ranks.
        out: sending ports.
        into: receiving ports.
        start: first chunk of every transfer, shape (t,).
        stop: one past its last chunk, shape (t,).
        parts: index of each message's first transfer; None where each is one transfer.
        latency_s: α.
        lag_s: how far the link's clock may be behind, the time that a burst takes.
        wire_s_per_byte: β, longer where the link is shared.
        worked: share of its bytes that a processor handles besides the link.
        reduced: share of the message that is added.
        adds: whether any of it is.
        forwards: whether it hands on what its sender received last.
        offset: where it begins in that, as a share.
        share: how long it is, as a share of that.
        beside: how long the message is that its sender sends another rank right after it, up to
            its own length, as a share of that; 0 where there is none.
    """

    src: IntArray
    dst: IntArray
    out: IntArray
    into: IntArray
    start: IntArray
    stop: IntArray
    parts: IntArray | None
    latency_s: FloatArray
    lag_s: FloatArray
    wire_s_per_byte: FloatArray
    worked: FloatArray
    reduced: FloatArray
    adds: _BoolArray
    forwards: _BoolArray
    offset: FloatArray
    share: FloatArray
    beside: FloatArray


@dataclass(frozen=True)
class Rounds:
    """A schedule ready to be played.

    Attributes:
        turns: of every round.
        ports: ports of a rank.
    """

    turns: tuple[tuple[Turn, ...], ...]
    ports: int


@lru_cache(maxsize=64)
def rounds_of(schedule: Schedule, machines: Machines) -> Rounds:
    """Return the turns of a schedule with at least one transfer.

    Args:
        schedule: what is to be played.
        machines: what plays it.
    """
    found, wire_s_per_byte = messages_of(schedule, machines)
    source, offset, share = _handed_on(schedule, found)
    beside = _followed(schedule, found)
    levels = machines.levels
    latency = np.array([level.latency_s for level in levels])[found.apart]
    lag = np.array([level.burst_bytes * level.byte_time_s for level in levels])[found.apart]
    wire = wire_s_per_byte * schedule.chunks / found.chunks
    inside = np.array([level.name == "device" for level in levels[:-1]] + [False])
    worked = np.where(inside[found.apart], _INSIDE, 1.0)
    ends = np.append(found.begins[1:], len(schedule.table))
    out, into = found.out, found.into
    rounds: list[list[Turn]] = []
    for pick, first in found.turns:
        spans = zip(found.begins[pick].tolist(), ends[pick].tolist(), strict=True)
        transfers = np.concatenate([np.arange(low, high) for low, high in spans])
        counts = ends[pick] - found.begins[pick]
        if first:
            rounds.append([])
        rounds[-1].append(
            Turn(
                src=found.src[pick],
                dst=found.dst[pick],
                out=out[pick],
                into=into[pick],
                start=schedule.table.start[transfers].astype(np.int64),
                stop=schedule.table.stop[transfers].astype(np.int64),
                parts=None if (counts == 1).all() else np.cumsum(counts) - counts,
                latency_s=latency[pick],
                lag_s=lag[pick],
                wire_s_per_byte=wire[pick],
                worked=worked[pick],
                reduced=found.reduced[pick] / found.chunks[pick],
                adds=found.reduced[pick] > 0,
                forwards=source[pick] >= 0,
                offset=offset[pick],
                share=share[pick],
                beside=beside[pick],
            )
        )
    return Rounds(tuple(tuple(turns) for turns in rounds), found.ports)


def _handed_on(schedule: Schedule, found: Messages) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return which message each one hands on (-1 for none), from where and how much of it.

    A message hands on what its sender received in the last round that it took part in, if that was
    one message, both are one transfer, they share a chunk, and the data does not go back. If its
    sender sent as well then, it did so to the same rank: the executor holds messages to others back
    for one another.
    """
    table = schedule.table
    count = np.append(found.begins[1:], len(table)) - found.begins
    number = table.round[found.begins].astype(np.int64)
    start, stop = table.start[found.begins].astype(float), table.stop[found.begins].astype(float)
    rounds = int(number.max()) + 1
    sends, receives = found.src * rounds + number, found.dst * rounds + number
    moments = np.unique(np.concatenate((sends, receives)))
    place = np.searchsorted(moments, sends) - 1
    earlier = moments[np.maximum(place, 0)]
    known = (place >= 0) & (earlier // rounds == found.src)
    received, index, times = np.unique(receives, return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(received, earlier), len(received) - 1)
    known &= (received[at] == earlier) & (times[at] == 1)
    known &= ~_beside_another(found, sends, earlier)
    source = index[at]
    known &= (count == 1) & (count[source] == 1) & (found.src[source] != found.dst)
    known &= (start < stop[source]) & (stop > start[source])
    length = np.maximum(stop[source] - start[source], 1.0)
    offset = np.maximum(start - start[source], 0.0) / length
    return np.where(known, source, -1), offset, (stop - start) / length


def _beside_another(found: Messages, sends: IntArray, moments: IntArray) -> _BoolArray:
    """Say of every message whether its sender sent another rank something at ``moments``."""
    known, of = np.unique(sends, return_inverse=True)
    lowest, highest = np.full(len(known), found.dst.max()), np.zeros(len(known), np.int64)
    np.minimum.at(lowest, of, found.dst)
    np.maximum.at(highest, of, found.dst)
    at = np.minimum(np.searchsorted(known, moments), len(known) - 1)
    others = (lowest[at] != found.dst) | (highest[at] != found.dst)
    return np.asarray((known[at] == moments) & others)


def _followed(schedule: Schedule, found: Messages) -> FloatArray:
    """Return :attr:`Turn.beside` of every message.

    Right after it is what its sender sends across the same level in the same round or the next.
    """
    number = schedule.table.round[found.begins].astype(np.int64)
    order = np.lexsort((number, found.src))
    src, dst, number = found.src[order], found.dst[order], number[order]
    apart, chunks = found.apart[order], found.chunks[order].astype(float)
    follows = (src[1:] == src[:-1]) & (dst[1:] != dst[:-1]) & (apart[1:] == apart[:-1])
    follows &= number[1:] - number[:-1] <= 1
    beside = np.zeros(len(order))
    beside[order[:-1]] = np.where(follows, np.minimum(chunks[1:] / chunks[:-1], 1.0), 0.0)
    return beside
