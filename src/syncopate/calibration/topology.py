"""Topology: which rank sits where, and which pairs of ranks stand for a level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_MOST_PAIRS = 16


@dataclass(frozen=True)
class Topology:
    """Which ranks sit where.

    Attributes:
        hosts: host name of every rank.
        names: name of every level, innermost first.
        sizes: fan-out of every level.
        placement: the rank at each position; empty when rank and position are the same.
        pairs: per level, the pairs of ranks to probe.
        note: what the levels leave out; empty when nothing.
    """

    hosts: tuple[str, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    placement: tuple[int, ...]
    pairs: tuple[tuple[tuple[int, int], ...], ...]
    note: str = ""


def topology(hosts: Sequence[str]) -> Topology:
    """Return one level of ranks, or two when several hosts hold equally many ranks, above one.

    Args:
        hosts: host name of every rank; at least one.
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, host in enumerate(hosts):
        ranks_of[host].append(rank)
    groups = list(ranks_of.values())
    counts = {len(group) for group in groups}
    if len(groups) == 1 or counts == {1}:
        everyone = range(len(hosts))
        return Topology(tuple(hosts), ("host",), (len(hosts),), (), (_neighbours(everyone),))
    firsts = [group[0] for group in groups]
    if len(counts) > 1:
        # Unequal hosts make no regular level; links between hosts rule a collective over all.
        note = f"hosts hold {sorted(counts)} ranks each, so the levels do not tell them apart"
        pairs = (_neighbours(firsts),)
        return Topology(tuple(hosts), ("host",), (len(hosts),), (), pairs, note)
    placement = tuple(rank for group in groups for rank in group)
    inside = [pair for group in groups for pair in _neighbours(group)]
    return Topology(
        hosts=tuple(hosts),
        names=("device", "host"),
        sizes=(counts.pop(), len(groups)),
        placement=() if placement == tuple(range(len(hosts))) else placement,
        pairs=(_thinned(inside), _neighbours(firsts)),
    )


def _neighbours(ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    ring = list(ranks)
    pairs = list(pairwise(ring))
    if len(ring) > 2:
        pairs.append((ring[-1], ring[0]))
    return _thinned(pairs)


def _thinned(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return at most ``_MOST_PAIRS`` of them, evenly spread."""
    step = max(len(pairs) / _MOST_PAIRS, 1.0)
    return tuple(pairs[int(i * step)] for i in range(min(len(pairs), _MOST_PAIRS)))
