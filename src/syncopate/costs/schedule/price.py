"""Price: how long a schedule takes on a cluster whose ranks do nothing else.

The model is the papers' α-β-γ model, per message and without barriers:

* A message of m bytes takes α of the level that its ranks are apart
  (:meth:`~syncopate.artifacts.cluster.Cluster.level_between`), then its bytes flow, and what is
  reduced of it takes γ a byte. The transfers of one round between the same two ranks are one
  message.
* All ranks of a host share the host's link, and all hosts of a rack the rack's, each direction for
  itself; a rank's own link is that of the innermost level. A message flows over the up-links of all
  units that it leaves and the down-links of all that it enters. Messages that are on their way
  at the same time share every link max-min fairly, also those of different rounds.
* A rank has one send port and one receive port for each level, as a device has one for its
  neighbours and one to the network; both lead to the rank's own link. It enters a round when it has
  finished its own transfers of all rounds before, regardless of the other ranks; a message starts
  when both its ranks have entered the round and both ports are free. Several messages of one rank
  in one round queue in the schedule's order. A reduction keeps the receive port until it is done.
* Chunks are nbytes / chunks bytes each, a fraction if need be; zero bytes are not sent and cost
  nothing; so does a world of one rank.

The pipelining of blocks within a message is left to the simulator.

[Note: played] Where ranks share no link, on a cluster of one level, nothing has to be played: the
price is the longest path through the messages. Every path costs ``a + b n``, so it is the maximum
of finitely many lines, a handful. On several levels messages are played
(:mod:`syncopate.costs.flows`), those that are alike once. More than :data:`MOST_PLAYED` that are
not alike are priced by the longest path on levels too, where messages share links with those of
their turn alone, and by what the busiest link needs. That is an estimate, a few percent off where
rounds overlap: of a ring that follows scrambled ranks, say, when there are hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from syncopate.artifacts.cluster import Cluster, LinearFit
from syncopate.costs.flows.classes import by_class
from syncopate.costs.flows.curve import EVERYWHERE, Asked, played_pieces, spotted_pieces
from syncopate.costs.flows.kernel import play
from syncopate.costs.flows.traffic import Traffic, traffic_of
from syncopate.costs.model.pieces import FloatArray, IntArray, Pieces, highest_line
from syncopate.costs.schedule.congestion import congestion_lines
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.messages import messages_of
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule

MOST_PLAYED = 10_000
"""Messages that are not alike and are played; more take minutes."""

_MOST_SEEN = 1_000_000
"""Transfers of which it is found out which are alike; more take seconds, and hardly ever are."""

_LARGEST_BYTES = 2.0**50
_ROUNDING = 1e-13


def price(schedule: Schedule, cluster: Cluster, nbytes: float) -> float:
    """Return the seconds ``schedule`` takes on a buffer of ``nbytes``; see the module.

    Raises:
        InvalidValueError: ``nbytes`` is negative or not finite, or the schedule is for another
            number of ranks than the cluster has.
    """
    return float(price_many(schedule, cluster, nbytes))


def price_many(schedule: Schedule, cluster: Cluster, nbytes: ArrayLike) -> FloatArray:
    """Return the seconds ``schedule`` takes, for many buffer sizes at once.

    Args:
        schedule: for as many ranks as the cluster has.
        cluster: levels, placement and γ; its measured curves play no part.
        nbytes: sizes of the whole buffer in bytes, any shape; >= 0, fractions allowed.

    Returns:
        Seconds, in the shape of ``nbytes``.

    Raises:
        InvalidValueError: as for :func:`price`.
    """
    sizes = np.asarray(nbytes, np.float64)
    if not (np.isfinite(sizes) & (sizes >= 0)).all():
        raise InvalidValueError("nbytes", nbytes, "finite and >= 0")
    traffic = _traffic(schedule, cluster)
    if traffic is None:
        return price_pieces(schedule, cluster)(sizes)
    found = np.zeros(sizes.shape)
    sent = sizes > 0
    if sent.any():
        found[sent] = play([traffic] * int(sent.sum()), sizes[sent].tolist()).seconds
    return found


def price_pieces(
    schedule: Schedule,
    cluster: Cluster,
    rival: Pieces | None = None,
    asked: Asked = EVERYWHERE,
) -> Pieces:
    """Return the price as a function of the size; see [Note: played].

    Args:
        schedule: for as many ranks as the cluster has.
        cluster: levels, placement and γ; its measured curves play no part.
        rival: what else can be sent: where the price is more than
            :data:`~syncopate.costs.flows.curve.FAR` times that, it is no more than a guess, which
            is more than that too; None: it is right everywhere.
        asked: where it has to be right, if not everywhere.

    Exact up to rounding for buffers up to 2^48 bytes where it is a maximum of lines, and elsewhere
    within a quarter of :data:`~syncopate.costs.flows.curve.CLOSE`.

    Raises:
        InvalidValueError: the schedule is for another number of ranks than the cluster has.
    """
    traffic = _traffic(schedule, cluster)
    if traffic is not None:
        return _played(traffic, rival, asked)
    return highest_line((*path_lines(schedule, cluster), *congestion_lines(schedule, cluster)))


def path_lines(schedule: Schedule, cluster: Cluster) -> tuple[LinearFit, ...]:
    """Return the lines whose maximum is the longest path at every size above zero.

    Ascending by slope, so also by the sizes where each is the longest path; one line when the same
    path is always the longest, as on every cluster of a single level for the algorithms here.
    Exact up to rounding for buffers up to 2^50 bytes. Remembered per schedule and network.

    Raises:
        InvalidValueError: the schedule is for another number of ranks than the cluster has.
    """
    _require_ranks(schedule, cluster)
    return _lines(schedule, Machines.of(cluster))


def _require_ranks(schedule: Schedule, cluster: Cluster) -> None:
    if schedule.world_size != cluster.world_size:
        raise InvalidValueError(
            "world size of the schedule",
            schedule.world_size,
            f"that of the cluster, {cluster.world_size}",
        )


def _traffic(schedule: Schedule, cluster: Cluster) -> Traffic | None:
    """Return the messages to play; None where the longest path gives the price."""
    _require_ranks(schedule, cluster)
    if len(cluster.joining) < 2 or not len(schedule.table):
        return None
    return _classes(schedule, Machines.of(cluster)._replace(levels=cluster.joining))


@lru_cache(maxsize=64)
def _classes(schedule: Schedule, machines: Machines) -> Traffic | None:
    if len(schedule.table) > _MOST_SEEN:
        return None
    found = by_class(traffic_of(schedule, machines, shared_only=True))
    return found if len(found) <= MOST_PLAYED else None


@lru_cache(maxsize=256)
def _played(traffic: Traffic, rival: Pieces | None, asked: Asked) -> Pieces:
    if asked.sizes:
        return spotted_pieces(traffic, asked, rival)
    return played_pieces([traffic], rival, asked.near)[0]


class _Line(NamedTuple):
    """Cost ``a + b n`` of one path, in s and s per byte."""

    a: float
    b: float

    def at(self, nbytes: float) -> float:
        return self.a + self.b * nbytes


@lru_cache(maxsize=256)
def _lines(schedule: Schedule, machines: Machines) -> tuple[LinearFit, ...]:
    """Find all longest paths: split where the outer two cross, until nothing lies above.

    The price is convex, so when the two lines that are longest at the ends of an interval are also
    longest where they cross, no other line shows in between.
    """
    messages, ports = _messages(schedule, machines)
    if not messages:
        return (LinearFit(a_s=0.0, b_s_per_byte=0.0),)
    left = _longest_path(messages, ports, 0.0)
    right = _longest_path(messages, ports, _LARGEST_BYTES)
    found = {left, right}
    intervals = [(0.0, left, _LARGEST_BYTES, right)]
    while intervals:
        low, left, high, right = intervals.pop()
        if right.b <= left.b:
            continue
        crossing = (left.a - right.a) / (right.b - left.b)
        if not low < crossing < high:
            continue
        middle = _longest_path(messages, ports, crossing)
        if middle.at(crossing) > left.at(crossing) * (1 + _ROUNDING):
            found.add(middle)
            intervals += [(low, left, crossing, middle), (crossing, middle, high, right)]
    return tuple(LinearFit(a_s=line.a, b_s_per_byte=line.b) for line in _visible(found))


def _visible(lines: set[_Line]) -> list[_Line]:
    """Return the lines that are somewhere above all others by more than rounding."""
    kept: list[_Line] = []
    for line in sorted(lines, key=lambda line: (-line.a, -line.b)):
        # Lines come by descending start-up; one is of use only if it is steeper than all before.
        if kept and line.b <= kept[-1].b * (1 + _ROUNDING):
            continue
        while kept and kept[-1].a <= line.a * (1 + _ROUNDING):
            kept.pop()
        kept.append(line)
    return kept


@dataclass(frozen=True)
class _Messages:
    """Messages of one round that meet at no port: every port sends one at most, or gets one.

    Attributes:
        out: shape (m,), sending ports.
        into: shape (m,), receiving ports.
        latency: shape (m,), α in s.
        wire: shape (m,), seconds on the wire per byte of the whole buffer.
        addition: shape (m,), seconds of reduction per byte of the whole buffer.
        first: whether they are the first of their round.
    """

    out: IntArray
    into: IntArray
    latency: FloatArray
    wire: FloatArray
    addition: FloatArray
    first: bool


def _messages(schedule: Schedule, machines: Machines) -> tuple[list[_Messages], tuple[int, int]]:
    """Return the messages of every turn, and the numbers of ranks and of ports per rank."""
    if not len(schedule.table):
        return [], (schedule.world_size, 1)
    found, wire = messages_of(schedule, machines)
    out, into = found.out, found.into
    latency = np.array([level.latency_s for level in machines.levels])[found.apart]
    addition = machines.reduction_s_per_byte * found.reduced / schedule.chunks
    turns = [
        _Messages(out[pick], into[pick], latency[pick], wire[pick], addition[pick], first)
        for pick, first in found.turns
    ]
    return turns, (schedule.world_size, found.ports)


def _longest_path(messages: list[_Messages], ports: tuple[int, int], nbytes: float) -> _Line:
    """Return the line of the path that is longest for a buffer of ``nbytes``.

    Clocks (of each rank, when it entered the round; of each port, when it is free to send, and to
    receive) hold lines rather than times; of two lines the one that is later at ``nbytes`` goes on.
    """
    sent = received = np.zeros((2, ports[0] * ports[1]))
    for m in messages:
        if m.first:
            sent = _entered(sent, received, ports, nbytes)
            received = sent.copy()
        start = _later(sent[:, m.out], received[:, m.into], nbytes)
        arrival = start + np.stack([m.latency, m.wire])
        sent[:, m.out] = arrival
        arrival[1] += m.addition
        received[:, m.into] = arrival
    ends = _later(sent, received, nbytes)
    a, b = ends[:, np.argmax(ends[0] + ends[1] * nbytes)].tolist()
    return _Line(a, b)


def _entered(
    sent: FloatArray, received: FloatArray, ports: tuple[int, int], nbytes: float
) -> FloatArray:
    """Return for every port when its rank has finished with all of them."""
    each = _later(sent, received, nbytes)
    if ports[1] == 1:
        return each
    by_rank = each.reshape(2, *ports)
    last = by_rank[:, :, 0]
    for port in range(1, ports[1]):
        last = _later(last, by_rank[:, :, port], nbytes)
    return np.repeat(last, ports[1], axis=1)


def _later(x: FloatArray, y: FloatArray, nbytes: float) -> FloatArray:
    return np.where(x[0] + x[1] * nbytes >= y[0] + y[1] * nbytes, x, y)
