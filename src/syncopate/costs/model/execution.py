"""Execution: how long the executor takes over a schedule on a calibrated cluster.

The papers' model (``price.py``) knows α, β and γ. The executor does better than that model, and the
processors that drive it do worse; calibration measures by how much
(:class:`~syncopate.cluster.Handling`, and the burst of a level). On a calibrated cluster this is
what a schedule is expected to take:

* *Starts*: ranks do not start together. The last one starts when the others have been calling for a
  while, spread evenly over that time, and their messages are on their way or there by then.
* *Receives are posted ahead*: a message leaves when its sender has the data, whatever its receiver
  is doing. Latency is not a port's time: one message may leave while another is on its way.
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
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from syncopate.cluster import Cluster, Handling
from syncopate.costs.model.congestion import congestion_lines
from syncopate.costs.model.messages import FloatArray
from syncopate.costs.model.pieces import Pieces
from syncopate.costs.model.relay import Turn, rounds_of
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule
from syncopate.schedules.blocks import MAX_BLOCKS, block_count
from syncopate.units import MIB

ITEM_BYTES = 4
"""Bytes per element, unless said otherwise: float32."""

BUFFERED_BYTES = MIB
"""What the kernel takes of a message before it has left."""

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
    run = _Run(schedule, cluster, (counts.ravel(), itemsize), handling)
    busiest = max((line.b_s_per_byte for line in congestion_lines(schedule, cluster)), default=0.0)
    seconds = np.maximum(run.seconds(), run.call_s + busiest * run.nbytes - run.lag_s)
    return np.asarray(np.where(counts > 0, seconds.reshape(sizes.shape), 0.0))


def execution_cost(schedule: Schedule, cluster: Cluster, *, itemsize: int = ITEM_BYTES) -> Pieces:
    """Return :func:`execution_times` as a function: chords between sizes a factor of two apart.

    It jumps where handling changes. It never decreases: cutting a message into blocks makes some
    a little cheaper than smaller ones, which they then cost as much as.
    """
    limits = [entry.up_to_bytes for entry in cluster.handling if entry.up_to_bytes is not None]
    powers = itemsize * 2 ** np.arange(int(_LARGEST_BYTES // itemsize).bit_length())
    sizes = np.unique([*powers, *limits, *(limit + itemsize for limit in limits)]).astype(float)
    seconds = np.maximum.accumulate(execution_times(schedule, cluster, sizes, itemsize=itemsize))
    chords = np.diff(seconds) / np.diff(sizes)
    slopes = np.concatenate(([0.0], chords, chords[-1:]))
    anchors, levels = np.concatenate((sizes[:1], sizes)), np.concatenate((seconds[:1], seconds))
    return Pieces.of(np.append(sizes, np.inf), levels - slopes * anchors, slopes)


class _Run:
    """Plays a schedule round by round; arrays have one row per rank or port, one column per size.

    Clocks hold seconds:

    * ``entered``: when a rank has all data of the rounds before; ``before``, of those before the
      last round in which it received; ``first``, when it had the first block of that round.
    * ``idle``: when a send port may issue the next message.
    * ``up`` and ``down``: when the link behind a port is through with all bytes so far.
    """

    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        elements: tuple[FloatArray, int],
        handling: Sequence[Handling],
    ) -> None:
        counts, itemsize = elements
        self.nbytes = counts * itemsize
        self._rounds = rounds_of(schedule, cluster.levels, cluster.placement)
        self._ranks = schedule.world_size
        self._itemsize = itemsize
        self._whole, self._left = np.divmod(counts, schedule.chunks)
        self._gamma = cluster.reduction_s_per_byte
        self._by_hand = all(entry == _FREE for entry in handling)
        self.call_s = np.array([h.call_s for h in handling])
        self._burst_byte = np.array([h.burst_byte_s for h in handling])
        self._round = np.array([h.round_s for h in handling])
        self._stream = np.array([h.stream_s for h in handling])
        self._addition = np.array([h.addition_s for h in handling])
        self._byte = np.array([h.byte_s for h in handling])
        self._exposed = np.array([h.exposed for h in handling])
        self._left_over = np.array([h.left_over for h in handling])
        shape = (self._ranks, len(counts))
        self._entered = _spread(self._ranks)[:, None] * self.call_s
        self._before, self._first = self._entered.copy(), self._entered.copy()
        self._blocks = np.ones(shape)
        ports = (self._ranks * self._rounds.ports, len(counts))
        # All links have been silent, so that each may pass a burst.
        self.lag_s = max(level.burst_bytes * level.byte_time_s for level in cluster.levels)
        silent = -self.lag_s
        self._idle, self._up, self._down = (np.full(ports, t) for t in (0.0, silent, silent))
        self._worked = self.call_s.copy()

    def seconds(self) -> FloatArray:
        """Return when the last rank has all its data, shape (sizes,)."""
        for turns in self._rounds.turns:
            carried, sent = zip(*(self._carried(turn) for turn in turns), strict=True)
            busy, held = self._work(turns, carried, sent)
            begun = self._entered.copy(), self._before.copy(), self._first.copy(), self._blocks
            self._blocks = self._blocks.copy()
            for turn, nbytes in zip(turns, carried, strict=True):
                self._play(turn, nbytes, (busy, held), begun)
        return np.asarray(self._entered.max(axis=0))

    def _carried(self, turn: Turn) -> tuple[FloatArray, FloatArray]:
        """Return the bytes of every message, and in how many transfers; (messages, sizes) each."""
        ends = turn.stop[:, None], turn.start[:, None]
        stop, start = (end * self._whole + np.minimum(end, self._left) for end in ends)
        nbytes = np.asarray((stop - start) * self._itemsize, np.float64)
        sent = np.asarray(nbytes > 0, np.float64)
        if turn.parts is None:
            return nbytes, sent
        return np.add.reduceat(nbytes, turn.parts), np.add.reduceat(sent, turn.parts)

    def _work(
        self, turns: tuple[Turn, ...], carried: Sequence[FloatArray], sent: Sequence[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Count the work of a round.

        Args:
            turns: of the round.
            carried: bytes of every message.
            sent: transfers of every message. The executor sends each by itself, but only the first
                of a message is waited for.

        Returns:
            What it takes of the processors that ranks share, and what of that keeps a busy link.
        """
        messages = sum((nbytes > 0).sum(axis=0) for nbytes in carried)
        transfers = sum(count.sum(axis=0) for count in sent)
        added = sum(
            (count * turn.adds[:, None]).sum(axis=0)
            for turn, count in zip(turns, sent, strict=True)
        )
        bytes_worked = sum(
            turn.worked @ nbytes for turn, nbytes in zip(turns, carried, strict=True)
        )
        beside = added * self._addition + bytes_worked * self._byte
        stream = (transfers * self._stream + beside) / self._ranks
        self._worked = self._worked + stream
        behind = (transfers - messages) * self._stream
        busy = (messages * self._round + behind + beside) / self._ranks
        return busy, self._exposed * stream

    def _play(
        self,
        turn: Turn,
        nbytes: FloatArray,
        work: tuple[FloatArray, FloatArray],
        begun: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    ) -> None:
        """Let the messages of a turn through, and set the clocks of both their ends."""
        blocks = block_counts(nbytes)
        busy, held = work
        latency, lag = turn.latency_s[:, None], turn.lag_s[:, None]
        wire = nbytes * turn.wire_s_per_byte[:, None] + held
        start, last = self._ready(turn, blocks, begun)
        start = np.maximum(start, self._idle[turn.out])
        last = np.maximum(start, last)
        link = np.maximum(np.maximum(self._up[turn.out], self._down[turn.into]), start - lag) + wire
        through = np.maximum(link, last - lag + wire / blocks)
        buffered = np.minimum(nbytes * turn.beside[:, None], BUFFERED_BYTES)
        left = buffered * turn.wire_s_per_byte[:, None] - lag
        shared = self._left_over * np.maximum(left, 0.0)
        alone = nbytes * self._burst_byte
        arrived = np.maximum(through + shared, last + alone / blocks) + latency
        arrived = np.maximum(arrived, start + latency + alone)
        arrived = np.maximum(arrived, np.maximum(start + busy, self._worked))
        first = np.maximum(link - wire * (1 - 1 / blocks), start + alone / blocks) + latency
        first = np.minimum(np.maximum(first, start + busy / blocks), arrived)
        addition = nbytes * (turn.reduced * self._gamma)[:, None]
        arrived = np.maximum(arrived + addition / blocks, first + addition)
        live = nbytes > 0
        pause = latency if self._by_hand else np.minimum(latency, self._stream)
        self._set(self._idle, turn.out, start + pause, live)
        self._set(self._up, turn.out, through, live)
        self._set(self._down, turn.into, through, live)
        self._set(self._before, turn.dst, begun[0][turn.dst], live)
        self._set(self._first, turn.dst, first + addition / blocks, live)
        self._set(self._blocks, turn.dst, blocks, live)
        self._set(self._entered, turn.dst, np.maximum(self._entered[turn.dst], arrived), live)

    @staticmethod
    def _set(clock: FloatArray, rows: np.ndarray, to: FloatArray, live: np.ndarray) -> None:
        clock[rows] = np.where(live, to, clock[rows])

    def _ready(
        self,
        turn: Turn,
        blocks: FloatArray,
        begun: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    ) -> tuple[FloatArray, FloatArray]:
        """Return when senders have the first and the last block of what they send."""
        entered, before, first, had = (clock[turn.src] for clock in begun)
        if not turn.forwards.any():
            return entered, entered
        needed = np.minimum(turn.offset[:, None] + turn.share[:, None] / blocks, 1.0)
        number = np.maximum(np.ceil(needed * had - 1e-9), 1.0)
        between = first + (entered - first) * (number - 1) / np.maximum(had - 1, 1.0)
        start = np.where(turn.forwards[:, None], np.maximum(before, between), entered)
        return start, entered


def _spread(ranks: int) -> FloatArray:
    """Return numbers up to 1 for ranks in a row, spread evenly and in no order (golden ratio)."""
    spread = (0.5 + np.arange(ranks) * (math.sqrt(5) - 1) / 2) % 1
    return np.asarray(spread / spread.max())


def _handling(cluster: Cluster, nbytes: float) -> Handling:
    for entry in cluster.handling:
        if entry.up_to_bytes is None or nbytes <= entry.up_to_bytes:
            return entry
    return _FREE


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
