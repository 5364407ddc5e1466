"""Traffic: the messages of a schedule, what each waits for, and the links that it passes.

The rules are those of the price (:mod:`syncopate.costs.schedule.price`). A rank enters a round when
its own messages of the rounds before are done; a message starts when both its ranks have entered
the round and the messages before it at its two ports are done; it takes α, then its bytes flow over
all its links at once. What it holds up at its sender goes on when its bytes have left, and what it
holds up at its receiver when they have been added too. So messages wait for messages, and nothing
else: they form a graph without cycles, for every size of the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncopate.artifacts.level import unit_counts
from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.messages import ordered_messages
from syncopate.schedules.base import Schedule

SENT, ADDED = 0, 1
"""What of a message another waits for: that its bytes have left, or that they have been added."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Which message waits for which; shape (e,) each.

    Attributes:
        before: the message that is waited for, ascending.
        after: the message that waits.
        kind: ``SENT`` or ``ADDED``.
    """

    before: IntArray
    after: IntArray
    kind: IntArray


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages over links; a message may stand for many that do the same at the same time.

    Messages are numbered so that each waits for ones before it alone.

    Attributes:
        latency_s: α of each message, shape (m,).
        share: its bytes, as a share of the buffer, shape (m,).
        addition_s: seconds of reduction per byte of the buffer, shape (m,).
        weight: how many messages it stands for, shape (m,).
        links: the links that it passes, shape (m, k); ``len(rate)`` where there are fewer than k.
        rate: bytes per second of each link, or of all those that it stands for, shape (l,).
        edges: which message waits for which.
        layer: messages of one layer do not wait for each other, and for those of lower layers
            alone; ascending, shape (m,).
        kinds: links of the same number are of one level and direction, shape (l,).
    """

    latency_s: FloatArray
    share: FloatArray
    addition_s: FloatArray
    weight: FloatArray
    links: IntArray
    rate: FloatArray
    edges: Edges
    layer: IntArray
    kinds: IntArray

    def __len__(self) -> int:
        return len(self.share)

    def over_links(self, nbytes: FloatArray) -> FloatArray:
        """Return what passes each link, shape (l,), when messages are as long, shape (m,)."""
        each = np.repeat(nbytes * self.weight, self.links.shape[1])
        return np.asarray(np.bincount(self.links.ravel(), each, len(self.rate) + 1)[:-1], float)


def traffic_of(schedule: Schedule, machines: Machines, *, shared_only: bool = False) -> Traffic:
    """Return the messages of ``schedule``, each by itself.

    Args:
        schedule: one with at least one transfer.
        machines: with those levels alone that join anything.
        shared_only: leave out the links of single ranks where they slow no message down. That is so
            where a rank sends one message at a time, which passes a link of no higher rate too.
            Times are the same, and rates are found faster.
    """
    found = ordered_messages(schedule, machines)
    order = np.concatenate([pick for pick, _ in found.turns])
    layer = np.repeat(np.arange(len(found.turns)), [len(pick) for pick, _ in found.turns])
    begins_round = np.array([first for _, first in found.turns])
    step = np.cumsum(begins_round)[layer]
    src, dst, apart = found.src[order], found.dst[order], found.apart[order]
    links: list[IntArray] = []
    rates: list[FloatArray] = []
    count = 0
    units, within = unit_counts(machines.levels), machines.units()
    for index, level in enumerate(machines.levels):
        for end in (src, dst):
            links.append(np.where(apart >= index, count + within[index][end], -1))
            rates.append(np.full(units[index], level.bandwidth_bytes_per_s))
            count += units[index]
    rate = np.concatenate(rates)
    table = np.stack(links, axis=1)
    if shared_only and found.ports == 1:
        own, *others = (level.bandwidth_bytes_per_s for level in machines.levels)
        slowest = np.append(np.inf, np.minimum.accumulate(others))
        table[own >= slowest[apart], :2] = -1
        table = np.sort(table)[:, ::-1]
        table = table[:, : int((table >= 0).sum(axis=1).max())]
    return Traffic(
        latency_s=np.array([level.latency_s for level in machines.levels])[apart],
        share=found.chunks[order] / schedule.chunks,
        addition_s=machines.reduction_s_per_byte * found.reduced[order] / schedule.chunks,
        weight=np.ones(len(order)),
        links=np.where(table < 0, count, table),
        rate=rate,
        edges=_edges((src, dst), step, apart if found.ports > 1 else np.zeros_like(apart)),
        layer=layer,
        kinds=np.repeat(np.arange(len(rates)), [len(each) for each in rates]),
    )


