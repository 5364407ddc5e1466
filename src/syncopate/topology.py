"""Topology: which rank sits where, and which pairs of ranks stand for a level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from syncopate.artifacts.level import Size, size_of

_MOST_PAIRS = 16
_Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Topology:
    """Which ranks sit where.

    Attributes:
        hosts: host name of every rank.
        names: name of every level, innermost first.
        sizes: fan-out of every level, one number for each of its units where they differ.
        placement: the rank at each position; empty when rank and position are the same.
        pairs: per level, the pairs of ranks to probe.
        rates_bytes_per_s: per level, its bandwidth where many exchanges at the same time showed it,
            which one pair cannot; 0.0 where probes tell. Empty when they tell everywhere.
        warnings: what its users should know of the hosts.
    """

    hosts: tuple[str, ...]
    names: tuple[str, ...]
    sizes: tuple[Size, ...]
    placement: tuple[int, ...]
    pairs: tuple[_Pairs, ...]
    rates_bytes_per_s: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()


def topology(hosts: Sequence[str], racks: Sequence[Sequence[str]] = ()) -> Topology:
    """Return the levels: devices where hosts hold several ranks, hosts, and racks where known.

    The placement keeps the ranks of a host together, and the hosts of a rack.

    Args:
        hosts: host name of every rank; at least one.
        racks: the hosts of each rack, every host in one of them; none where all stand in one.
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, host in enumerate(hosts):
        ranks_of[host].append(rank)
    grouped = [[ranks_of[host] for host in rack] for rack in racks or [list(ranks_of)]]
    by_host = [ranks for rack in grouped for ranks in rack]
    placement = tuple(rank for ranks in by_host for rank in ranks)
    names, sizes, pairs = zip(*_levels(grouped), strict=True)
    return Topology(
        hosts=tuple(hosts),
        names=names,
        sizes=sizes,
        placement=() if placement == tuple(range(len(hosts))) else placement,
        pairs=pairs,
    )


def _levels(racks: Sequence[Sequence[Sequence[int]]]) -> list[tuple[str, Size, _Pairs]]:
    """Return name, size and pairs of the levels of racks of hosts of ranks."""
    by_host = [ranks for rack in racks for ranks in rack]
    if len(by_host) == 1:
        return [("host", len(by_host[0]), _neighbours(by_host[0]))]
    firsts = [[ranks[0] for ranks in rack] for rack in racks]
    in_racks = [pair for rack in firsts for pair in _ring(rack)]
    levels = [("host", size_of(map(len, racks)), _thinned(in_racks))]
    if any(len(ranks) > 1 for ranks in by_host):
        inside = [pair for ranks in by_host for pair in _neighbours(ranks)]
        levels.insert(0, ("device", size_of(map(len, by_host)), _thinned(inside)))
    if len(racks) > 1:
        levels.append(("rack", len(racks), _neighbours(rack[0] for rack in firsts)))
    return levels


def _neighbours(ranks: Iterable[int]) -> _Pairs:
    return _thinned(_ring(ranks))


def _ring(ranks: Iterable[int]) -> list[tuple[int, int]]:
    ring = list(ranks)
    pairs = list(pairwise(ring))
    if len(ring) > 2:
        pairs.append((ring[-1], ring[0]))
    return pairs


def _thinned(pairs: Sequence[tuple[int, int]]) -> _Pairs:
    """Return at most ``_MOST_PAIRS`` of them, evenly spread."""
    step = max(len(pairs) / _MOST_PAIRS, 1.0)
    return tuple(pairs[int(i * step)] for i in range(min(len(pairs), _MOST_PAIRS)))
