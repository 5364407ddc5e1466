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
from collections.abc import Sequence

import torch
from msgspec import structs

from syncopate.artifacts.cluster import CurvePoint, Level, LinkProbe
from syncopate.calibration.quantiles import lowest_decile
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.wire import Wire
from syncopate.output import Progress, say
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
        progress: called before every pair.
    """
    every = [pair for pairs in where.pairs for pair in pairs]
    probes: dict[tuple[int, int], LinkProbe] = {}
    for index, (src, dst) in enumerate(every):
        say(progress, f"link {src}-{dst}", index / len(every))
        mine: LinkProbe | None = None
        communicator.barrier()
        if communicator.rank == src:
            mine = _ping(Wire(communicator), dst, budget_s / len(every))
        elif communicator.rank == dst:
            _pong(Wire(communicator), src)
        probes[src, dst] = communicator.broadcast_object(mine, src=src)
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


def _level(name: str, size: int, probes: Sequence[LinkProbe]) -> Level:
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


def _ping(wire: Wire, peer: int, budget_s: float) -> LinkProbe:
    """Drive ``peer``, which returns every message, and time the round trips.

    The sizes take turns, so that a disturbance hits all of them alike.
    """
    start_s = time.perf_counter()
    buffers = {nbytes: _buffer(nbytes, wire.device) for nbytes in PROBE_SIZES}

    def trips(index: int, count: int) -> list[float]:
        wire.send(torch.tensor([index, count], device=wire.device), peer)
        buffer = buffers[PROBE_SIZES[index]]
        return [_round_trip(wire, buffer, peer) / 2 for _ in range(count)]

    samples: dict[int, list[float]] = {}
    for index, nbytes in enumerate(PROBE_SIZES):
        first_s = min(trips(index, _WARM_UPS))
        samples[index] = []
        growth = PROBE_SIZES[min(index + 1, len(PROBE_SIZES) - 1)] / nbytes
        if nbytes >= _LARGE_BYTES and growth * first_s * _BATCH * 4 > budget_s:
            break
    while True:
        for index, of_size in samples.items():
            of_size.extend(trips(index, _BATCH))
        late = time.perf_counter() - start_s > budget_s
        if late or len(samples[0]) >= _MOST_SAMPLES:
            break
    wire.send(torch.tensor([0, 0], device=wire.device), peer)
    points = (
        CurvePoint(nbytes=PROBE_SIZES[index], samples_s=tuple(of_size))
        for index, of_size in samples.items()
    )
    return LinkProbe(src=wire.rank, dst=peer, points=tuple(points))


def _pong(wire: Wire, peer: int) -> None:
    """Return what ``peer`` sends: first which size and how often, then the messages; 0 to end."""
    order = torch.zeros(2, dtype=torch.int64, device=wire.device)
    buffers = {nbytes: _buffer(nbytes, wire.device) for nbytes in PROBE_SIZES}
    while True:
        wire.receive(order, peer)
        index, count = order.tolist()
        if count == 0:
            return
        for _ in range(count):
            _return(wire, buffers[PROBE_SIZES[index]], peer)


def _round_trip(wire: Wire, buffer: torch.Tensor, peer: int) -> float:
    start_s = time.perf_counter()
    wire.send(buffer, peer)
    wire.receive(buffer, peer)
    return time.perf_counter() - start_s


def _return(wire: Wire, buffer: torch.Tensor, peer: int) -> None:
    wire.receive(buffer, peer)
    wire.send(buffer, peer)


def _buffer(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8, device=device)