def _edges(ends: tuple[IntArray, IntArray], step: IntArray, port: IntArray) -> Edges:
    """Return what messages wait for.

    At every port of a rank the messages of a round queue. The first of every queue waits for the
    last ones of all queues of the last round in which its rank took part.

    Args:
        ends: sending and receiving ranks, shape (m,) each, messages in the order of queues.
        step: the round of each message, shape (m,).
        port: at which port of a rank it queues, shape (m,).
    """
    count = len(step)
    message = np.tile(np.arange(count), 2)
    rank = np.concatenate(ends)
    kind = np.repeat([SENT, ADDED], count)
    steps, ports = np.tile(step, 2), np.tile(port, 2)
    # One number sorts faster than five; messages are in order already, and the sort is stable.
    width = 2 * (int(port.max()) + 1)
    key = (rank * (int(step.max()) + 1) + steps) * width + ports * 2 + kind
    order = np.argsort(key, kind="stable")
    message, rank, kind = message[order], rank[order], kind[order]
    steps, ports = steps[order], ports[order]
    new_group = np.ones(2 * count, bool)
    new_group[1:] = (rank[1:] != rank[:-1]) | (steps[1:] != steps[:-1])
    first = new_group.copy()
    first[1:] |= (ports[1:] != ports[:-1]) | (kind[1:] != kind[:-1])
    last = np.append(first[1:], True)
    group = np.cumsum(new_group) - 1
    group_rank = rank[new_group]
    queued = np.flatnonzero(~first)
    # Firsts of a group against the lasts of the group before, of the same rank.
    lasts = np.flatnonzero(last)
    counts = np.bincount(group[lasts], minlength=len(group_rank))
    starts = np.cumsum(counts) - counts
    firsts = np.flatnonzero(first & (group > 0))
    firsts = firsts[group_rank[group[firsts]] == group_rank[group[firsts] - 1]]
    many = counts[group[firsts] - 1]
    offset = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    waited = lasts[np.repeat(starts[group[firsts] - 1], many) + offset]
    before = np.concatenate((message[queued - 1], message[waited]))
    after = np.concatenate((message[queued], message[np.repeat(firsts, many)]))
    kinds = np.concatenate((kind[queued - 1], kind[waited]))
    order = np.argsort(before, kind="stable")
    return Edges(before[order], after[order], kinds[order])


def joined(several: Sequence[Traffic]) -> tuple[Traffic, IntArray]:
    """Return traffics side by side that have no link in common, and which each message is of.

    The layers of the whole are those of its parts, and therefore not ascending.
    """
    widest = max(traffic.links.shape[1] for traffic in several)
    total = sum(len(traffic.rate) for traffic in several)
    links, before, after = [], [], []
    messages = rates = 0
    for traffic in several:
        own = np.where(traffic.links == len(traffic.rate), total, traffic.links + rates)
        blank = ((0, 0), (0, widest - own.shape[1]))
        links.append(np.pad(own, blank, constant_values=total))
        before.append(traffic.edges.before + messages)
        after.append(traffic.edges.after + messages)
        messages += len(traffic)
        rates += len(traffic.rate)

    def side_by_side(name: str) -> FloatArray:
        return np.concatenate([getattr(traffic, name) for traffic in several])

    whole = Traffic(
        latency_s=side_by_side("latency_s"),
        share=side_by_side("share"),
        addition_s=side_by_side("addition_s"),
        weight=side_by_side("weight"),
        links=np.concatenate(links),
        rate=side_by_side("rate"),
        edges=Edges(
            np.concatenate(before),
            np.concatenate(after),
            np.concatenate([traffic.edges.kind for traffic in several]),
        ),
        layer=np.concatenate([traffic.layer for traffic in several]),
        kinds=np.concatenate([traffic.kinds for traffic in several]),
    )
    return whole, np.repeat(np.arange(len(several)), [len(traffic) for traffic in several])
