"""Messages: a schedule's transfers as the network sees them.

The transfers of one round between the same two ranks are one message. A rank has one send port and
one receive port for each level, as a device has one for its neighbours and one to the network; both
lead to the rank's own link. Several messages of one round that want the same port pass it in the
schedule's order, so a round is cut into *turns* in which no port has two.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.costs.schedule.links import Machines, wire_times
from syncopate.schedules.base import REDUCE, Schedule, Transfers


@dataclass(frozen=True)
class Messages:
    """All messages of a schedule, by round, and by the schedule's order within a round.

    Attributes:
        begins: index of each message's first transfer, shape (m,).
        src: sending ranks, shape (m,).
        dst: receiving ranks, shape (m,).
        chunks: chunks carried, shape (m,).
        reduced: those of them that are added at the receiver, shape (m,).
        apart: index of the level between the two ranks, shape (m,).
        ports: ports of a rank, 1 where no rank has two messages in any round; port k of rank r has
            the number r times ``ports``, plus k.
        turns: indices of the messages of every turn, and whether it is the first of its round.
    """

    begins: IntArray
    src: IntArray
    dst: IntArray
    chunks: IntArray
    reduced: IntArray
    apart: IntArray
    ports: int
    turns: tuple[tuple[IntArray, bool], ...]

    @property
    def out(self) -> IntArray:
        """Sending ports, shape (m,)."""
        return self.src * self.ports + (self.apart if self.ports > 1 else 0)

    @property
    def into(self) -> IntArray:
        """Receiving ports, shape (m,)."""
        return self.dst * self.ports + (self.apart if self.ports > 1 else 0)


def ordered_messages(schedule: Schedule, machines: Machines) -> Messages:
    """Merge a schedule's transfers into messages and cut its rounds at contended ports.

    Args:
        schedule: one with at least one transfer.
        machines: that send them.
    """
    table = schedule.table
    begins, chunks, reduced = _merge(table)
    src, dst = table.src[begins].astype(np.int64), table.dst[begins].astype(np.int64)
    apart = machines.apart(src, dst)
    edges = np.flatnonzero(np.diff(table.round[begins], prepend=-1, append=-1)).tolist()
    rounds = list(pairwise(edges))
    # A single port will do where no rank has two messages in any round.
    ports = 1
    if any(_contended(src[low:high], dst[low:high]) for low, high in rounds):
        ports = len(machines.levels)
    port = apart if ports > 1 else 0
    out, into = src * ports + port, dst * ports + port
    turns: list[tuple[IntArray, bool]] = []
    for low, high in rounds:
        queues = _turns(out[low:high], into[low:high])
        turns += [(queue + low, index == 0) for index, queue in enumerate(queues)]
    return Messages(
        begins=begins,
        src=src,
        dst=dst,
        chunks=chunks,
        reduced=reduced,
        apart=apart,
        ports=ports,
        turns=tuple(turns),
    )


def messages_of(schedule: Schedule, machines: Machines) -> tuple[Messages, FloatArray]:
    """Return the messages, and how long each is on the wire beside those of the same turn.

    Args:
        schedule: one with at least one transfer.
        machines: that send them.

    Returns:
        The messages, and seconds per byte of the whole buffer, shape (m,).
    """
    found = ordered_messages(schedule, machines)
    numbers = np.empty(len(found.src), np.int64)
    for number, (pick, _) in enumerate(found.turns):
        numbers[pick] = number
    ends = found.src, found.dst
    one_each = found.ports == 1
    wire = wire_times(machines, ends, found.chunks, numbers, one_each=one_each)
    return found, wire / schedule.chunks


def _merge(table: Transfers) -> tuple[IntArray, IntArray, IntArray]:
    """Return where each message begins, the chunks it carries, and how many are reduced."""
    same = (table.round[1:] == table.round[:-1]) & (table.src[1:] == table.src[:-1])
    same &= table.dst[1:] == table.dst[:-1]
    begins = np.flatnonzero(np.concatenate(([True], ~same)))
    chunks = (table.stop - table.start).astype(np.int64)
    reduced = np.where(table.op == REDUCE, chunks, 0)
    return begins, np.add.reduceat(chunks, begins), np.add.reduceat(reduced, begins)


def _contended(out: IntArray, into: IntArray) -> bool:
    """Say whether two messages of one round share an end."""
    return bool(max(np.bincount(out).max(), np.bincount(into).max()) > 1)


def _turns(out: IntArray, into: IntArray) -> list[IntArray]:
    """Cut the messages of one round into turns, so that none shares a port within a turn."""
    if not _contended(out, into):
        return [np.arange(len(out))]
    sends: dict[int, int] = {}
    receives: dict[int, int] = {}
    turns: list[list[int]] = []
    for index, (a, b) in enumerate(zip(out.tolist(), into.tolist(), strict=True)):
        turn = max(sends.get(a, 0), receives.get(b, 0))
        sends[a] = receives[b] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(index)
    return [np.array(turn, np.int64) for turn in turns]
