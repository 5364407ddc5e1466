"""Links: α, β and burst of every level, from messages that go back and forth between pairs.

Pairs are neighbours, so p ranks need O(p) messages, and they take turns, so that each has the
network for itself. A one-way time is half a round trip. The figures are those of an undisturbed
link: they come from the lowest decile of each size's samples, the median over pairs.

[Note: reading the times] The smallest message shows α. β is the slope between 128 KiB and the
largest: a line through all sizes would lean on the many small ones, and a link with a token bucket
passes those at the speed of the processor. What such a link passes at once, its burst, is how much
further a message gets than α and β alone would let it. It is believed only where small messages
show it too, by passing at twice the rate of large ones at least.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import torch
from msgspec import structs

from syncopate.artifacts.cluster import CurvePoint, LinkProbe
from syncopate.artifacts.level import Level, Size
from syncopate.calibration.timing import Stopwatch, lowest_decile
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.messages.wire import Wire
from syncopate.output import Progress
from syncopate.topology import Topology
from syncopate.units import KIB, MIB

PROBE_SIZES = (4, 1 * KIB, 16 * KIB, 128 * KIB, 1 * MIB, 4 * MIB)
"""Message sizes in bytes; the largest are left out where one alone would spend the budget."""

_MOST_SAMPLES = 60
_BATCH = 3
_WARM_UPS = 2
_LARGE_BYTES = 128 * KIB
_SMALL_BYTES = 4 * KIB
_NO_LINK_BYTES_PER_S = 1e12


def measure_links(
    communicator: Communicator,
    where: Topology,
    *,
    budget_s: float,
    progress: Progress | None = None,
) -> tuple[tuple[Level, ...], tuple[LinkProbe, ...]]:
    """Probe the pairs of every level; return the levels and the raw probes, alike on all ranks.

    Args:
        communicator: the ranks; all of them must call this.
        where: which pairs to probe.
        budget_s: about how long to take.
        progress: called before every few messages.
    """
    every = [pair for pairs in where.pairs for pair in pairs]
    probes: dict[tuple[int, int], LinkProbe] = {}
    watch = Stopwatch(progress)
    for index, (src, dst) in enumerate(every):
        end = _End(communicator, dst if communicator.rank == src else src)
        turns = end.turns(watch, budget_s / len(every))
        probe: LinkProbe | None = None
        while probe is None:
            watch(f"link {src}-{dst}", index / len(every))
            communicator.barrier()
            if communicator.rank == src:
                probe = next(turns)
            elif communicator.rank == dst:
                end.answer()
            probe = communicator.broadcast_object(probe, src=src)
        probes[src, dst] = probe
    found = tuple(probes[pair] for pair in every)
    return levels_of(where, found), found


def levels_of(where: Topology, probes: Sequence[LinkProbe]) -> tuple[Level, ...]:
    """Return the levels that raw times speak of; see [Note: reading the times].

    Args:
        where: which pairs were probed, by level.
        probes: one for each of them.
    """
    of_pair = {(probe.src, probe.dst): probe for probe in probes}
    rates = where.rates_bytes_per_s or (0.0,) * len(where.names)
    return tuple(
        _at_rate(_level(name, size, [of_pair[pair] for pair in pairs]), rate)
        for name, size, pairs, rate in zip(
            where.names, where.sizes, where.pairs, rates, strict=True
        )
    )


def _at_rate(level: Level, bytes_per_s: float) -> Level:
    """Return ``level`` with a bandwidth that is known otherwise, where it is not 0.

    A slower link saves up no more time for its burst.
    """
    if not bytes_per_s:
        return level
    slower = min(bytes_per_s / level.bandwidth_bytes_per_s, 1.0)
    return structs.replace(
        level, bandwidth_bytes_per_s=bytes_per_s, burst_bytes=level.burst_bytes * slower
    )


def _level(name: str, size: Size, probes: Sequence[LinkProbe]) -> Level:
    times_s = _times(probes)
    if not times_s:
        return Level(
            name=name, size=size, latency_s=0.0, bandwidth_bytes_per_s=_NO_LINK_BYTES_PER_S
        )
    latency_s = min(times_s.values())
    far, far_s = max(times_s.items())
    near = max((n for n in times_s if n < far and n <= _LARGE_BYTES), default=far)
    near_s = times_s[near]
    seen = far_s > near_s
    # Where noise hid the slope, the largest message still bounds the bandwidth from below.
    byte_time_s = (far_s - near_s) / (far - near) if seen else far_s / far
    byte_time_s = max(byte_time_s, 1.0 / _NO_LINK_BYTES_PER_S)
    burst_bytes = near - (near_s - latency_s) / byte_time_s
    small = [n for n in times_s if _SMALL_BYTES <= n <= min(burst_bytes, near)]
    passes = seen and bool(small) and times_s[small[-1]] - latency_s < small[-1] * byte_time_s / 2
    return Level(
        name=name,
        size=size,
        latency_s=latency_s,
        bandwidth_bytes_per_s=1.0 / byte_time_s,
        burst_bytes=burst_bytes if passes else 0.0,
    )


def burst_byte_time(levels: Sequence[Level], probes: Sequence[LinkProbe]) -> float:
    """Return what each byte adds to a message that a burst lets through at once, in s.

    Args:
        levels: as :func:`measure_links` found them.
        probes: their raw times.

    Returns:
        The slope below the smallest burst; 0 where no level has one.
    """
    bursts = [level.burst_bytes for level in levels if level.burst_bytes]
    times_s = {n: s for n, s in _times(probes).items() if n <= min(bursts, default=0.0)}
    if len(times_s) < 2:
        return 0.0
    (near, near_s), *_, (far, far_s) = sorted(times_s.items())
    return max((far_s - near_s) / (far - near), 0.0)


def _times(probes: Sequence[LinkProbe]) -> dict[int, float]:
    """Return the undisturbed one-way time of every size, by ascending size."""
    found: dict[int, list[float]] = {}
    for probe in probes:
        for point in probe.points:
            found.setdefault(point.nbytes, []).append(lowest_decile(point.samples_s))
    return {nbytes: statistics.median(times_s) for nbytes, times_s in sorted(found.items())}


class _End:
    """One end of a link: it times round trips, or returns what the other end sends.

    Args:
        communicator: the ranks, at least two.
        peer: the other end.
    """

    def __init__(self, communicator: Communicator, peer: int) -> None:
        self._wire = Wire(communicator)
        self._peer = peer
        device = self._wire.device
        self._order = torch.zeros(2, dtype=torch.int64, device=device)
        self._buffers = [
            torch.zeros(nbytes, dtype=torch.uint8, device=device) for nbytes in PROBE_SIZES
        ]

    def turns(self, watch: Stopwatch, budget_s: float) -> Iterator[LinkProbe | None]:
        """Time round trips, of one large size a turn at most; the last turn has the probe.

        The sizes take turns, so that a disturbance hits all of them alike.

        Args:
            watch: knows how long measuring took.
            budget_s: about how long to take in all.
        """
        since_s = watch.spent_s
        samples: dict[int, list[float]] = {}
        for index, nbytes in enumerate(PROBE_SIZES):
            first_s = min(self._trips(index, _WARM_UPS))
            samples[index] = []
            self._turn_is_over()
            yield None
            growth = PROBE_SIZES[min(index + 1, len(PROBE_SIZES) - 1)] / nbytes
            if nbytes >= _LARGE_BYTES and growth * first_s * _BATCH * 4 > budget_s:
                break
        while len(samples[0]) < _MOST_SAMPLES:
            for index, of_size in samples.items():
                of_size.extend(self._trips(index, _BATCH))
                if PROBE_SIZES[index] >= _LARGE_BYTES:
                    self._turn_is_over()
                    yield None
            if watch.spent_s - since_s > budget_s:
                break
        self._turn_is_over()
        points = (
            CurvePoint(nbytes=PROBE_SIZES[index], samples_s=tuple(of_size))
            for index, of_size in samples.items()
        )
        yield LinkProbe(src=self._wire.rank, dst=self._peer, points=tuple(points))

    def answer(self) -> None:
        """Return what the other end sends in a turn: first which size and how often, then that."""
        while True:
            self._wire.receive(self._order, self._peer)
            index, count = self._order.tolist()
            if count == 0:
                return
            for _ in range(count):
                self._wire.receive(self._buffers[index], self._peer)
                self._wire.send(self._buffers[index], self._peer)

    def _turn_is_over(self) -> None:
        self._trips(0, 0)

    def _trips(self, index: int, count: int) -> list[float]:
        """Announce and make round trips; return the one-way times in seconds."""
        self._order[0], self._order[1] = index, count
        self._wire.send(self._order, self._peer)
        return [self._round_trip(self._buffers[index]) / 2 for _ in range(count)]

    def _round_trip(self, buffer: torch.Tensor) -> float:
        start_s = time.perf_counter()
        self._wire.send(buffer, self._peer)
        self._wire.receive(buffer, self._peer)
        return time.perf_counter() - start_s
