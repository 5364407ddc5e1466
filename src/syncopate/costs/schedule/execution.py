"""Execution: how long the executor takes over a schedule on a calibrated cluster.

The papers' model (``price.py``) knows α, β and γ. The executor does better than that model, and the
processors that drive it do worse; calibration measures by how much
(:class:`~syncopate.artifacts.cluster.Handling`, and the burst of a level). On a calibrated cluster
this is what a schedule is expected to take:

* *Starts*: ranks do not start together. The last one starts when the others have been calling for a
  while, spread evenly over that time, and their messages are on their way or there by then.
* *Receives are posted ahead*: a message leaves when its sender has the data, also while its
  receiver is busy. Latency is not a port's time: one message may leave while another is on its way.
* *Blocks*: a message is cut as the executor cuts it (:mod:`syncopate.schedules.blocks`). The first
  block of the data just received goes on to the next rank when it has arrived and been reduced, the
  last no earlier than it has; all reductions but the last are hidden behind the wire. Not so
  towards the rank that the data came from, whose announcements queue behind its own data, nor
  where the sender still has something on its way to another rank.
* *Burst*: a link that was silent for a while passes some bytes at once. So the link's clock may lag
  behind by the time that they take: the time that latency leaves the link idle is not lost.
* *Processors*: a round in which k of p ranks send takes k/p of what a round of all ranks takes, and
  all rounds so far take at least the sum of their messages, additions and bytes. Part of that sum
  keeps busy links waiting. Chunks that do not lie side by side leave as one message each.
* *Left over*: when its sender goes on to another rank, some of a message is still in the kernel's
  buffer, and shares the link with what goes there. So it arrives later than it would alone. No
  more than the buffer holds is left over, nor does what is shorter hold it up for longer.
* *Elements*: chunks are whole elements, and empty ones are not sent, which is what counts where
  there are hardly more elements than ranks.

Many sizes are played side by side, and :func:`execution_cost` joins them to a curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from syncopate.artifacts.cluster import Cluster, Handling
from syncopate.costs.model.pieces import FloatArray, Pieces
from syncopate.costs.schedule.congestion import congestion_lines
from syncopate.costs.schedule.loads import Load, Round, Work, joined, loads, ports_of
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule

ITEM_BYTES = 4
"""Bytes per element, unless said otherwise: float32."""

_LARGEST_BYTES = 1 << 30
_FREE = Handling()


def execution_times(
    schedule: Schedule,
    cluster: Cluster,
    nbytes: ArrayLike,
    *,
    itemsize: int = ITEM_BYTES,
    handling: Sequence[Handling] | None = None,
) -> FloatArray:
    """Return the seconds that the executor takes over ``schedule``, for many buffer sizes at once.

    Args:
        schedule: for as many ranks as the cluster has.
        cluster: levels, placement, γ and handling; its measured curves play no part.
        nbytes: sizes of the whole buffer in bytes, any shape; >= 0, rounded up to whole elements.
        itemsize: bytes per element.
        handling: what messages cost at each of the sizes; as the cluster says where left out.

    Raises:
        InvalidValueError: a size is negative or not finite, or the schedule is for another number
            of ranks than the cluster has.
    """
    sizes = np.asarray(nbytes, np.float64)
    if not (np.isfinite(sizes) & (sizes >= 0)).all():
        raise InvalidValueError("nbytes", nbytes, "finite and >= 0")
    if schedule.world_size != cluster.world_size:
        raise InvalidValueError(
            "world size of the schedule",
            schedule.world_size,
            f"that of the cluster, {cluster.world_size}",
        )
    counts = np.ceil(sizes / itemsize)
    if not len(schedule.table) or not counts.any():
        return np.zeros(sizes.shape)
    if handling is None:
        handling = [_handling(cluster, size) for size in (counts.ravel() * itemsize).tolist()]
    flat = counts.ravel()
    floor = _busiest(schedule, cluster) * (flat * itemsize)
    clocks = _Clocks(cluster, (1, ports_of(schedule, cluster)), handling)
    seconds = clocks.play(loads(schedule, cluster, flat, itemsize), floor[None])
    return np.asarray(np.where(counts > 0, seconds.reshape(sizes.shape), 0.0))


def execution_cost(schedule: Schedule, cluster: Cluster) -> Pieces:
    """Return :func:`execution_times` as a function: chords between sizes a factor of two apart.

    It jumps where handling changes. It never decreases: cutting a message into blocks makes some
    a little cheaper than smaller ones, which they then cost as much as.
    """
    limits = [entry.up_to_bytes for entry in cluster.handling if entry.up_to_bytes is not None]
    powers = ITEM_BYTES * 2 ** np.arange(int(_LARGEST_BYTES // ITEM_BYTES).bit_length())
    sizes = np.unique([*powers, *limits, *(limit + ITEM_BYTES for limit in limits)]).astype(float)
    seconds = np.maximum.accumulate(execution_times(schedule, cluster, sizes))
    return Pieces.chords(sizes, seconds)


class Executions:
    """Schedules ready to be played side by side, with one set of figures after another.

    Args:
        schedules: at least one, each for as many ranks as the cluster has and with transfers.
        cluster: levels, placement and γ; its own handling plays no part.
        nbytes: sizes of the whole buffer in bytes, shape (sizes,); > 0, of whole elements.
    """

    def __init__(
        self, schedules: Sequence[Schedule], cluster: Cluster, nbytes: Sequence[int]
    ) -> None:
        counts = np.asarray(nbytes, np.float64) / ITEM_BYTES
        ports = [ports_of(schedule, cluster) for schedule in schedules]
        each = [loads(schedule, cluster, counts, ITEM_BYTES) for schedule in schedules]
        self._rounds = joined(each, cluster.world_size, ports)
        self._ports = sum(ports)
        self._cluster = cluster
        busiest = np.array([_busiest(schedule, cluster) for schedule in schedules])
        self._floor = busiest[:, None] * (counts * ITEM_BYTES)

    def times(self, handling: Sequence[Handling]) -> FloatArray:
        """Return the seconds that each takes as :func:`execution_times`, shape (schedules, sizes).

        Args:
            handling: what messages cost at each of the sizes.
        """
        clocks = _Clocks(self._cluster, (len(self._floor), self._ports), handling)
        return clocks.play(self._rounds, self._floor)


class _Clocks:
    """Plays rounds; arrays have one row per rank or port, one column per size.

    Clocks hold seconds:

    * ``entered``: when a rank has all data of the rounds before; ``before``, of those before the
      last round in which it received; ``first``, when it had the first block of that round.
    * ``idle``: when a send port may issue the next message.
    * ``up`` and ``down``: when the link behind a port is through with all bytes so far.
    * ``worked``: when processors are through with the work so far, by schedule.

    Args:
        cluster: of every schedule.
        shape: schedules side by side, and ports that a rank of all of them together has.
        handling: what messages cost at each of the sizes.
    """

    def __init__(
        self, cluster: Cluster, shape: tuple[int, int], handling: Sequence[Handling]
    ) -> None:
        schedules, ports = shape
        self._ranks = cluster.world_size
        self._by_hand = all(entry == _FREE for entry in handling)
        self._call = np.array([h.call_s for h in handling])
        self._burst_byte = np.array([h.burst_byte_s for h in handling])
        self._round = np.array([h.round_s for h in handling])
        self._stream = np.array([h.stream_s for h in handling])
        self._addition = np.array([h.addition_s for h in handling])
        self._byte = np.array([h.byte_s for h in handling])
        self._exposed = np.array([h.exposed for h in handling])
        self._left_over = np.array([h.left_over for h in handling])
        self._entered = np.tile(_spread(self._ranks), schedules)[:, None] * self._call
        self._before, self._first = self._entered.copy(), self._entered.copy()
        # All links have been silent, so that each may pass a burst.
        self._lag_s = max(level.burst_bytes * level.byte_time_s for level in cluster.levels)
        silent = -self._lag_s
        rows = (self._ranks * ports, len(handling))
        self._idle, self._up, self._down = (np.full(rows, t) for t in (0.0, silent, silent))
        self._worked = np.tile(self._call, (schedules, 1))

    def play(self, rounds: Iterable[Round], floor: FloatArray) -> FloatArray:
        """Return when the last rank of every schedule has all its data, shape (schedules, sizes).

        Args:
            rounds: what is sent.
            floor: for how long the busiest link is busy, shape (schedules, sizes).
        """
        for turns, work in rounds:
            busy, held = self._work(work)
            begun = self._entered, self._before, self._first
            if len(turns) > 1:
                begun = self._entered.copy(), self._before.copy(), self._first.copy()
            for load in turns:
                costs = busy, held, self._worked
                if load.of is not None:
                    costs = busy[load.of], held[load.of], self._worked[load.of]
                self._play(load, costs, begun)
        last = self._entered.reshape(len(floor), self._ranks, -1).max(axis=1)
        return np.asarray(np.maximum(last, self._call + floor - self._lag_s))

    def _work(self, work: Work) -> tuple[FloatArray, FloatArray]:
        """Do the work of a round.

        Returns:
            What it takes of the processors that ranks share, and what of that keeps a busy link.
        """
        beside = work.added * self._addition + work.nbytes * self._byte
        stream = (work.transfers * self._stream + beside) / self._ranks
        self._worked = self._worked + stream
        behind = (work.transfers - work.messages) * self._stream
        busy = (work.messages * self._round + behind + beside) / self._ranks
        return busy, self._exposed * stream

    def _play(
        self,
        load: Load,
        costs: tuple[FloatArray, FloatArray, FloatArray],
        begun: tuple[FloatArray, FloatArray, FloatArray],
    ) -> None:
        """Let the messages of a turn through, and set the clocks of both their ends.

        Args:
            load: the messages.
            costs: of each: what the round takes of the processors, what of that keeps a busy link,
                and when the work so far is done.
            begun: clocks of ranks when the round began.
        """
        busy, held, worked = costs
        latency, lag = load.latency_s, load.lag_s
        wire = load.wire_s + held
        start, last = self._ready(load, begun)
        alone = load.nbytes * self._burst_byte
        link = np.maximum(np.maximum(self._up[load.out], self._down[load.into]), start - lag) + wire
        if load.cut:
            through = np.maximum(link, last - lag + wire / load.blocks)
            foremost = alone / load.blocks
            first = np.maximum(link - wire * load.rest, start + foremost) + latency
            first = np.maximum(first, start + busy / load.blocks)
            addition = load.addition_s / load.blocks
        else:
            through = np.maximum(link, last - lag + wire)
            foremost, addition = alone, load.addition_s
            first = np.maximum(np.maximum(link, start + alone) + latency, start + busy)
        shared = through + self._left_over * load.behind_s if load.lingers else through
        arrived = np.maximum(shared, last + foremost) + latency
        arrived = np.maximum(arrived, start + latency + alone)
        arrived = np.maximum(arrived, np.maximum(start + busy, worked))
        first = np.minimum(first, arrived)
        if load.adds:
            arrived = np.maximum(arrived + addition, first + load.addition_s)
            first = first + addition
        pause = latency if self._by_hand else np.minimum(latency, self._stream)
        entered = np.maximum(self._entered[load.dst], arrived)
        before = begun[0][load.dst]
        for clock, rows, to in (
            (self._idle, load.out, start + pause),
            (self._up, load.out, through),
            (self._down, load.into, through),
            (self._before, load.dst, before),
            (self._first, load.dst, first),
            (self._entered, load.dst, entered),
        ):
            clock[rows] = to if load.empty is None else np.where(load.empty, clock[rows], to)

    def _ready(
        self, load: Load, begun: tuple[FloatArray, FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return when ports may send the first and the last block of what their ranks have."""
        idle = self._idle[load.out]
        entered = begun[0][load.src]
        if not load.relays:
            start = np.maximum(entered, idle)
            return start, start
        before, first = begun[1][load.src], begun[2][load.src]
        between = np.maximum(before, first + (entered - first) * load.part)
        start = np.maximum(np.where(load.forwards, between, entered), idle)
        return start, np.maximum(start, entered)


def _busiest(schedule: Schedule, cluster: Cluster) -> float:
    """Return the seconds that the busiest shared link takes for a byte of the buffer."""
    return max((line.b_s_per_byte for line in congestion_lines(schedule, cluster)), default=0.0)


def _spread(ranks: int) -> FloatArray:
    """Return numbers up to 1 for ranks in a row, spread evenly and in no order (golden ratio)."""
    spread = (0.5 + np.arange(ranks) * (math.sqrt(5) - 1) / 2) % 1
    return np.asarray(spread / spread.max())


def _handling(cluster: Cluster, nbytes: float) -> Handling:
    for entry in cluster.handling:
        if entry.up_to_bytes is None or nbytes <= entry.up_to_bytes:
            return entry
    return _FREE
