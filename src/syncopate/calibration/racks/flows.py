"""Flows: what pairs of hosts exchange while other pairs do the same, and each pair's rate.

[Note: all at once] A rate tells of shared links only while all hosts are busy. A flow that began
late, or goes on when others have ended, finds links idle and reads too high. So flows end after a
time and not after a size, the same time for all pairs at any rate, and what counts is a
window within it: without the beginning, when ranks leave the barrier one after the other and token
buckets let a burst pass, and without the end, when the first pairs have stopped.

[Note: few bytes under way] A rank sends a block when it has received one, and ``_AHEAD`` before it
has received any. So both directions advance together, and little lies in buffers when the time is
up, at any rate. Pairs share a link by what they have under way on it: so all blocks of a
matching are equally long, but for those of hosts so slow that it makes no difference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from syncopate.calibration.racks.levels import SLOW_SHARE, Matching, Round
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import synchronize
from syncopate.collectives.messages.tensors import Exchange
from syncopate.collectives.messages.wire import Wire
from syncopate.units import KIB, MIB

REPETITIONS = 3
"""How often each matching is run."""

WINDOW = (0.3, 0.95)
"""What counts of a flow's time; see [Note: all at once]."""

_AHEAD = 2
_BLOCK_S = 1e-3
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES = 16 * KIB, 1 * MIB
_FEWEST_BLOCKS = 12
_LONGEST_S = 1.0


class Flows:
    """Runs matchings of hosts; every rank makes one, and calls it alike.

    Args:
        communicator: the ranks.
        leads: the rank that speaks for each host; the others stand aside.
        seconds: how long a flow lasts, where links are fast enough for some blocks in that time.
    """

    def __init__(self, communicator: Communicator, leads: Sequence[int], seconds: float) -> None:
        self._communicator = communicator
        self._leads = leads
        self._seconds = seconds
        self._best_bytes_per_s = [0.0] * len(leads)

    def run(self, matching: Matching, report: Callable[[], None] = lambda: None) -> Round:
        """Return the rates of all pairs of ``matching`` at the same time, alike on all ranks.

        Args:
            matching: the pairs of hosts that exchange data.
            report: called before every repetition.

        Raises:
            CollectiveError: a rank was lost.
        """
        if any(not self._best_bytes_per_s[host] for pair in matching for host in pair):
            # Blocks suit links whose rate is known about, and so does the time.
            self._measure(matching, 1, report)
        return self._measure(matching, REPETITIONS, report)

    def _measure(self, matching: Matching, repetitions: int, report: Callable[[], None]) -> Round:
        mine = []
        for _ in range(repetitions):
            report()
            mine.append(self._once(matching))
        of_rank = self._communicator.all_gather_object(mine)
        rates = tuple(
            tuple(
                (one + other) / 2
                for one, other in zip(of_rank[self._leads[a]], of_rank[self._leads[b]], strict=True)
            )
            for a, b in matching
        )
        for pair, of_pair in zip(matching, rates, strict=True):
            for host in pair:
                self._best_bytes_per_s[host] = max(self._best_bytes_per_s[host], *of_pair)
        return Round(matching, rates)

    def _once(self, matching: Matching) -> float:
        """Return what this rank received per second, 0.0 where it stands aside."""
        mine = [pair for pair in matching if self._communicator.rank in self._ranks(pair)]
        if not mine:
            self._communicator.barrier()
            return 0.0
        (pair,) = mine
        ranks = self._ranks(pair)
        leads = ranks[0] == self._communicator.rank
        block, seconds = self._plan(pair)
        wire = Wire(self._communicator)
        buffers = _Buffers(block, wire.device)
        with wire.exchange(ranks[leads]) as exchange:
            # The first message between two ranks may have to connect them.
            exchange.start(buffers.further, buffers.incoming[0])
            exchange.finish()
        self._communicator.barrier()
        with wire.exchange(ranks[leads]) as exchange:
            arrivals_s = _flow(exchange, buffers, seconds if leads else None)
        return rate_within(arrivals_s, block, seconds)

    def _ranks(self, pair: tuple[int, int]) -> tuple[int, int]:
        return self._leads[pair[0]], self._leads[pair[1]]

    def _plan(self, pair: tuple[int, int]) -> tuple[int, float]:
        """Return the bytes of a pair's blocks, and how long all flows last, in seconds."""
        known = sorted(rate for rate in self._best_bytes_per_s if rate)
        if not known:
            return _LEAST_BLOCK_BYTES, self._seconds
        typical = known[len(known) // 2]
        able = min(self._best_bytes_per_s[host] for host in pair)
        block = block_bytes(able if able < SLOW_SHARE * typical else typical)
        least_s = _FEWEST_BLOCKS * block_bytes(typical) / typical
        return block, max(self._seconds, min(least_s, _LONGEST_S))


def block_bytes(bytes_per_s: float) -> int:
    """Return the block for a link of this rate: a millisecond of it, up to a power of two bytes."""
    wanted = max(bytes_per_s * _BLOCK_S, _LEAST_BLOCK_BYTES)
    return min(1 << math.ceil(math.log2(wanted)), _MOST_BLOCK_BYTES)


def rate_within(arrivals_s: Sequence[float], block: int, seconds: float) -> float:
    """Return the bytes per second that arrived in the window of a flow.

    Args:
        arrivals_s: when each block was there, since the flow began; at least one.
        block: bytes of each.
        seconds: how long the flow was to last; the window is a part of it.
    """
    begin_s, end_s = (share * seconds for share in WINDOW)
    end_s = min(end_s, arrivals_s[-1])
    if end_s <= begin_s:
        begin_s = 0.0
    times_s = [0.0, *arrivals_s]
    count = np.interp([begin_s, end_s], times_s, np.arange(len(times_s)))
    return float((count[1] - count[0]) * block / (end_s - begin_s))


class _Buffers:
    """Blocks to send and to receive into.

    Attributes:
        further: a block after which the flow goes on.
        last: the block that says after how many more it ends.
        incoming: one for each block under way.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.further = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self.last = torch.ones(nbytes, dtype=torch.uint8, device=device)
        self.incoming = [torch.zeros_like(self.further) for _ in range(_AHEAD)]


def _flow(exchange: Exchange, buffers: _Buffers, seconds: float | None) -> list[float]:
    """Exchange blocks for a while; return when each was there, in seconds since now.

    Args:
        exchange: with the other rank.
        buffers: of the same size at both.
        seconds: how long, on the rank that decides it; None on the other.
    """
    began_s = time.perf_counter()
    arrivals_s: list[float] = []
    # Both ranks carry out as many exchanges, though one alone knows when the time is up: it says
    # so in a block, and both end with what is under way when that block arrives.
    wanted = None
    for incoming in buffers.incoming:
        exchange.start(buffers.further, incoming)
    while wanted is None or len(arrivals_s) < wanted:
        incoming = buffers.incoming[len(arrivals_s) % _AHEAD]
        exchange.finish()
        synchronize(incoming.device)
        if seconds is None and wanted is None and incoming[0].item():
            wanted = len(arrivals_s) + _AHEAD
        arrivals_s.append(time.perf_counter() - began_s)
        if wanted is not None and len(arrivals_s) + _AHEAD > wanted:
            continue
        outgoing = buffers.further
        if wanted is None and seconds is not None and arrivals_s[-1] > seconds:
            outgoing = buffers.last
            wanted = len(arrivals_s) - 1 + 2 * _AHEAD
        exchange.start(outgoing, incoming)
    return arrivals_s
